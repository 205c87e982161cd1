"""RoPE, partial: a head's first channels turn, the others carry no position (Black et al. 2022, arXiv:2204.06745)."""

from typing import Any

import torch
from torch import Tensor

from positional.base import SchemeError, Shape
from positional.rope import Rope


class RopePartial(Rope):
    """RoPE on the first R = share · D channels, with their own exponents base^(-2i/R) and pairs; the rest passes.

    share: of the head's channels, above 0 to 1 (GPT-NeoX: 0.25). The number of channels is rounded down.
    """

    def __init__(self, shape: Shape, *, share: float = 0.25, **rope: Any):
        super().__init__(shape, **rope)
        self.channels = int(share * shape.head_dim)
        if not 0 < share <= 1 or self.channels < 2 or self.channels % 2:
            raise SchemeError(
                f"share must be above 0 to 1 and leave an even number of channels, got {share}: {self.channels} "
                f"of {shape.head_dim}; GPT-NeoX has 0.25, 16 of 64"
            )

    def frequencies(self, length: int) -> Tensor:
        lanes = torch.arange(0, self.channels, 2, dtype=torch.float64)
        return self.base ** (-lanes / self.channels)
