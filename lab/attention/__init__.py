"""attend: one call for every scheme, on the fastest backend that runs it exactly."""

import re

import torch
from torch import Tensor

from lab import LabError
from lab.attention import eager, flash2, flash3, flash4, flex, sdpa, varlen
from positional.base import Positions, Scores

BACKENDS = {
    "flash3": flash3,
    "flash4": flash4,
    "flash2": flash2,
    "sdpa": sdpa,
    "varlen": varlen,
    "flex": flex,
    "eager": eager,
}  # fastest first, all but where `order` says otherwise
"""A backend is a module with `can`, the words of `Scores` it runs; `refuses(scores, q, k, pos, lse)`, the reason why it
cannot take this call, or None; and `attend(q, k, v, scores, pos, lse)`."""

Part = tuple[Tensor, Tensor, Scores]


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, backend: str = "auto", *, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q·k/√D + what `scores` says) · v, over the keys that each query may see; zero where it sees none.

    q: (B, H, Q, D), the queries of the last Q tokens, or of none (see `Positions.across`).   k, v: (B, G, T, D) with G
    dividing H; values may have another size than keys, and the output has it.   Returns (B, H, Q, D).
    backend: `auto` or one of `BACKENDS`.   lse: return also the (B, H, Q) fp32 log-sum-exp of each query's scores.
    Raises LabError when the shapes do not fit, when the backend asked for cannot run this scheme exactly, or when
    memory does not suffice.
    """
    q, k, v = (in_autocast(x) for x in (q, k, v))
    fits(q, k, v, pos)
    refuse_uncounted(scores, pos)
    name = choose(scores, q, k, pos, backend, lse)
    try:
        return BACKENDS[name].attend(q, k, v, scores, pos, lse)
    except RuntimeError as error:  # CUDA's is a kind of its own, a CPU's is not
        if "out of memory" in str(error) or "can't allocate memory" in str(error):
            raise LabError(too_much(error, name, scores, q, k, pos, lse)) from error
        raise


def attend_parts(parts: list[Part], v: Tensor, pos: Positions, backend: str = "auto") -> Tensor:
    """One softmax over keys that are split into disjoint parts, each rotated and scored in a way of its own.

    Each part is a call; its output is weighted by its share of the whole sum of exponentials.
    """
    if len(parts) == 1:
        q, k, scores = parts[0]
        return attend(q, k, v, scores, pos, backend)
    outs, sums = zip(*(attend(q, k, v, scores, pos, backend, lse=True) for q, k, scores in parts), strict=True)
    sums = torch.stack(sums)
    # Of a query that sees nothing in any part there is nothing to share out, and no gradient.
    shares = sums.masked_fill((sums == float("-inf")).all(0), 0.0).softmax(0).unbind()
    return sum(out * share[..., None].to(out.dtype) for out, share in zip(outs, shares, strict=True))


def choose(scores: Scores, q: Tensor, k: Tensor, pos: Positions, backend: str = "auto", lse: bool = False) -> str:
    """The name of the backend to use."""
    if backend == "auto":
        return next(name for name in order(scores, q, pos, lse) if obstacle(name, scores, q, k, pos, lse) is None)
    if backend not in BACKENDS:
        raise LabError(f"no attention backend `{backend}`; there are auto, {', '.join(BACKENDS)}")
    if reason := obstacle(backend, scores, q, k, pos, lse):
        able = [name for name in order(scores, q, pos, lse) if obstacle(name, scores, q, k, pos, lse) is None]
        raise LabError(f"attention: {backend} {reason}; {', '.join(able)} can, and auto picks {able[0]}")
    return backend


def order(scores: Scores, q: Tensor, pos: Positions, lse: bool = False) -> list[str]:
    """The backends in the order in which `auto` tries them; sdpa, which takes everything, before eager.

    On a CPU, sdpa runs what flex can, without compiling. On a GPU, sdpa is fast where it needs no mask and no sum, and
    else the last before eager.
    """
    if q.is_cpu:
        return [name for name in BACKENDS if name != "flex"]
    late = {"eager": 2} if sdpa.at_once(scores, pos) and not lse else {"eager": 2, "sdpa": 1}
    return sorted(BACKENDS, key=lambda name: late.get(name, 0))


def obstacle(backend: str, scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool = False) -> str | None:
    """Why this backend cannot run these scores exactly; None: it can."""
    module = BACKENDS[backend]
    if missing := sorted(scores.needs - module.can):
        return f"does not run {', '.join(missing)}"
    return module.refuses(scores, q, k, pos, lse)


def in_autocast(x: Tensor) -> Tensor:
    """As torch's own attention does; a backend must know the dtype it runs in before it splits positions by it."""
    if x.dtype == torch.float64 or x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def too_much(error: RuntimeError, name: str, scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str:
    """What did not fit, and what would."""
    asked = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    wanted = f", asking for {asked[1]}" if asked else ""
    leaner = [n for n in order(scores, q, pos, lse) if n != "eager" and obstacle(n, scores, q, k, pos, lse) is None]
    other = f"attention: {leaner[0]}, which holds no T×T matrix, or " if name == "eager" and leaner else ""
    return (
        f"out of memory in attention: {name}, {described(scores, q, k)}{wanted}. Write {other}a smaller batch "
        f"(train.batch, or a larger train.accumulate; eval.batch_tokens) or a shorter length"
    )


def described(scores: Scores, q: Tensor, k: Tensor) -> str:
    words = ", ".join(sorted(scores.needs)) or "plain scores"
    batch, heads, queries, size = q.shape
    kind = str(q.dtype).removeprefix("torch.")
    return f"{words} of batch {batch} × {heads} heads × {queries} queries × {k.shape[2]} keys of {size} ({kind})"


def fits(q: Tensor, k: Tensor, v: Tensor, pos: Positions) -> None:
    heads, kv_heads, queries, tokens = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    if queries > tokens and pos.asking is None:
        raise LabError(f"{queries} queries on {tokens} keys: queries are the last of the tokens, so at most as many")
    if heads % kv_heads or v.shape[:3] != k.shape[:3]:
        raise LabError(f"{heads} query heads cannot share keys {tuple(k.shape)} and values {tuple(v.shape)}")
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        kinds = [f"{str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (q, k, v)]
        raise LabError(f"queries are {kinds[0]}, keys {kinds[1]} and values {kinds[2]}: attention takes one kind")
    if pos.ids.device != q.device:
        raise LabError(f"positions are on {pos.ids.device}, queries on {q.device}: make them with device={q.device}")
    if pos.ids.shape[0] not in (1, q.shape[0]):
        raise LabError(f"positions are for a batch of {pos.ids.shape[0]}, attention got {q.shape[0]}")
    if (pos.queries, pos.tokens) != (queries, tokens):
        raise LabError(
            f"positions are for {pos.queries} queries on {pos.tokens} tokens, attention got {queries} on {tokens}"
        )


def refuse_uncounted(scores: Scores, pos: Positions) -> None:
    """Words that count the tokens between a key and a query say nothing where the query is no token."""
    if pos.asking is not None and (counting := sorted(scores.needs & {"window", "sinks", "beyond", "decay"})):
        raise LabError(
            f"cross-attention has no {', '.join(counting)}: they count the tokens between a key and its query, "
            "which is here none of them"
        )
