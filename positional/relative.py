"""Relative (T5): a learned bias per head for each bucket of distances (Raffel et al. 2020, arXiv:1910.10683)."""

import math

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Scores, Shape


class Relative(Scheme):
    """Half of the buckets hold one distance each, the others ever more, the last all from `farthest` on.

    buckets: how many a head has (T5: 32).   farthest: tokens (T5: 128).
    One table serves all layers. Scores keep their 1/√D, which T5 itself folds into its weights.
    """

    def __init__(self, shape: Shape, *, buckets: int = 32, farthest: int = 128):
        super().__init__(shape)
        if buckets < 4 or buckets % 4:
            raise SchemeError(f"relative: buckets must be a positive multiple of 4, got {buckets}; T5 has 32")
        if farthest <= buckets // 2:
            raise SchemeError(f"relative: farthest must exceed buckets/2 = {buckets // 2}, got {farthest}; T5 has 128")
        self.buckets, self.farthest = buckets, farthest
        self.table = nn.Parameter(torch.zeros(buckets, shape.heads))

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        return Scores.of_distance(lambda d, h: self.table.float()[self.bucket(d, pos.causal), h], pos)

    def bucket(self, distance: Tensor, causal: bool) -> Tensor:
        """Distances (query minus key) -> bucket numbers. Keys ahead: bucket 0 if causal, else a half of their own."""
        buckets, ahead = self.buckets, 0
        if not causal:
            buckets //= 2
            ahead, distance = buckets * (distance < 0), distance.abs()
        distance, exact = distance.clamp(min=0), buckets // 2
        log = (distance.clamp(min=1) / exact).log() / math.log(self.farthest / exact)
        far = (exact + log * (buckets - exact)).long().clamp(max=buckets - 1)
        return ahead + torch.where(distance < exact, distance, far)
