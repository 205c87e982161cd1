"""Chunks: a part of the queries on the keys they may see; what a scheme says of them, and attention written out."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H heads · D head size · a chunk: c queries on K keys

import torch
from torch import Tensor

from lab.attention.eager import grid, visible
from positional.base import AtPair, ByDistance, Positions, Scores


def reach(scores: Scores, pos: Positions, start: int, queries: int) -> slice:
    """The keys that queries start … start+queries-1 can see at all."""
    if not pos.causal:
        return slice(0, pos.tokens)
    offset = pos.tokens - pos.queries + start  # the token of the first of them
    near = scores.window is not None and scores.sinks is None
    first = max(0, offset - scores.window + 1) if near else 0
    return slice(first, offset + queries - (scores.beyond or 0))


def said(
    scores: Scores, pos: Positions, q: Tensor, start: int, queries: int, keys: slice
) -> tuple[Tensor | None, Tensor]:
    """What to add to the scores of queries start … start+queries-1 on these keys, if anything, and which are seen."""
    b, h, i, j = grid(q.shape[0], q.shape[1], queries, keys.stop - keys.start, q.device, start, keys.start)
    exact, added = torch.promote_types(q.dtype, torch.float32), []
    if scores.bias is not None:
        added.append(bias_of(scores.bias, pos, start, keys.start, b, h, i, j).to(exact))
    if scores.rows is not None:
        added.append(scores.rows(i.flatten(), j.flatten()).to(exact))
    if scores.slopes is not None:  # only where keys may lie ahead, so that no key-only term stands for the distance
        added.append(-scores.slopes.to(exact)[h] * pos.distance(b, i, j).abs())
    if scores.decay is not None:  # only of capped scores, which have no channels
        decay, first = scores.decay.to(exact), start + pos.tokens - pos.queries
        added.append(decay[..., None, keys] - decay[..., first : first + queries, None])
    return sum(added) if added else None, visible(scores, pos, b, h, i, j)


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


def learned(scores: Scores, q: Tensor, k: Tensor) -> bool:
    """Whether what is added to the scores has a gradient, seen by the last pair."""
    if not torch.is_grad_enabled():
        return False
    b, h, i, j = grid(1, 1, 1, 1, q.device, q.shape[2] - 1, k.shape[2] - 1)
    added = [None if scores.bias is None else scores.bias(b, h, i, j)]
    added += [None if scores.rows is None else scores.rows(i.flatten(), j.flatten())]
    return any(x is not None and x.requires_grad for x in (scores.slopes, scores.decay, *added))


def as_mask(added: Tensor | None, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Both as one mask: what is added, and -inf where a key is not seen; or, where nothing is added, what is seen."""
    if added is None:
        return seen
    mask = added.masked_fill(~seen, float("-inf"))
    if dtype.itemsize < mask.dtype.itemsize:  # rounded: less what all keys have in common, it loses less
        mask = mask - mask.amax(-1, keepdim=True).clamp(min=torch.finfo(mask.dtype).min)
    return mask.to(dtype)


def written_out(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, seen: Tensor, scale: float, cap: float | None
) -> tuple[Tensor, Tensor]:
    """(B, H, c, D) output and (B, H, c) log-sum-exp, at least in fp32: where no kernel has all that is asked for."""
    exact = torch.promote_types(q.dtype, torch.float32)
    s = product(q.to(exact), k.to(exact).transpose(-1, -2)) * scale
    s = s if cap is None else cap * (s / cap).tanh()
    s = s if added is None else s + added
    s = s.masked_fill(~seen, float("-inf"))
    weights = s.softmax(-1).nan_to_num()  # NaN: a query that sees nothing
    return product(weights, v.to(exact)).to(q.dtype), s.logsumexp(-1)


def product(x: Tensor, y: Tensor) -> Tensor:
    """(B, H, c, N) @ (B, G, N, M) -> (B, H, c, M): heads that share keys are one longer row, and no key is copied."""
    return (x.reshape(x.shape[0], y.shape[1], -1, x.shape[3]) @ y).view(*x.shape[:3], y.shape[3])
