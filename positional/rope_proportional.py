"""RoPE, proportional: p-RoPE, in which the slowest lanes stand still (Barbero et al. 2024, arXiv:2410.06205)."""

from typing import Any, Literal

from torch import Tensor

from positional.base import SchemeError, Shape
from positional.extension import Extension


class RopeProportional(Extension):
    """The first share · D/2 lanes have their place in base^(-2i/D); the others have frequency 0, so carry no position.

    share: of the lanes, above 0 to 1 (the paper's best: 0.75; Gemma 4: 0.25). Their number is rounded down.
    factor: those that turn slow down by it, as in rope-linear.
    """

    def __init__(self, shape: Shape, *, share: float = 0.75, factor: float | Literal["auto"] = 1.0, **rope: Any):
        super().__init__(shape, factor=factor, **rope)
        self.turning = int(share * shape.head_dim // 2)
        if not 0 < share <= 1 or not self.turning:
            raise SchemeError(
                f"share must be above 0 to 1 and leave a lane that turns, got {share}: {self.turning} of "
                f"{shape.head_dim // 2}; the paper's best is 0.75"
            )

    def frequencies(self, length: int) -> Tensor:
        scaled = super().frequencies(length) / self.factor_at(length)
        scaled[self.turning :] = 0
        return scaled
