"""SDPA: torch's fused attention; everything a scheme says is lowered to it exactly and without a T×T matrix."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.attention.eager import grid, visible
from positional.base import AtPair, ByDistance, Positions, Scores

can = frozenset({"slopes", "window", "bias", "keep"})

CHUNK = 512
"""Queries a call when a mask is needed: 512 × T floats a head instead of T × T."""


def refuses(q: Tensor, pos: Positions) -> str | None:
    return None


def attend(q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions) -> Tensor:
    """See `lab.attention.attend`."""
    scale = q.shape[-1] ** -0.5
    if scores.slopes is not None and pos.causal and rising(pos):
        return extra_channel(q, k, v, scores, pos, scale)[..., : v.shape[-1]]
    return masked(q, k, v, scores, pos, scale)


def masked(q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float) -> Tensor:
    """Everything but slopes: one fused call where the kernel knows the mask, else a call for each chunk of queries."""
    queries, tokens, grouped = pos.queries, pos.tokens, q.shape[1] != k.shape[1]
    if not scores.needs and pos.segments is None:
        if not pos.causal or queries == 1:
            return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
        if queries == tokens:  # `is_causal` aligns the first query with the first key: right for a square alone
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    chunks = []
    for start in range(0, queries, CHUNK):
        part = q[:, :, start : start + CHUNK]
        last = tokens - queries + start + part.shape[2] if pos.causal else tokens  # no key beyond is seen
        mask = mask_of(scores, pos, q, start, part.shape[2], last)
        chunks.append(
            F.scaled_dot_product_attention(part, k[:, :, :last], v[:, :, :last], mask, scale=scale, enable_gqa=grouped)
        )
    return torch.cat(chunks, 2) if len(chunks) > 1 else chunks[0]


def mask_of(scores: Scores, pos: Positions, q: Tensor, start: int, queries: int, keys: int) -> Tensor:
    """What to add to the scores of queries start … start+queries-1 on the first `keys` keys; -inf hides."""
    b, h, i, j = grid(q.shape[0], q.shape[1], queries, keys, q.device, start)
    seen = visible(scores, pos, b, h, i, j)
    if not scores.needs & {"bias", "slopes"}:
        return seen
    mask = torch.zeros((), device=q.device)
    if scores.bias is not None:
        mask = mask + bias_of(scores.bias, pos, start, b, h, i, j)
    if scores.slopes is not None:  # only where keys may lie ahead, so that no key-only term stands for the distance
        mask = mask - scores.slopes[h] * pos.distance(b, i, j).abs()
    mask = mask.masked_fill(~seen, float("-inf"))
    if (
        q.dtype.itemsize < mask.dtype.itemsize
    ):  # rounded: less what all keys have in common, which softmax ignores, it loses less
        mask = mask - mask.amax(-1, keepdim=True).clamp(min=torch.finfo(mask.dtype).min)
    return mask.to(q.dtype)


def bias_of(bias: AtPair, pos: Positions, start: int, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The bias of each pair, (B or 1, H, Q, T); worked out once a distance where only that matters."""
    if not (isinstance(bias, ByDistance) and pos.contiguous):
        return bias(b, h, i, j)
    queries, keys = i.shape[2], j.shape[3]
    nearest = start + pos.tokens - pos.queries - (keys - 1)  # from the first query to the last key
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


def extra_channel(q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float) -> Tensor:
    """Slopes on any causal kernel: softmax ignores what is the same for all keys of a query, so -slope·(i - j) may be
    replaced by slope·(j - centre), a product of one more channel of q (the slope) and of k (the centred position).

    Each row's scores are then offset by slope·(i - centre) from the definition's, which costs fp32 rounding in
    proportion to it; the centre halves that. In half precision the position is split into a high and a low part.
    """
    batch, heads, kv_heads, size = q.shape[0], q.shape[1], k.shape[1], q.shape[3]
    where = (pos.ids - (pos.ids[:, :1] + pos.ids[:, -1:]) // 2).to(torch.float32)  # (B or 1, T), from the centre
    slopes = (scores.slopes / scale).to(torch.float32)
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
    return masked(q, k, F.pad(v, (0, room)), Scores(None, scores.window, scores.bias, scores.keep), pos, scale)
