"""ALiBi: a fixed penalty per head that grows linearly with distance (Press et al. 2022, arXiv:2108.12409)."""

import math

import torch
from torch import Tensor

from positional.base import Positions, Scheme, Scores


class ALiBi(Scheme):
    """score -= slope[h] · distance, in tokens; nothing is learned."""

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        return Scores(slopes=torch.tensor(slopes(self.shape.heads), device=q.device))


def slopes(heads: int) -> list[float]:
    """2^(-8h/heads) for a power of two; else the slopes of the power below, then every other one of the power above."""
    if math.log2(heads).is_integer():
        return [2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]
    below = 2 ** int(math.log2(heads))
    return slopes(below) + slopes(2 * below)[::2][: heads - below]
