"""Varlen: torch's own flash kernel under the name that has windows; nothing to install; fp16 or bf16 on a GPU."""

import inspect

from torch import Tensor

from lab.attention import flash
from positional.base import Positions, Scores

can = flash.WORDS


@flash.once
def arguments() -> tuple[str, ...]:
    """What this torch's `varlen_attn` takes; empty where there is none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except Exception:
        return ()
    return tuple(inspect.signature(varlen_attn).parameters)


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    if wrong := flash.hardware(q, range(8, 100), "GPUs from Ampere on (compute capability 8.0)"):
        return wrong
    if "window_size" not in arguments():
        return "needs torch 2.11 (pip install -U torch)"
    return flash.refuses(scores, q, k, pos, lse, native=False)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`."""
    return flash.attend(call, q, k, v, scores, pos, lse, native=False)


def call(
    q: Tensor, k: Tensor, v: Tensor, spans: flash.Spans | None, *, scale, causal, window, slopes, cap, lse
) -> tuple[Tensor, Tensor | None]:
    """See `flash.Call`; `slopes` and `cap` are None."""
    if spans is None:
        batch, queries = q.shape[:2]
        out, sums = packed(*(x.flatten(0, 1) for x in (q, k, v)), flash.rows(q, k), scale, causal, window, lse)
        sums = sums.unflatten(1, (batch, queries)).transpose(0, 1) if lse else None
        return out.unflatten(0, (batch, queries)), sums
    return packed(q, k, v, spans, scale, causal, window, lse)


def packed(
    q: Tensor, k: Tensor, v: Tensor, spans: flash.Spans, scale: float, causal: bool, window: int | None, lse: bool
) -> tuple[Tensor, Tensor | None]:
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    options = {}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in arguments():
            options["enable_gqa"] = True
        else:  # torch 2.11
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if window is not None or causal:
        left = -1 if window is None else window - 1
        options["window_size"] = (left, 0 if causal else left)
    lengths = spans.queries, spans.keys, spans.most_queries, spans.most_keys
    found = varlen_attn(q, k, v, *lengths, scale=scale, return_aux=AuxRequest(lse=True) if lse else None, **options)
    return (found[0], found[1]) if lse else (found, None)  # the sum is (H, N)
