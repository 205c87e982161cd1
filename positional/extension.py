"""What the RoPE extensions that stretch by a factor share: the factor, given or derived from the length being run."""

from typing import Any, Literal

from positional.base import SchemeError, Shape
from positional.rope import Rope


class Extension(Rope):
    """A RoPE whose frequencies depend on a factor.

    factor: how many times longer the input is than in training; auto: length being run ÷ train length, at least 1.
    """

    def __init__(self, shape: Shape, *, factor: float | Literal["auto"], **rope: Any):
        super().__init__(shape, **rope)
        if factor != "auto" and factor < 1:
            raise SchemeError(f"factor must be at least 1, or auto, got {factor}; 8 is for inputs 8 × the train length")
        self.factor = factor
        self.prefix_consistent = factor != "auto"

    def factor_at(self, length: int) -> float:
        """The factor in force when `length` tokens are run."""
        return max(1.0, length / self.shape.train_length) if self.factor == "auto" else float(self.factor)
