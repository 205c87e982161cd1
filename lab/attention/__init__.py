"""attend: one call for every scheme, on the fastest backend that runs it exactly."""

import torch
from torch import Tensor

from lab import LabError
from lab.attention import eager, sdpa
from positional.base import Positions, Scores

BACKENDS = {"sdpa": sdpa, "eager": eager}  # fastest first
"""A backend is a module with `can`, the words of `Scores` it runs; `refuses(q, k, pos, lse)`, the reason why it cannot
take this call, or None; and `attend(q, k, v, scores, pos, lse)`."""

Part = tuple[Tensor, Tensor, Scores]


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, backend: str = "auto", *, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q·k/√D + what `scores` says) · v, over the keys that each query may see; zero where it sees none.

    q: (B, H, Q, D), the queries of the last Q tokens.   k, v: (B, G, T, D) with G dividing H.   Returns (B, H, Q, D).
    backend: `auto` or one of `BACKENDS`.   lse: return also the (B, H, Q) fp32 log-sum-exp of each query's scores.
    Raises LabError when the shapes do not fit, or when the backend asked for cannot run this scheme exactly.
    """
    fits(q, k, v, pos)
    return BACKENDS[choose(scores, q, k, pos, backend, lse)].attend(q, k, v, scores, pos, lse)


def attend_parts(parts: list[Part], v: Tensor, pos: Positions, backend: str = "auto") -> Tensor:
    """One softmax over keys that are split into disjoint parts, each rotated and scored in a way of its own.

    Each part is a call; its output is weighted by its share of the whole sum of exponentials.
    """
    if len(parts) == 1:
        q, k, scores = parts[0]
        return attend(q, k, v, scores, pos, backend)
    outs, sums = zip(*(attend(q, k, v, scores, pos, backend, lse=True) for q, k, scores in parts), strict=True)
    shares = torch.stack(sums).softmax(0).nan_to_num().unbind()  # NaN: a query that sees nothing in any part
    return sum(out * share[..., None].to(out.dtype) for out, share in zip(outs, shares, strict=True))


def choose(scores: Scores, q: Tensor, k: Tensor, pos: Positions, backend: str = "auto", lse: bool = False) -> str:
    """The name of the backend to use."""
    if backend == "auto":
        # The last takes everything.
        return next(name for name in BACKENDS if obstacle(name, scores, q, k, pos, lse) is None)
    if backend not in BACKENDS:
        raise LabError(f"no attention backend `{backend}`; there are auto, {', '.join(BACKENDS)}")
    if reason := obstacle(backend, scores, q, k, pos, lse):
        able = [name for name in BACKENDS if obstacle(name, scores, q, k, pos, lse) is None]
        raise LabError(f"attention: {backend} {reason}; {', '.join(able)} can, and auto picks {able[0]}")
    return backend


def obstacle(backend: str, scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool = False) -> str | None:
    """Why this backend cannot run these scores exactly; None: it can."""
    module = BACKENDS[backend]
    if missing := sorted(scores.needs - module.can):
        return f"does not run {', '.join(missing)}"
    return module.refuses(q, k, pos, lse)


def fits(q: Tensor, k: Tensor, v: Tensor, pos: Positions) -> None:
    heads, kv_heads, queries, tokens = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    if queries > tokens:
        raise LabError(f"{queries} queries on {tokens} keys: queries are the last of the tokens, so at most as many")
    if heads % kv_heads or v.shape[:3] != k.shape[:3]:
        raise LabError(f"{heads} query heads cannot share keys {tuple(k.shape)} and values {tuple(v.shape)}")
    if pos.ids.shape[0] not in (1, q.shape[0]):
        raise LabError(f"positions are for a batch of {pos.ids.shape[0]}, attention got {q.shape[0]}")
    if (pos.queries, pos.tokens) != (queries, tokens):
        raise LabError(
            f"positions are for {pos.queries} queries on {pos.tokens} tokens, attention got {queries} on {tokens}"
        )
