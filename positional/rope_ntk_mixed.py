"""RoPE, NTK mixed: every lane slows down, in steps that shrink from lane to lane (Su 2023, Kexue)."""

from typing import Any

import torch
from torch import Tensor

from positional.base import SchemeError, Shape
from positional.extension import Extension


class RopeNTKMixed(Extension):
    """Lane i of n slows down by factor^(((i + 1) / n)^exponent): the first a little, the last by exactly the factor.

    exponent: 0.625 is the author's (https://kexue.fm/archives/9706); 1 is what vLLM calls `ntk`; near 0, rope-linear.
    """

    def __init__(self, shape: Shape, *, exponent: float = 0.625, **extension: Any):
        super().__init__(shape, **extension)
        if exponent <= 0:
            raise SchemeError(f"exponent must be above 0, got {exponent}; the author's is 0.625, and 0 is rope-linear")
        self.exponent = exponent

    def frequencies(self, length: int) -> Tensor:
        plain = super().frequencies(length)
        lanes = torch.arange(1, len(plain) + 1, dtype=torch.float64)
        return plain * self.factor_at(length) ** -((lanes / len(plain)) ** self.exponent)
