"""RoPE, NTK-aware scaling: a larger base, fast lanes kept, slow ones stretched (Peng et al. 2023, arXiv:2309.00071)."""

from typing import Any

import torch
from torch import Tensor

from positional.base import SchemeError, Shape
from positional.extension import Extension


class RopeNTK(Extension):
    """base' = base · factor^(D/(D-2)): the first lane is untouched, the last slows down by exactly the factor."""

    def __init__(self, shape: Shape, **extension: Any):
        super().__init__(shape, **extension)
        if shape.head_dim == 2:
            raise SchemeError("needs a head size above 2: with one lane there is none to keep and none to stretch")

    def frequencies(self, length: int) -> Tensor:
        size = self.shape.head_dim
        lanes = torch.arange(0, size, 2, dtype=torch.float64)
        return super().frequencies(length) * self.factor_at(length) ** (-lanes / (size - 2))
