"""RoPE, Llama 3.1: by parts, with a ramp linear in turns, no growth of scores (Dubey et al. 2024, arXiv:2407.21783)."""

import math
from typing import Any

from torch import Tensor

from positional.base import SchemeError, Shape
from positional.extension import Extension


class RopeLlama3(Extension):
    """Lanes that turn more than `high` times within the train length are kept; those that turn less than `low` times
    slow down by the factor; in between the share that is kept is (turns - low) / (high - low).

    low, high: turns within the train length (1 and 4). With 1 and 32 it is NTK by parts as YaRN's paper writes it.
    """

    def __init__(self, shape: Shape, *, low: float = 1.0, high: float = 4.0, **extension: Any):
        super().__init__(shape, **extension)
        if not 0 < low < high:
            raise SchemeError(
                f"low must be above 0 and below high, both in turns within the train length, "
                f"got low {low} and high {high}; Llama 3.1 has 1 and 4"
            )
        self.low, self.high = low, high

    def frequencies(self, length: int) -> Tensor:
        plain = super().frequencies(length)
        turns = plain * self.shape.train_length / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (plain / self.factor_at(length)).lerp(plain, kept)
