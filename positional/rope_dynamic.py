"""RoPE, dynamic NTK: the base grows with the length being run (Peng et al. 2023, arXiv:2309.00071)."""

from typing import Any

from positional.base import SchemeError, Shape
from positional.rope_ntk import RopeNTK


class RopeDynamic(RopeNTK):
    """NTK-aware scaling by s·L/L0 - (s-1) at L tokens, where L0 is the train length; up to L0, plain RoPE.

    factor: s, how fast that grows. At L = s·L0 it is s² - s + 1, not s: 57 for a factor of 8.
    The length is that of the whole input, so what follows a token changes it, and so does each generated token.
    """

    def __init__(self, shape: Shape, *, factor: float, **rope: Any):
        if factor < 1:
            raise SchemeError(
                f"factor must be at least 1, got {factor}; 1 slows the last lane by length ÷ train length"
            )
        super().__init__(shape, factor=factor, **rope)
        self.prefix_consistent = False

    def factor_at(self, length: int) -> float:
        return max(1.0, self.factor * length / self.shape.train_length - (self.factor - 1))
