"""Eager: the definition, written out; any scheme, any dtype, T×T memory. The oracle the others are held to."""

import torch
from torch import Tensor

from positional.base import Positions, Scores, row_of

can = frozenset({"slopes", "decay", "window", "sinks", "beyond", "bias", "rows", "keep", "cap"})


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool) -> str | None:
    return None


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`. Scores and softmax are at least fp32, or fp64 where the inputs are."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    exact = torch.promote_types(q.dtype, torch.float32)
    s = q.to(exact) @ k.to(exact).transpose(-1, -2) * q.shape[-1] ** -0.5  # (B, H, Q, T)
    b, h, i, j = grid(*s.shape, q.device)
    if scores.cap is not None:
        s = scores.cap * (s / scores.cap).tanh()
    if scores.slopes is not None:
        s = s - scores.slopes.to(exact)[h] * pos.distance(b, i, j).abs()
    if scores.decay is not None:
        decay = scores.decay.to(exact)
        s = s - (decay[..., -pos.queries :, None] - decay[..., None, :])
    if scores.bias is not None:
        s = s + scores.bias(b, h, i, j)
    if scores.rows is not None:
        s = s + scores.rows(i.flatten(), j.flatten())
    s = s.masked_fill(~visible(scores, pos, b, h, i, j), float("-inf"))
    # A query that sees nothing (padding) has no weights: its output is zero, like the fused kernels'.
    out = (s.softmax(-1).nan_to_num() @ v.to(exact)).to(q.dtype)
    return (out, s.logsumexp(-1)) if lse else out


def grid(batch: int, heads: int, queries: int, keys: int, device, query: int = 0, key: int = 0) -> list[Tensor]:
    """Index tensors (batch, head, query, key) that broadcast to (B, H, Q, K), counted from `query` and `key`."""
    sizes = ((0, batch), (0, heads), (query, query + queries), (key, key + keys))
    return [
        torch.arange(a, z, device=device).view([-1 if axis == mine else 1 for axis in range(4)])
        for mine, (a, z) in enumerate(sizes)
    ]


def visible(scores: Scores, pos: Positions, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Which keys each query may see, as a boolean that broadcasts to (B, H, Q, T)."""
    behind = i + (pos.tokens - pos.queries) - j  # in tokens; the last query sits on the last token
    seen = behind >= 0 if pos.causal else torch.ones_like(behind, dtype=torch.bool)
    if scores.window is not None:
        near = behind < scores.window
        if not pos.causal:
            near = near & (-behind < scores.window)
        if scores.sinks is not None:
            near = near | (pos.ids[row_of(pos.ids, b), j] < scores.sinks)
        seen = seen & near
    if scores.beyond is not None:
        seen = seen & (behind >= scores.beyond)
    if pos.segments is not None:
        mine = pos.segments_of_queries
        seen = seen & (mine[row_of(mine, b), i] == pos.segments[row_of(pos.segments, b), j])
    return seen if scores.keep is None else seen & scores.keep(b, h, i, j)
