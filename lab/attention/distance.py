"""Attention under a learned bias by distance, and its gradient, in memory that grows with chunk · T: no T×T matrix."""

# B batch · T tokens · Q queries (the last Q of the T) · H heads · D head size · c queries of a chunk · K keys they see

import torch
from torch import Tensor

CHUNK = 256


def attend_by_distance(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale · q·k + bias[h, distance]) · v over the keys at distance 0 and more.

    q: (B, H, Q, D).   k, v: (B, H, T, D), consecutive positions.   bias: (H, T), by distance; receives its gradient.
    """
    return ByDistanceAttention.apply(q, k, v, bias, scale)


class ByDistanceAttention(torch.autograd.Function):
    """The fused kernel by chunks, keeping each log-sum-exp; for the gradient, each chunk's weights again from it."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        outs, lses = [], []
        for rows, keys, mask in chunks(q, k, bias):
            out, lse = fused(q[:, :, rows].flip(2), k[:, :, :keys], v[:, :, :keys], mask, scale)
            outs.append(out.flip(2)), lses.append(lse.flip(2))
        out, lse = torch.cat(outs, 2), torch.cat(lses, 2)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, bias, out, lse = ctx.saved_tensors
        dq, dk, dv, dbias = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(bias)
        delta = (grad * out).sum(-1, keepdim=True)  # (B, H, Q, 1)
        for rows, keys, mask in chunks(q, k, bias):
            qc, gc, kc = q[:, :, rows].flip(2), grad[:, :, rows].flip(2), k[:, :, :keys]
            weights = (qc @ kc.transpose(-1, -2)).mul_(ctx.scale).add_(mask)
            weights.sub_(lse[:, :, rows].flip(2)[..., None]).exp_()  # (B, H, c, K)
            dv[:, :, :keys] += weights.transpose(-1, -2) @ gc
            ds = (gc @ v[:, :, :keys].transpose(-1, -2)).sub_(delta[:, :, rows].flip(2)).mul_(weights)
            dq[:, :, rows] = (ds @ kc).mul_(ctx.scale).flip(2)
            dk[:, :, :keys] += (ds.transpose(-1, -2) @ qc).mul_(ctx.scale)
            if ctx.needs_input_grad[3]:
                by_distance = diagonal_sums(ds.sum(0)).flip(-1)  # nearest first: distances -(c-1) … K-1
                dbias[:, :keys] += by_distance[:, -keys:]
        return dq, dk, dv, dbias if ctx.needs_input_grad[3] else None, None


def chunks(q: Tensor, k: Tensor, bias: Tensor):
    """(rows, keys they see, (1, H, c, K) view of the bias) for each chunk of queries, its rows from last to first.

    From last to first, because then row r, column j reads one vector at r + j: a view with strides 1, 1 and no copy.
    """
    queries, tokens = q.shape[2], k.shape[2]
    for start in range(0, queries, CHUNK):
        rows = slice(start, min(start + CHUNK, queries))
        count, keys = rows.stop - rows.start, tokens - queries + rows.stop
        hidden = bias.new_full((len(bias), count - 1), float("-inf"))  # keys ahead of the query
        vector = torch.cat([bias[:, :keys].flip(-1), hidden], -1)  # distances keys-1 … 0, then ahead
        yield rows, keys, vector.as_strided((1, len(bias), count, keys), (0, vector.stride(0), 1, 1))


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output and (B, H, c) log-sum-exp under an additive mask."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scale)


def diagonal_sums(matrix: Tensor) -> Tensor:
    """(H, c, K) -> (H, c + K - 1): entry n sums the elements with r + j = n, by reading the rows one place apart."""
    heads, rows, columns = matrix.shape
    padded = torch.nn.functional.pad(matrix, (0, rows)).flatten(1)[:, :-rows]
    return padded.view(heads, rows, rows + columns - 1).sum(1)
