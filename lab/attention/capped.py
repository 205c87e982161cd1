"""Capped: attention on capped scores, and its gradient, by chunks and without a T×T matrix: no kernel of SDPA caps."""

# B batch · T tokens (keys) · Q queries · H query heads · G key heads · D head size · a chunk: c queries on K keys

from collections.abc import Iterator

import torch
from torch import Tensor

from lab.attention.chunk import product, reach, said
from positional.base import Positions, Scores

CHUNK = 64
"""Queries a chunk: few enough that the scores of one are still near when the next step over them begins."""


def capped(q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float) -> tuple[Tensor, Tensor]:
    """(B, H, Q, D) output and (B, H, Q) log-sum-exp, at least in fp32, -inf where a query sees nothing.

    q: (B, H, Q, D).   k, v: (B, G, T, D).   What `scores` adds receives no gradient.
    """
    with torch.autocast(q.device.type, enabled=False):  # it would round the products to halves before they are capped
        return Capped.apply(q, k, v, scores, pos, scale)


class Capped(torch.autograd.Function):
    """Of a chunk only the log-sum-exp is kept; for the gradient its weights are made again from it."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, scale: float):
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        sums = q.new_full(q.shape[:3], float("-inf"), dtype=torch.promote_types(q.dtype, torch.float32))
        for rows, keys, mask in chunks(q, scores, pos):
            s = squashed(q[:, :, rows], k[:, :, keys], scale / scores.cap)
            s = torch.add(mask, s, alpha=scores.cap)
            weights, top = s.softmax(-1).nan_to_num_(), s.amax(-1)  # NaN: a query that sees nothing
            # The largest weight is exp(top - sum), which gives the sum without a second pass of exponentials.
            sums[:, :, rows] = torch.where(top > float("-inf"), top - weights.amax(-1).log(), top)
            out[:, :, rows] = product(weights, v[:, :, keys].to(s.dtype))
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.scores, ctx.pos, ctx.scale = scores, pos, scale
        return out, sums

    @staticmethod
    def backward(ctx, grad: Tensor, dsums: Tensor):
        with torch.autocast(grad.device.type, enabled=False):
            return *gradients(*ctx.saved_tensors, grad, dsums, ctx.scores, ctx.pos, ctx.scale), None, None, None


def gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    grad: Tensor,
    dsums: Tensor,
    scores: Scores,
    pos: Positions,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """What goes back to q, k and v from the gradients of the output and of the sums."""
    exact, kv_heads = sums.dtype, k.shape[1]
    dq, dk, dv = (torch.zeros_like(x, dtype=exact) for x in (q, k, v))
    delta = (grad.to(exact) * out).sum(-1) - dsums  # what all keys of a query have in common
    for rows, keys, mask in chunks(q, scores, pos):
        qc, gc, kc, vc = (x.to(exact) for x in (q[:, :, rows], grad[:, :, rows], k[:, :, keys], v[:, :, keys]))
        s = squashed(qc, kc, scale / scores.cap)
        weights = torch.add(mask, s, alpha=scores.cap).sub_(finite(sums[:, :, rows])).exp_()
        dv[:, :, keys] += by_key(weights, gc, kv_heads)
        ds = product(gc, vc.transpose(-1, -2)).sub_(delta[:, :, rows, None]).mul_(weights)
        ds.addcmul_(ds, s.square_(), value=-1)  # the slope of tanh
        dq[:, :, rows] = product(ds, kc).mul_(scale)
        dk[:, :, keys] += by_key(ds, qc, kv_heads).mul_(scale)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def chunks(q: Tensor, scores: Scores, pos: Positions) -> Iterator[tuple[slice, slice, Tensor]]:
    """(rows, keys they see, (B or 1, H or 1, c, K) what is added, -inf where a key is not seen) for each chunk."""
    exact = torch.promote_types(q.dtype, torch.float32)
    for start in range(0, pos.queries, CHUNK):
        count = min(CHUNK, pos.queries - start)
        keys = reach(scores, pos, start, count)
        if keys.start < keys.stop:
            added, seen = said(scores, pos, q, start, count, keys)
            added = torch.zeros((), dtype=exact, device=q.device) if added is None else added
            yield slice(start, start + count), keys, added.masked_fill(~seen, float("-inf"))


def squashed(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(B, H, c, K) tanh(scale · q·k), at least in fp32."""
    exact = torch.promote_types(q.dtype, torch.float32)
    return product(q.to(exact) * scale, k.to(exact).transpose(-1, -2)).tanh_()


def finite(sums: Tensor) -> Tensor:
    """(B, H, c) -> (B, H, c, 1), zero where a query sees nothing: its weights are then zero, and not undefined."""
    return sums.masked_fill(sums == float("-inf"), 0.0)[..., None]


def by_key(weights: Tensor, x: Tensor, kv_heads: int) -> Tensor:
    """(B, H, c, K) weights of (B, H, c, D) -> (B, G, K, D), summed over the queries and heads that see each key."""
    weights, x = (one.unflatten(1, (kv_heads, -1)).flatten(2, 3) for one in (weights, x))
    return weights.transpose(-1, -2) @ x
