"""Relative (Shaw): a learned vector for each distance, added to the key (Shaw et al. 2018, arXiv:1803.02155)."""

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Scores, Shape


class RelativeShaw(Scheme):
    """score = q·(k + a[distance]) / √D, distances beyond `farthest` counted as it, ahead as behind.

    farthest: tokens (paper: 16).
    Each layer has its vectors, which all heads share. The paper's second set of vectors, added to the values, is no
    matter of scores and is left out; by its ablation the first alone does as well.
    """

    def __init__(self, shape: Shape, *, farthest: int = 16):
        super().__init__(shape)
        if farthest < 1:
            raise SchemeError(f"relative-shaw: farthest must be at least 1 token, got {farthest}; the paper's is 16")
        self.farthest = farthest
        self.table = nn.Parameter(torch.zeros(shape.layers, 2 * farthest + 1, shape.head_dim))

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        exact, farthest = torch.promote_types(q.dtype, torch.float32), self.farthest
        with torch.autocast(q.device.type, enabled=False):
            products = q.to(exact) @ self.table[pos.layer].to(exact).T  # (B, H, Q, 2·farthest + 1)

        def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = pos.distance(b, i, j).clamp(-farthest, farthest)
            return products[b, h, i, distance + farthest] * q.shape[-1] ** -0.5

        return Scores(bias=bias)
