"""CoPE (contextual): positions count the tokens that a query selects (Golovneva et al. 2024, arXiv:2405.18719)."""

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Scores, Shape


class CopeContextual(Scheme):
    """score = q·(k + e[p]) / √D, where p = Σ σ(q·k / √D) over the keys from this one to the query.

    e[p] lies between the vectors of the whole numbers below and above p. Each layer has its vectors, which all heads
    share. Positions are never read: what counts is the order of the tokens, within a segment.
    positions: how many vectors, for counts of 0 … positions-1; what counts more is as the last (paper: 64).
    """

    causal_only = "it counts tokens from a key up to the query"

    def __init__(self, shape: Shape, *, positions: int = 64):
        super().__init__(shape)
        if positions < 2:
            raise SchemeError(f"cope-contextual: positions must be at least 2, got {positions}; the paper's are 64")
        self.table = nn.Parameter(torch.zeros(shape.layers, positions, shape.head_dim))

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        exact, scale = torch.promote_types(q.dtype, torch.float32), q.shape[-1] ** -0.5
        q, k, table = q.to(exact) * scale, k.to(exact).transpose(-1, -2), self.table[pos.layer].to(exact)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # (B, H, D, T)
        last, token = len(table) - 1, torch.arange(pos.tokens, device=q.device)

        @torch.autocast(q.device.type, enabled=False)
        def rows(i: Tensor, j: Tensor) -> Tensor:
            # Over all keys, not the K asked for alone: those between them and the query count too.
            own = i[:, None] + pos.tokens - pos.queries
            counts = (token <= own)[None]  # (B or 1, c, T)
            if pos.segments is not None:
                counts = counts & (pos.segments[:, own] == pos.segments[:, None])
            gates = (q[:, :, i] @ k).sigmoid() * counts[:, None]  # (B, H, c, T)
            p = gates.flip(-1).cumsum(-1).flip(-1)[..., j].clamp(max=last)
            whole = q[:, :, i] @ table.T  # (B, H, c, positions)
            below, above = whole.gather(-1, p.floor().long()), whole.gather(-1, p.ceil().long())
            return below + (p - p.floor()) * (above - below)

        return Scores(rows=rows)
