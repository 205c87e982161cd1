"""RoPE, linear scaling: positions divided by a factor, Position Interpolation (Chen et al. 2023, arXiv:2306.15595)."""

from torch import Tensor

from positional.extension import Extension


class RopeLinear(Extension):
    """Every lane slows down by the factor, so no angle exceeds those of training."""

    def frequencies(self, length: int) -> Tensor:
        return super().frequencies(length) / self.factor_at(length)
