"""RoPE, dynamic YaRN: YaRN whose factor follows the length being run (Peng et al. 2023, arXiv:2309.00071)."""

from typing import Any, Literal

from positional.base import Shape
from positional.rope_yarn import RopeYarn


class RopeDynamicYarn(RopeYarn):
    """YaRN by length ÷ train length, at least 1: plain RoPE up to the train length.

    The length is that of the whole input, so what follows a token changes it, and so does each generated token.
    """

    def __init__(self, shape: Shape, *, factor: Literal["auto"] = "auto", **yarn: Any):
        super().__init__(shape, factor=factor, **yarn)
