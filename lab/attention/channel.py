"""Channels: what adds to a score by its key alone, as more channels of q and k: any kernel then runs it, unmasked."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads that each serve H/G of them

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from positional.base import Positions, Scores

# Softmax ignores what is the same for all keys of a query. So -slope·(i - j) may be replaced by slope·(j - centre), a
# product of one more channel of q (the slope) and of k (the centred position), and -(decay[i] - decay[j]) likewise.
#
# Each row's scores are then offset by slope·(i - centre) from the definition's, which costs fp32 rounding in proportion
# to it; the centre halves that. In half precision a number is split into parts that it can hold.

HALVES = (torch.float16, torch.bfloat16)


def split(scores: Scores, pos: Positions) -> tuple[Scores, Scores]:
    """The words that are channels here, and the others. Slopes are where no key that a query sees has a later place.

    None are where scores are capped: what is a part of the product would be capped with it.
    """
    if scores.cap is not None:
        return Scores(), scores
    slopes = scores.slopes if scores.slopes is not None and pos.causal and rising(pos) else None
    left = None if slopes is not None else scores.slopes
    return Scores(slopes=slopes, decay=scores.decay), replace(scores, slopes=left, decay=None)


def add(q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys with the channels of these scores, and values made as wide."""
    group = q.shape[1] // k.shape[1]
    pairs = []
    if scores.slopes is not None:
        pairs += of_slopes((scores.slopes / scale).float(), pos, q.dtype)
    if scores.decay is not None:
        pairs += of_decay(scores.decay, pos, group, scale, q.dtype)
    room = width(scores, q, group)
    q, k = (
        torch.cat([x, stacked([pair[mine] for pair in pairs], x, room)], -1) for mine, x in enumerate((q, k))
    )  # (B, H, Q, D + room), (B, G, T, D + room)
    return q, k, F.pad(v, (0, room))


def stacked(parts: list[Tensor], x: Tensor, room: int) -> Tensor:
    """Channels that broadcast to those of x (B, heads, tokens, D): (B, heads, tokens, room), the rest zero."""
    more = torch.stack([part.to(x.dtype).expand(x.shape[:3]) for part in parts], -1)
    return F.pad(more, (0, room - len(parts)))


def width(scores: Scores, q: Tensor, group: int) -> int:
    """How many channels these scores take."""
    halves = q.dtype in HALVES
    slopes = 0 if scores.slopes is None else 4 if halves else 1
    decay = 0 if scores.decay is None else 3 * group if halves else group
    return -(-(slopes + decay) // 8) * 8 if q.is_cuda else slopes + decay  # GPU kernels want multiples of 8


def of_slopes(slopes: Tensor, pos: Positions, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Pairs of (1, H, 1) for the queries and (B or 1, 1, T) for the keys, whose products add up to what is added."""
    slopes, where = slopes[None, :, None], (pos.ids - centre(pos)).to(torch.float32)[:, None]
    if dtype not in HALVES:
        return [(slopes, where)]
    coarse = (where / 256).round() * 256  # at most 8 significant bits up to 65536 tokens, like the rest below 256
    steep = slopes.to(dtype).float()
    return [(part, place) for part in (steep, slopes - steep) for place in (coarse, where - coarse)]


def of_decay(
    decay: Tensor, pos: Positions, group: int, scale: float, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """As `of_slopes`. Heads that share a key have a channel each, which is zero in the queries of the others."""
    # A power of two in the queries, which every dtype holds, and what it lacks to 1 / scale in the keys.
    unit = 2.0 ** math.ceil(math.log2(1 / scale))
    heads = torch.arange(decay.shape[1], device=decay.device)
    mine = [(heads % group == member)[None, :, None] * unit for member in range(group)]
    decay = decay.to(torch.promote_types(dtype, torch.float32))
    below = (decay - middle(decay, pos)) / (scale * unit)  # (B or 1, H, T)
    parts = in_parts(below, dtype) if dtype in HALVES else [below]
    return [(mine[member], part[:, member::group]) for part in parts for member in range(group)]


def in_parts(x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Three numbers of this dtype that add up to one in fp32; the first has its gradient."""
    high = x.to(dtype)
    rest = (x - high).detach()
    low = rest.to(dtype)
    return [high, low, rest - low]


def missed(scores: Scores, pos: Positions, dtype: torch.dtype) -> Tensor | float:
    """What the channels leave out of every score of a query of this dtype: (B or 1, H, Q)."""
    out, exact = 0.0, torch.promote_types(dtype, torch.float32)
    if scores.slopes is not None:
        out = out + scores.slopes.to(exact)[:, None] * (pos.of_queries - centre(pos))[:, None]
    if scores.decay is not None:
        decay = scores.decay.to(exact)
        out = out + (decay - middle(decay, pos))[..., pos.tokens - pos.queries :]
    return out


def centre(pos: Positions) -> Tensor:
    """(B or 1, 1): the middle of each row's positions."""
    return (pos.ids[:, :1] + pos.ids[:, -1:]) // 2


def middle(decay: Tensor, pos: Positions) -> Tensor:
    """(B or 1, H, 1): the middle of each row's decay; any number would do, so that it has no gradient.

    Zero where a row holds several documents: the bits of one must not follow from another.
    """
    ends = (decay[..., :1] + decay[..., -1:]).detach() / 2
    return ends if pos.segments is None else torch.zeros_like(ends)


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
