"""flash-attn 4: windows, shared keys, packed documents; slopes in channels of their own; Hopper and Blackwell."""

import torch
from torch import Tensor

from lab.attention import flash
from positional.base import Positions, Scores

can = flash.WORDS | {"cap"}


@flash.once
def installed() -> bool:
    """Whether it can be imported: a build for another torch or GPU fails in many ways."""
    try:
        from flash_attn.cute import flash_attn_func, flash_attn_varlen_func  # noqa: F401
    except Exception:
        return False
    return True


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    if wrong := flash.hardware(q, (9, 10), "Hopper and Blackwell GPUs (capability 9, 10)"):
        return wrong
    if not installed():
        return "is not installed (pip install --pre flash-attn-4, in an environment without flash-attn)"
    return flash.refuses(scores, q, k, pos, lse, native=False) or too_wide(scores, q, k, pos)


def too_wide(scores: Scores, q: Tensor, k: Tensor, pos: Positions) -> str | None:
    """On Blackwell a head has up to 128 channels, those for words among them."""
    by_key = flash.channels(scores, pos, native=False)
    wide = q.shape[-1] + flash.room(by_key, q, k)
    if wide <= 128 or not q.is_cuda or torch.cuda.get_device_capability(q.device)[0] == 9:
        return None
    among = "".join(f", {word} among them" for word in sorted(by_key.needs))
    return f"takes head sizes up to 128 on Blackwell{among}, not {wide}"


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`."""
    return flash.attend(call, q, k, v, scores, pos, lse, native=False)


def call(
    q: Tensor, k: Tensor, v: Tensor, spans: flash.Spans | None, *, scale, causal, window, slopes, cap, lse
) -> tuple[Tensor, Tensor | None]:
    """See `flash.Call`; `slopes` is None."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    options = {
        "softmax_scale": scale,
        "causal": causal,
        "window_size": (None, None) if window is None else (window - 1, 0 if causal else window - 1),
        "softcap": 0.0 if cap is None else cap,
        "return_lse": lse,
    }
    if spans is None:
        out, sums = flash_attn_func(q, k, v, **options)
    else:
        options |= {"cu_seqlens_q": spans.queries, "cu_seqlens_k": spans.keys}
        options |= {"max_seqlen_q": spans.most_queries, "max_seqlen_k": spans.most_keys}
        out, sums = flash_attn_varlen_func(q, k, v, **options)
    return out, sums if lse else None
