"""flash-attn 3: windows, shared keys, packed documents; slopes in channels of their own; fp16 or bf16 on Hopper."""

from torch import Tensor

from lab.attention import flash
from positional.base import Positions, Scores

can = flash.WORDS | {"cap"}


@flash.once
def installed() -> bool:
    """Whether it can be imported: a build for another torch or GPU fails in many ways."""
    try:
        from flash_attn_interface import flash_attn_func, flash_attn_varlen_func  # noqa: F401
    except Exception:
        return False
    return True


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    if wrong := flash.hardware(q, (9,), "Hopper GPUs (compute capability 9.0)"):
        return wrong
    if not installed():
        return "is not installed (build the folder `hopper` of github.com/Dao-AILab/flash-attention)"
    return flash.refuses(scores, q, k, pos, lse, native=False)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`."""
    return flash.attend(call, q, k, v, scores, pos, lse, native=False)


def call(
    q: Tensor, k: Tensor, v: Tensor, spans: flash.Spans | None, *, scale, causal, window, slopes, cap, lse
) -> tuple[Tensor, Tensor | None]:
    """See `flash.Call`; `slopes` is None."""
    from flash_attn_interface import flash_attn_func, flash_attn_varlen_func

    options = {
        "softmax_scale": scale,
        "causal": causal,
        "window_size": (-1, -1) if window is None else (window - 1, 0 if causal else window - 1),
        "softcap": 0.0 if cap is None else cap,
        "return_attn_probs": lse,  # the sum, in spite of its name
    }
    if spans is None:
        found = flash_attn_func(q, k, v, **options)
    else:
        lengths = spans.queries, spans.keys, spans.most_queries, spans.most_keys
        found = flash_attn_varlen_func(q, k, v, *lengths, **options)
    return (found[0], found[1]) if lse else (found, None)
