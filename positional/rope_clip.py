"""RoPE, clipped (CoPE): the slowest lanes fade to standing still (Li et al. 2026, arXiv:2602.05258)."""

import math
from typing import Any

import torch
from torch import Tensor

from positional.base import SchemeError, Shape
from positional.rope import Rope


class RopeClip(Rope):
    """Of the n slowest lanes, the j-th (0 … n-1) turns at (1 + cos(π·j/(n-1)))/2 of its frequency: half a Hann window.
    The first of them is whole and the last, the slowest of all, stands still.

    lanes: how many they are; null: those that turn less than once within the train length, which longer inputs would
    take to angles never seen; one alone is left whole. The authors' code has 20, of the 64
    of Llama 3 trained on 8192 tokens.
    """

    def __init__(self, shape: Shape, *, lanes: int | None = None, **rope: Any):
        super().__init__(shape, **rope)
        if lanes is not None and not 2 <= lanes <= shape.head_dim // 2:
            raise SchemeError(
                f"lanes must be 2 to {shape.head_dim // 2}, the lanes of a head, got {lanes}; "
                "left out, those that turn less than once within the train length"
            )
        radians = [self.base ** (-i / shape.head_dim) * shape.train_length for i in range(0, shape.head_dim, 2)]
        self.lanes = sum(one < 2 * math.pi for one in radians) if lanes is None else lanes

    def frequencies(self, length: int) -> Tensor:
        plain = super().frequencies(length)
        whole = len(plain) - self.lanes
        fade = (1 + torch.linspace(0, math.pi, self.lanes, dtype=torch.float64).cos()) / 2
        return torch.cat([plain[:whole], plain[whole:] * fade])
