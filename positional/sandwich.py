"""Sandwich: the fixed inner product of two tokens' sinusoids as a bias (Chi et al. 2023, arXiv:2212.10356)."""

import torch
from torch import Tensor

from positional.base import Positions, Scheme, SchemeError, Scores, Shape


class Sandwich(Scheme):
    """score += (Σ cos(distance / 10000^(2i/width)) - width/2) / (8h/H), over i = 0 … width/2 - 1, for head h of 1 … H.

    width: channels of the sinusoids, whatever the model's own (paper: 128). Less makes the penalty weaker.
    Nothing is learned. Without its -width/2, which softmax ignores, the sum is the inner product itself.
    """

    def __init__(self, shape: Shape, *, width: int = 128):
        super().__init__(shape)
        if width < 2 or width % 2:
            raise SchemeError(
                f"sandwich: width must be a positive even number of channels, got {width}; the paper's is 128"
            )
        self.width = width

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        farthest = max(pos.length, pos.tokens) - 1
        table = pos.once((self, "table", farthest), lambda: self.table(torch.arange(farthest + 1, device=q.device)))
        ratio = 8 / self.shape.heads
        return Scores.of_distance(lambda d, h: table[d.abs().clamp(max=farthest)] / (ratio * (h + 1)), pos)

    def table(self, distance: Tensor) -> Tensor:
        """The sum at each of the (N,) distances: (N,) fp32, zero at none."""
        lanes = torch.arange(0, self.width, 2, dtype=torch.float64, device=distance.device)
        angles = distance[:, None] * 10000.0 ** (-lanes / self.width)
        return (angles.cos() - 1).sum(-1).float()
