"""SDPA: torch's fused attention; everything a scheme says is lowered to it exactly and without a T×T matrix."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size · n blocks

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lab.attention import channel
from lab.attention.capped import capped
from lab.attention.chunk import as_mask, learned, reach, said, written_out
from lab.attention.distance import attend_by_distance
from lab.attention.summed import runs, summed
from positional.base import ByDistance, Positions, Scores

can = frozenset({"slopes", "decay", "window", "sinks", "beyond", "bias", "rows", "keep", "cap"})

CHUNK = 512
"""Queries a chunk: 512 × T floats a head instead of T × T."""
KEPT = 2**22
"""Pairs of tokens whose masks may be kept for the gradient: all of 2048 tokens. Of more, chunks are run once more."""


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    return None


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`."""
    scale, size = q.shape[-1] ** -0.5, v.shape[-1]
    if (bias := bias_vector(q, scores, pos)) is not None and not lse:
        group = q.shape[1] // k.shape[1]
        return attend_by_distance(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), bias, scale)
    if scores.cap is not None and not learned(scores, q, k):
        out, sums = capped(q, k, v, scores, pos, scale)
        return (out, sums) if lse else out
    by_key, scores = channel.split(scores, pos)
    if by_key.needs:
        q, k, v = channel.add(q, k, v, by_key, pos, scale)
    out, sums = masked(q, k, v, scores, pos, scale, lse)
    return (out[..., :size], sums - channel.missed(by_key, pos, q.dtype)) if lse else out[..., :size]


def bias_vector(q: Tensor, scores: Scores, pos: Positions) -> Tensor | None:
    """(H, T) biases by distance where they are all there is to say, and the kernel for them is there; else None."""
    plain = pos.causal and pos.contiguous and pos.segments is None and q.is_cpu and q.dtype == torch.float32
    if not (plain and scores.needs == {"bias"} and isinstance(scores.bias, ByDistance)):
        return None
    return scores.bias.vector(torch.arange(pos.tokens), q.shape[1])


def masked(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float, lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Everything but channels: one fused call where the kernel knows the mask, else a call for each chunk of queries.

    A chunk is given only the keys that some query of it may see, so that a window costs T · window and not T².
    """
    if not lse or runs(q):
        if at_once(scores, pos):
            # Not worked out as an argument: compiled for any length it would be no bool.
            if pos.causal and pos.queries > 1:
                return fused(q, k, v, None, scale, lse, causal=True)
            return fused(q, k, v, None, scale, lse)
        if scores.needs == {"beyond"} and at_once(Scores(), pos) and pos.causal:
            return set_back(q, k, v, scores.beyond, pos, scale, lse)
        if in_bands(scores, pos):
            return banded(q, k, v, scores.window, scores.sinks or 0, scale, lse)
    outs, sums = zip(*chunks(q, k, v, scores, pos, scale, lse), strict=True)
    if len(outs) == 1:
        return outs[0], sums[0]
    return torch.cat(outs, 2), torch.cat(sums, 2) if lse else None


def at_once(scores: Scores, pos: Positions) -> bool:
    """Whether one call without a mask does it; slopes and decay alone become channels.

    `is_causal` aligns the first query with the first key, which is right for a square and, left out, for one query.
    """
    if channel.split(scores, pos)[1].needs or pos.segments is not None:
        return False
    return not pos.causal or pos.queries in (1, pos.tokens)


def set_back(
    q: Tensor, k: Tensor, v: Tensor, gap: int, pos: Positions, scale: float, lse: bool
) -> tuple[Tensor, Tensor | None]:
    """`beyond` is causality that ends earlier: without the last keys, and the queries this leaves with none."""
    first, keys = max(0, gap - (pos.tokens - pos.queries)), pos.tokens - gap
    if keys < 1:
        return torch.zeros_like(q), q.new_full(q.shape[:3], float("-inf")) if lse else None
    out, sums = fused(q[:, :, first:], k[:, :, :keys], v[:, :, :keys], None, scale, lse, causal=pos.queries > 1)
    return F.pad(out, (0, 0, first, 0)), F.pad(sums, (first, 0), value=float("-inf")) if lse else None


def in_bands(scores: Scores, pos: Positions) -> bool:
    """Whether a window is all there is, but for sinks that are the first tokens."""
    if not {"window"} <= scores.needs <= {"window", "sinks"} or pos.segments is not None or not pos.causal:
        return False
    if scores.sinks is not None and not (pos.contiguous and pos.length == pos.tokens):
        return False
    return pos.queries == pos.tokens > 2 * scores.window + (scores.sinks or 0)


def banded(
    q: Tensor, k: Tensor, v: Tensor, window: int, sinks: int, scale: float, lse: bool
) -> tuple[Tensor, Tensor | None]:
    """A window over all tokens as one call: blocks of queries are a batch, each with its own keys and those before.

    Slicing keys block by block would make each block's gradient a tensor of all T; here they add up in one pass. The
    keys of the first tokens, the sinks, are given to every block once more, and seen by those whose window left them.
    """
    size = min(max(window, 64), 256)  # queries a block; each sees `window` keys before the block and the block itself
    batch, _, tokens, _ = q.shape
    blocks = -(-tokens // size)
    tail = blocks * size - tokens
    keys = window + size
    q = F.pad(q, (0, 0, 0, tail)).unflatten(2, (blocks, size)).transpose(1, 2).flatten(0, 1)  # (B·n, H, size, D)
    k, v = (in_blocks(x, window, tail, keys, size, sinks) for x in (k, v))  # (B·n, G, sinks + keys, D)
    queries = torch.arange(blocks * size, device=q.device).view(blocks, size, 1)
    first = queries[:, :1] - window
    token = torch.arange(keys, device=q.device) + first  # (n, 1, keys)
    near = (token >= 0) & (token <= queries) & (token > queries - window)  # there is no token before the first
    far = torch.arange(sinks, device=q.device) <= queries - window
    mask = torch.cat([far, near], -1).repeat(batch, 1, 1)[:, None]  # (B·n, 1, size, sinks + keys)
    out, sums = fused(q, k, v, mask, scale, lse)
    out, sums = (
        None if x is None else x.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]
        for x in (out, sums)
    )
    return out, sums


def in_blocks(x: Tensor, before: int, tail: int, keys: int, size: int, sinks: int) -> Tensor:
    """(B, G, T, D) -> (B·n, G, sinks + keys, D): the first `sinks`, then those of a block and `before` it."""
    blocks = F.pad(x, (0, 0, before, tail)).unfold(2, keys, size).permute(0, 2, 1, 4, 3)  # (B, n, G, keys, D)
    if sinks:
        first = x[:, None, :, :sinks].expand(-1, blocks.shape[1], -1, -1, -1)
        blocks = torch.cat([first, blocks], 3)
    return blocks.flatten(0, 1)


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, lse: bool, causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    """One call of the kernel."""
    k, v = apart(q, k, v, lse, mask is not None)
    if lse:
        return summed(q, k, v, mask, scale, causal)
    shared = q.shape[1] > k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=shared), None


def apart(q: Tensor, k: Tensor, v: Tensor, lse: bool, mask: bool) -> tuple[Tensor, Tensor]:
    """Keys and values, a copy for each head where the kernel does not know shared ones.

    On a GPU only that for halves without a mask does; for the rest torch would hold all scores.
    """
    group, halves = q.shape[1] // k.shape[1], q.dtype in (torch.float16, torch.bfloat16)
    if group > 1 and (lse or (q.is_cuda and (mask or not halves))):
        return k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return k, v


def chunks(q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float, lse: bool) -> list:
    """The output and sum of each chunk. What is added to the scores may have a gradient, which no kernel has, or the
    sum be asked for where none gives it; then a chunk is written out, and again for its gradient, as one of many
    chunks is: no T×T is kept, not even of masks."""
    written = learned(scores, q, k) or (lse and not runs(q))
    again = torch.is_grad_enabled() and (written or pos.queries * pos.tokens > KEPT)
    how = {"use_reentrant": False, "preserve_rng_state": False}
    if not written:
        k, v = apart(q, k, v, lse, mask=True)  # once, so that what each chunk keeps of them is a view
    found = []
    for start in range(0, pos.queries, CHUNK):
        call = q, k, v, scores, pos, scale, lse, start, written
        found.append(checkpoint(chunk, *call, **how) if again else chunk(*call))
    return found


def chunk(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float, lse: bool, start: int, written: bool
) -> tuple[Tensor, Tensor | None]:
    """What the queries from `start` on see."""
    q_part = q[:, :, start : start + CHUNK]
    keys = reach(scores, pos, start, q_part.shape[2])
    if keys.start >= keys.stop:
        exact = torch.promote_types(q.dtype, torch.float32)
        return torch.zeros_like(q_part), q.new_full(q_part.shape[:3], float("-inf"), dtype=exact) if lse else None
    k, v = k[:, :, keys], v[:, :, keys]
    added, seen = said(scores, pos, q, start, q_part.shape[2], keys)
    if written:
        return written_out(q_part, k, v, added, seen, scale, scores.cap)
    return fused(q_part, k, v, as_mask(added, seen, q.dtype), scale, lse)
