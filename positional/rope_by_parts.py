"""RoPE, NTK by parts: fast lanes kept, slow ones interpolated, a ramp between (Peng et al. 2023, arXiv:2309.00071)."""

import math
from typing import Any

import torch
from torch import Tensor

from positional.base import SchemeError, Shape
from positional.extension import Extension


class RopeByParts(Extension):
    """Lanes that turn more than `fast` times within the train length are kept; those that turn less than `slow` times
    slow down by the factor. In between the share of interpolation grows linearly with the lane's number, as in all
    published code; the paper's own ramp, linear in turns, is rope-llama3 with low=1, high=32.

    fast, slow: turns within the train length (32 and 1).   truncate: the ramp begins and ends at whole lanes.
    Trained on 201 tokens or less no lane turns 32 times, and of all lanes the first alone is kept.
    """

    def __init__(self, shape: Shape, *, fast: float = 32.0, slow: float = 1.0, truncate: bool = True, **extension: Any):
        super().__init__(shape, **extension)
        if not 0 < slow < fast:
            raise SchemeError(
                f"slow must be above 0 and below fast, both in turns within the train length, "
                f"got slow {slow} and fast {fast}; the paper's are 1 and 32"
            )
        least = max(8, math.ceil(2 * math.pi * slow))
        if shape.train_length < least:
            raise SchemeError(
                f"the train length must be at least {least} tokens, 2π·slow of them or 8, got {shape.train_length}: "
                f"no lane would turn {slow:g} times in training, and the ramp would end before it begins"
            )
        self.fast, self.slow, self.truncate = fast, slow, truncate

    def frequencies(self, length: int) -> Tensor:
        plain = super().frequencies(length)
        return plain.lerp(plain / self.factor_at(length), self.ramp())

    def ramp(self) -> Tensor:
        """The share of interpolation of each lane, 0 to 1: (D/2,) float64."""
        low, high = self.ends()
        if low >= high:
            high = low + 0.001
        return ((torch.arange(self.shape.head_dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)

    def ends(self) -> tuple[float, float]:
        """The lanes between which it rises."""
        low, high = self.lane_of(self.fast), self.lane_of(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, self.shape.head_dim - 1)  # not D/2 - 1, in all published code

    def lane_of(self, turns: float) -> float:
        """The lane, if lanes were continuous, that turns so often within the train length."""
        base, size = math.log(self.base), self.shape.head_dim
        return size * math.log(self.shape.train_length / (2 * math.pi * turns)) / (2 * base)
