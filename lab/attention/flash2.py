"""flash-attn 2: windows, slopes, shared keys, packed documents; fp16 or bf16 on NVIDIA GPUs from Ampere on."""

import torch
from torch import Tensor

from lab.attention import flash
from positional.base import Positions, Scores

can = flash.WORDS | {"cap"}

INSTALL = "pip install flash-attn --no-build-isolation"


@flash.once
def version() -> tuple[int, ...] | None:
    """(2, 8) for 2.8.3; None where it cannot be imported: a build for another torch or GPU fails in many ways."""
    try:
        import flash_attn

        assert flash_attn.flash_attn_func and flash_attn.flash_attn_varlen_func  # flash-attn-4 uses the same name
        return tuple(int(part) for part in flash_attn.__version__.split(".")[:2])
    except Exception:
        return None


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    if wrong := flash.hardware(q, range(8, 100), "GPUs from Ampere on (compute capability 8.0)"):
        return wrong
    if (found := version()) is None:
        return f"is not installed ({INSTALL})"
    if found < (2, 8):
        return f"needs flash-attn 2.8, found {found[0]}.{found[1]} ({INSTALL} --upgrade)"
    return flash.refuses(scores, q, k, pos, lse, native=True)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`."""
    return flash.attend(call, q, k, v, scores, pos, lse, native=True)


def call(
    q: Tensor, k: Tensor, v: Tensor, spans: flash.Spans | None, *, scale, causal, window, slopes, cap, lse
) -> tuple[Tensor, Tensor | None]:
    """See `flash.Call`."""
    from flash_attn import flash_attn_func, flash_attn_varlen_func

    options = {
        "softmax_scale": scale,
        "causal": causal,
        "window_size": (-1, -1) if window is None else (window - 1, 0 if causal else window - 1),
        "softcap": 0.0 if cap is None else cap,
        "alibi_slopes": None if slopes is None else slopes.to(torch.float32),
        "return_attn_probs": lse,  # with them comes the sum; without dropout they themselves stay empty
    }
    if spans is None:
        found = flash_attn_func(q, k, v, **options)
    else:
        lengths = spans.queries, spans.keys, spans.most_queries, spans.most_keys
        found = flash_attn_varlen_func(q, k, v, *lengths, **options)
    return (found[0], found[1]) if lse else (found, None)
