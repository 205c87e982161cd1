"""SDPA: torch's fused attention; everything a scheme says is lowered to it exactly and without a T×T matrix."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.attention.distance import attend_by_distance
from lab.attention.eager import grid, visible
from positional.base import AtPair, ByDistance, Positions, Scores

can = frozenset({"slopes", "window", "beyond", "bias", "keep"})

CHUNK = 512
"""Queries a call when a mask is needed: 512 × T floats a head instead of T × T."""


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    if lse and not (q.is_cpu and q.dtype in (torch.float32, torch.float64)):
        return "returns a log-sum-exp only on a CPU in fp32"
    if lse and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return "returns a log-sum-exp without its gradient"
    return None


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`."""
    scale, size, slopes = q.shape[-1] ** -0.5, v.shape[-1], scores.slopes
    if (bias := bias_vector(q, scores, pos)) is not None and not lse:
        group = q.shape[1] // k.shape[1]
        return attend_by_distance(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), bias, scale)
    if slopes is None or not (pos.causal and rising(pos)):
        out, sums = masked(q, k, v, scores, pos, scale, lse)
    else:
        q, k, v = extra_channel(q, k, v, slopes, pos, scale)
        out, sums = masked(q, k, v, replace(scores, slopes=None), pos, scale, lse)
        sums = sums - missed(slopes, pos) if lse else None
    return (out[..., :size], sums) if lse else out[..., :size]


def bias_vector(q: Tensor, scores: Scores, pos: Positions) -> Tensor | None:
    """(H, T) biases by distance where they are all there is to say, and the kernel for them is there; else None."""
    plain = pos.causal and pos.contiguous and pos.segments is None and q.is_cpu and q.dtype == torch.float32
    if not (plain and scores.needs == {"bias"} and isinstance(scores.bias, ByDistance)):
        return None
    return scores.bias.vector(torch.arange(pos.tokens), q.shape[1])


def masked(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float, lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Everything but slopes: one fused call where the kernel knows the mask, else a call for each chunk of queries.

    A chunk is given only the keys that some query of it may see, so that a window costs T · window and not T².
    """
    queries, tokens = pos.queries, pos.tokens
    if at_once(scores, pos):
        if pos.causal and queries > 1:  # not worked out as an argument: compiled for any length it would be no bool
            return fused(q, k, v, None, scale, lse, causal=True)
        return fused(q, k, v, None, scale, lse)
    if scores.needs == {"window"} and pos.segments is None and pos.causal and queries == tokens > 2 * scores.window:
        if not lse:
            return banded(q, k, v, scores.window, scale), None
    outs, sums = [], []
    for start in range(0, queries, CHUNK):
        part = q[:, :, start : start + CHUNK]
        keys = reach(scores, pos, start, part.shape[2])
        if keys.start >= keys.stop:
            out, total = part.new_zeros(*part.shape[:3], v.shape[3]), part.new_full(part.shape[:3], float("-inf"))
        else:
            mask = mask_of(scores, pos, q, start, part.shape[2], keys)
            out, total = fused(part, k[:, :, keys], v[:, :, keys], mask, scale, lse)
        outs.append(out), sums.append(total)
    if len(outs) == 1:
        return outs[0], sums[0]
    return torch.cat(outs, 2), torch.cat(sums, 2) if lse else None


def at_once(scores: Scores, pos: Positions) -> bool:
    """Whether one call without a mask does it; slopes alone become a channel.

    `is_causal` aligns the first query with the first key, which is right for a square and, left out, for one query.
    """
    if scores.needs - {"slopes"} or pos.segments is not None:
        return False
    if scores.slopes is not None and not (pos.causal and rising(pos)):
        return False
    return not pos.causal or pos.queries in (1, pos.tokens)


def banded(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float) -> Tensor:
    """A window over all tokens as one call: blocks of queries are a batch, each with its own keys and those before.

    Slicing keys block by block would make each block's gradient a tensor of all T; here they add up in one pass.
    """
    size = min(max(window, 64), 256)  # queries a block; each sees `window` keys before the block and the block itself
    batch, _, tokens, _ = q.shape
    blocks = -(-tokens // size)
    tail = blocks * size - tokens
    keys = window + size
    q = F.pad(q, (0, 0, 0, tail)).unflatten(2, (blocks, size)).transpose(1, 2).flatten(0, 1)  # (B·n, H, size, D)
    k, v = (F.pad(x, (0, 0, window, tail)).unfold(2, keys, size).permute(0, 2, 1, 4, 3).flatten(0, 1) for x in (k, v))
    behind = torch.arange(size, device=q.device)[:, None] + window - torch.arange(keys, device=q.device)
    seen = (behind >= 0) & (behind < window)
    token = torch.arange(keys, device=q.device) + size * torch.arange(blocks, device=q.device)[:, None] - window
    seen = seen & (token >= 0)[:, None]  # (n, size, keys); there is no token before the first
    mask = seen.repeat(batch, 1, 1)[:, None]
    out, _ = fused(q, k, v, mask, scale, lse=False)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, lse: bool, causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    """One call of the kernel; it gives out the log-sum-exp only under its inner name."""
    group = q.shape[1] // k.shape[1]
    # On a GPU, only the kernel for halves without a mask knows shared keys; for the rest torch would hold all scores.
    if group > 1 and (lse or (q.is_cuda and (mask is not None or q.dtype not in (torch.float16, torch.bfloat16)))):
        k, v, group = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), 1
    if not lse:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=group > 1), None
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros((), dtype=q.dtype).masked_fill(~mask, float("-inf"))
        mask = mask.expand(q.shape[0], q.shape[1], -1, -1)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, sums = kernel(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    if mask is not None:  # for a query that sees nothing the kernel leaves a sum that is no sum
        sums = sums.masked_fill((mask == float("-inf")).all(-1), float("-inf"))
    return out, sums


def reach(scores: Scores, pos: Positions, start: int, queries: int) -> slice:
    """The keys that queries start … start+queries-1 can see at all."""
    if not pos.causal:
        return slice(0, pos.tokens)
    offset = pos.tokens - pos.queries + start  # the token of the first of them
    first = 0 if scores.window is None else max(0, offset - scores.window + 1)
    return slice(first, offset + queries - (scores.beyond or 0))


def mask_of(scores: Scores, pos: Positions, q: Tensor, start: int, queries: int, keys: slice) -> Tensor:
    """What to add to the scores of queries start … start+queries-1 on these keys, or which of them are seen."""
    b, h, i, j = grid(q.shape[0], q.shape[1], queries, keys.stop - keys.start, q.device, start, keys.start)
    seen = visible(scores, pos, b, h, i, j)
    if not scores.needs & {"bias", "slopes"}:
        return seen
    mask = torch.zeros((), device=q.device)
    if scores.bias is not None:
        mask = mask + bias_of(scores.bias, pos, start, keys.start, b, h, i, j)
    if scores.slopes is not None:  # only where keys may lie ahead, so that no key-only term stands for the distance
        mask = mask - scores.slopes[h] * pos.distance(b, i, j).abs()
    mask = mask.masked_fill(~seen, float("-inf"))
    if q.dtype.itemsize < mask.dtype.itemsize:  # rounded: less what all keys have in common, it loses less
        mask = mask - mask.amax(-1, keepdim=True).clamp(min=torch.finfo(mask.dtype).min)
    return mask.to(q.dtype)


def bias_of(bias: AtPair, pos: Positions, query: int, key: int, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The bias of each pair from `query` and `key` on, (B or 1, H, Q, K); worked out once a distance if it can."""
    if not (isinstance(bias, ByDistance) and pos.contiguous):
        return bias(b, h, i, j)
    queries, keys = i.shape[2], j.shape[3]
    nearest = query + pos.tokens - pos.queries - (key + keys - 1)  # from the first query to the last key
    distances = torch.arange(nearest, nearest + queries + keys - 1, device=i.device)
    vector = bias.vector(distances, h.shape[1])  # (H, queries + keys - 1)
    # Row i, column j reads the entry of distance nearest + i + (keys-1-j): a window that slides by one, read backwards.
    return vector.unfold(-1, keys, 1).flip(-1)[None]


def rising(pos: Positions) -> bool:
    """Whether no key that a query sees has a later position: what lets a key-only term stand for the distance."""
    if pos.contiguous:
        return True
    return pos.once("rising", lambda: bool(rises(pos.ids, pos.segments).all()))


def rises(ids: Tensor, segments: Tensor | None) -> Tensor:
    """Where positions go up from token to token, or a later segment begins."""
    steps = ids.diff(dim=-1) >= 0
    if segments is None:
        return steps
    change = segments.diff(dim=-1)
    return (change > 0) | (steps & (change == 0))


def centre(pos: Positions) -> Tensor:
    """(B or 1, 1): the middle of each row's positions."""
    return (pos.ids[:, :1] + pos.ids[:, -1:]) // 2


def missed(slopes: Tensor, pos: Positions) -> Tensor:
    """What the extra channel leaves out of every score of a query: (B or 1, H, Q)."""
    return slopes[:, None] * (pos.of_queries - centre(pos))[:, None]


def extra_channel(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, pos: Positions, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes on any causal kernel: softmax ignores what is the same for all keys of a query, so -slope·(i - j) may be
    replaced by slope·(j - centre), a product of one more channel of q (the slope) and of k (the centred position).

    Each row's scores are then offset by slope·(i - centre) from the definition's, which costs fp32 rounding in
    proportion to it; the centre halves that. In half precision the position is split into a high and a low part.
    """
    batch, heads, kv_heads, size = q.shape[0], q.shape[1], k.shape[1], q.shape[3]
    where = (pos.ids - centre(pos)).to(torch.float32)  # (B or 1, T)
    slopes = (slopes / scale).to(torch.float32)
    if q.dtype in (torch.float32, torch.float64):
        q_parts, k_parts = [slopes], [where]
    else:
        coarse = (where / 256).round() * 256  # at most 8 significant bits up to 65536 tokens, like the rest below 256
        steep = slopes.to(q.dtype).float()
        rest = (slopes - steep).to(q.dtype).float()
        q_parts, k_parts = [steep, steep, rest, rest], [coarse, where - coarse, coarse, where - coarse]
    room = -(-(size + len(q_parts)) // 8) * 8 - size if q.is_cuda else len(q_parts)  # GPU kernels want multiples of 8
    q_more = torch.stack(q_parts, -1)[None, :, None, :].expand(batch, heads, q.shape[2], -1).to(q.dtype)
    k_more = torch.stack(k_parts, -1)[:, None].expand(batch, kv_heads, pos.tokens, -1).to(k.dtype)
    q = torch.cat([q, F.pad(q_more, (0, room - len(q_parts)))], -1)
    k = torch.cat([k, F.pad(k_more, (0, room - len(k_parts)))], -1)
    return q, k, F.pad(v, (0, room))
