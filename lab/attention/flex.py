"""Flex: a kernel that torch compiles from what a scheme says; it skips blocks of keys that none of a block sees."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H heads · b, h, i, j: batch, head, query, key

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.exc import InductorError
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from lab import LabError
from lab.attention.chunk import learned
from lab.attention.eager import grid
from positional.base import ByDistance, Positions, Scores

can = frozenset({"slopes", "decay", "window", "sinks", "beyond", "bias", "keep", "cap"})

BLOCK = 128
"""Queries, and keys, a block."""
STRIP = 512
"""Queries whose blocks are worked out at once: STRIP × T truth values instead of T × T."""
FAR = 2**30
"""More tokens than any input has."""


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    if q.is_cpu:
        return refuses_on_cpu(scores, q, k, lse)
    if not q.is_cuda:
        return f"runs on a GPU or a CPU, not on {q.device.type}"
    if q.dtype == torch.float64:
        return "takes fp16, bf16 or fp32, not float64"
    return f"takes head sizes from 16, not {q.shape[-1]}" if q.shape[-1] < 16 else None


def refuses_on_cpu(scores: Scores, q: Tensor, k: Tensor, lse: bool) -> str | None:
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or learned(scores, q, k)):
        return "runs only forward on a CPU, without gradients (torch.no_grad())"
    if lse:
        return "returns no log-sum-exp on a CPU"
    if q.dtype == torch.float64:
        return "takes fp16, bf16 or fp32, not float64"
    return None if compiles() else "needs a C++ compiler on a CPU (install g++)"


@cache
def compiles() -> bool:
    """Whether this machine has what a kernel for its CPU is compiled with."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return bool(get_cpp_compiler())
    except Exception:
        return False


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`."""
    group = q.shape[1] // k.shape[1]
    if group & (group - 1):  # the kernel for few queries lets 1, 2, 4, … heads share keys
        k, v, group = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), 1
    options = {"enable_gqa": group > 1, "return_aux": AuxRequest(lse=True) if lse else None}
    found = kernel()(q, k, v, added(scores, pos, q.shape[1]), blocks(scores, pos, *q.shape[:2]), **options)
    return (found[0], found[1].lse) if lse else found


def kernel() -> Callable:
    """Within a model that is compiled as a whole, a part of it; else compiled on its own."""
    return flex_attention if torch.compiler.is_compiling() else compiled()


@cache
def compiled() -> Callable:
    """Compiled for each new kind of scores, and twice for lengths: once fixed, once for all.

    Whole or not at all: what torch falls back to would hold all T×T scores, without a word.
    """
    run = torch.compile(flex_attention, fullgraph=True)

    def within_limit(*args, **options):
        with torch._dynamo.config.patch(recompile_limit=64):  # 8 is for one model, not for many encodings in turn
            try:
                return run(*args, **options)
            except InductorError as error:  # torch 2.13 cannot on a CPU for few tokens under a learned bias
                tokens, line = args[1].shape[2], str(error).strip().splitlines()[0]
                raise LabError(
                    f"attention: torch cannot compile flex for {tokens} tokens here ({line}); attention: sdpa runs it"
                ) from error

    return within_limit


def added(scores: Scores, pos: Positions, heads: int) -> Callable | None:
    """(score, b, h, i, j) -> score, capped, with slopes, decay and bias."""
    slopes, decay, cap, bias = scores.slopes, scores.decay, scores.cap, bias_of(scores, pos, heads)
    if slopes is None and decay is None and cap is None and bias is None:
        return None
    distance, ahead = distance_of(pos), offset(pos)
    same = decay is not None and len(decay) == 1

    def score_mod(score, b, h, i, j):
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if slopes is not None:
            score = score - slopes[h] * distance(b, i, j).abs()
        if decay is not None:
            row = b * 0 if same else b
            score = score - (decay[row, h, i + ahead] - decay[row, h, j])
        return score if bias is None else score + bias(b, h, i, j)

    return score_mod


def bias_of(scores: Scores, pos: Positions, heads: int) -> Callable | None:
    """The bias of a pair; one of distance alone is worked out once a distance, and read."""
    if not isinstance(scores.bias, ByDistance):
        return scores.bias
    farthest = max(pos.length, pos.tokens) - 1
    vector = scores.bias.vector(torch.arange(-farthest, farthest + 1, device=pos.ids.device), heads)
    distance = distance_of(pos)
    return lambda b, h, i, j: vector[h, distance(b, i, j) + farthest]


def distance_of(pos: Positions) -> Callable:
    """(b, i, j) -> position of the query minus position of the key."""
    ids, ahead = pos.ids, offset(pos)
    if pos.asking is not None:
        asking, one = pos.asking, [len(x) == 1 for x in (pos.asking, ids)]
        return lambda b, i, j: asking[b * 0 if one[0] else b, i] - ids[b * 0 if one[1] else b, j]
    if pos.contiguous:
        return lambda b, i, j: i + ahead - j
    if len(ids) == 1:
        return lambda b, i, j: ids[0, i + ahead] - ids[0, j]
    return lambda b, i, j: ids[b, i + ahead] - ids[b, j]


def offset(pos: Positions) -> Tensor:
    """The token of the first query; a tensor, for a kernel is compiled anew for each number it is given."""
    return pos.once("first query", lambda: torch.tensor(pos.tokens - pos.queries, device=pos.ids.device))


def blocks(scores: Scores, pos: Positions, batch: int, heads: int) -> BlockMask | None:
    """Who sees whom, block by block; the same for all layers that say the same."""
    if not pos.causal and pos.segments is None and not scores.needs & {"window", "beyond", "keep"}:
        return None
    key = "flex", scores.window, scores.sinks, scores.beyond, scores.keep, batch, heads
    return pos.once(key, lambda: block_mask(sees(scores, pos), pos, batch, heads))


def sees(scores: Scores, pos: Positions) -> Callable:
    """(b, h, i, j) -> whether the query sees the key."""
    window, sinks, keep, segments, ahead = scores.window, scores.sinks, scores.keep, pos.segments, offset(pos)
    ids, shared, alike = pos.ids, segments is not None and len(segments) == 1, len(pos.ids) == 1
    across = pos.asking is not None
    nearest = 0 if pos.causal else -FAR if window is None else 1 - window
    if scores.beyond is not None:
        nearest = max(nearest, scores.beyond)

    def mask_mod(b, h, i, j):
        behind = i + ahead - j
        seen = behind >= nearest
        if window is not None:
            near = behind < window
            if sinks is not None:
                near = near | (ids[b * 0 if alike else b, j] < sinks)
            seen = seen & near
        if segments is not None:
            row = b * 0 if shared else b
            seen = seen & ((0 if across else segments[row, i + ahead]) == segments[row, j])
        return seen if keep is None else seen & keep(b, h, i, j)

    return mask_mod


def block_mask(mask_mod: Callable, pos: Positions, batch: int, heads: int) -> BlockMask:
    """Which blocks are seen in part, and which whole, from a strip of queries at a time."""
    parts, wholes = [], []
    for start in range(0, pos.queries, STRIP):
        count = min(STRIP, pos.queries - start)
        seen = mask_mod(*grid(batch, heads, count, pos.tokens, pos.ids.device, start))  # (B or 1, H or 1, count, T)
        seen = F.pad(seen, (0, -pos.tokens % BLOCK, 0, -count % BLOCK))
        seen = seen.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
        whole = seen.all(-1).all(-2)
        parts.append(seen.any(-1).any(-2) & ~whole), wholes.append(whole)
    part, whole = listed(torch.cat(parts, 2)), listed(torch.cat(wholes, 2))
    lengths = pos.queries, pos.tokens
    return BlockMask.from_kv_blocks(*part, *whole, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=lengths)


def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks are chosen for each block of queries, and which: these first, then the others."""
    order = chosen.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)
