"""Kerple: a learned penalty per head, the logarithm or a power of distance (Chi et al. 2022, arXiv:2205.09921)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from positional.base import Positions, Scheme, Scores, Shape


class Kerple(Scheme):
    """score -= scale[h] · log(1 + rate[h] · distance), or scale[h] · distance^rate[h]; |distance| in tokens.

    form: log, which the paper found best, or power, whose exponent stays between 0 and 2.
    One scale and one rate a head serve all layers. They start anywhere between 0 and 2 (scale) and 0 and 1 (rate), for
    power the other way round. A softplus, or twice a sigmoid for the exponent, holds them in their range.
    """

    def __init__(self, shape: Shape, *, form: Literal["log", "power"] = "log"):
        super().__init__(shape)
        self.form = form
        one, other = torch.rand(2, shape.heads).clamp(0.01, 0.99)
        self.scale = nn.Parameter((one * (2 if form == "log" else 1)).expm1().log())
        self.rate = nn.Parameter(other.expm1().log() if form == "log" else other.logit())

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        scale, rate = F.softplus(self.scale.float()), self.rate.float()
        if self.form == "log":
            rate = F.softplus(rate)
            return Scores.of_distance(lambda d, h: -scale[h] * (rate[h] * d.abs()).log1p(), pos)
        rate = 2 * rate.sigmoid()
        return Scores.of_distance(lambda d, h: -scale[h] * d.abs().float() ** rate[h], pos)
