"""xPos: RoPE whose score also shrinks with distance, fast lanes the most (Sun et al. 2022, arXiv:2212.10554)."""

import math
from typing import Any

import torch
from torch import Tensor

from positional.base import Positions, SchemeError, Shape
from positional.rope import Rope, turned

SMALLEST = 0.4 / 1.4  # of all ζ: that of lane 0, whatever the head size


class XPos(Rope):
    """What lane i adds to a score d tokens apart is multiplied by ζ^(d / scale_base), where ζ = (2i + 0.4·D) / (1.4·D).

    scale_base: tokens over which the fastest lane falls to 0.29 of what it was (paper: 512).
    Queries at m bear ζ^((m-c) / scale_base) and keys at m its inverse. c, which cancels, is the middle of the row's
    positions: it keeps both small, and may move from call to call, as keys are cached without it.
    """

    causal_only = "a score shrinks with the distance behind, and grows without bound with the distance ahead"

    def __init__(self, shape: Shape, *, scale_base: float = 512.0, **rope: Any):
        super().__init__(shape, **rope)
        least = shape.train_length / span(1.0, torch.float32)
        if scale_base < least:
            raise SchemeError(
                f"xpos: scale_base must be at least {least:.3g} tokens for a train length of {shape.train_length}, "
                f"or fp32 overflows, got {scale_base}; the paper's is 512"
            )
        self.scale_base = scale_base
        self.limit = int(span(scale_base, torch.float32))

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        apart, most = pos.tokens if pos.contiguous else pos.length, int(span(self.scale_base, q.dtype))
        if apart > most:
            raise SchemeError(
                f"xpos with scale_base {self.scale_base:g} takes at most {most} tokens in {q.dtype}, got {apart}: "
                "beyond, queries and keys overflow"
            )
        exact = torch.promote_types(q.dtype, torch.float32)
        of_q, of_k = pos.once((self, "turn", exact), lambda: self.turns(pos.ids, pos.length, exact))
        asked = [part[..., pos.tokens - pos.queries :, :] for part in of_q]
        return turned(q, *asked, self.layout), turned(k, *of_k, self.layout)

    def turns(self, ids: Tensor, length: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """For queries, then for keys: cosine and sine of the angles, times their powers of ζ."""
        size = self.shape.head_dim
        zeta = (torch.arange(0, size, 2, dtype=torch.float64, device=ids.device) + 0.4 * size) / (1.4 * size)
        middle = (ids.amin(-1, keepdim=True) + ids.amax(-1, keepdim=True)).double() / 2
        power = zeta ** ((ids - middle) / self.scale_base)[:, None, :, None]
        angles = ids[:, None, :, None] * self.frequencies(length).to(ids.device)
        return [((angles.cos() * p).to(dtype), (angles.sin() * p).to(dtype)) for p in (power, 1 / power)]


def span(scale_base: float, dtype: torch.dtype) -> float:
    """How many tokens an input in this dtype may have.

    The score of a key ahead of its query grows as that of one behind shrinks, and is computed before it is hidden: it
    must stay finite, with room for a factor of 2^8 from queries and keys themselves.
    """
    return scale_base * (math.log2(torch.finfo(dtype).max) - 8) / -math.log2(SMALLEST)
