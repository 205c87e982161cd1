"""RoPE, YaRN: NTK by parts, and queries and keys grown to sharpen attention (Peng et al. 2023, arXiv:2309.00071)."""

import math
from typing import Any

from positional.base import SchemeError, Shape
from positional.rope_by_parts import RopeByParts


class RopeYarn(RopeByParts):
    """Queries and keys grow by 0.1 · ln(factor) + 1, so scores by its square, at every length, short ones too.

    attention_factor: in place of that growth; 1 is rope-by-parts.
    mscale, mscale_all_dim: instead, grow by (0.1 · mscale · ln(factor) + 1) / (0.1 · mscale_all_dim · ln(factor) + 1).
    Both come from DeepSeek's models (0.707 and 0.707, or 1 and 1), which scale the softmax elsewhere.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        attention_factor: float | None = None,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
        **by_parts: Any,
    ):
        super().__init__(shape, **by_parts)
        if attention_factor is not None and attention_factor <= 0:
            raise SchemeError(f"attention_factor must be above 0, got {attention_factor}; left out, it is YaRN's")
        if (mscale is None) != (mscale_all_dim is None) or min(mscale or 0, mscale_all_dim or 0) < 0:
            raise SchemeError(
                f"mscale and mscale_all_dim go together and are not negative, got {mscale} and {mscale_all_dim}: "
                "transformers ignores one without the other and DeepSeek does not; attention_factor says it outright"
            )
        self.attention_factor = attention_factor
        self.mscales = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1.0, 0.0)

    def gain(self, length: int) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        grown, shrunk = (0.1 * mscale * math.log(self.factor_at(length)) + 1 for mscale in self.mscales)
        return grown / shrunk
