"""RoPE: queries and keys turned by an angle proportional to position (Su et al. 2021, arXiv:2104.09864)."""

import torch
from torch import Tensor

from positional.base import Positions, Scheme, SchemeError, Shape


class Rope(Scheme):
    """Lane i turns by position · base^(-2i/D); channels i and i + D/2 form the lane's pair.

    base: the slowest lane turns once in about 2π·base tokens.
    Extensions override `frequencies` and `gain`, which are pure functions of the length being run.
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0):
        super().__init__(shape)
        if shape.head_dim % 2:
            raise SchemeError(
                f"rope turns pairs of channels and needs an even head size, got {shape.head_dim} "
                f"(width {shape.width} / heads {shape.heads})"
            )
        if base <= 1:
            raise SchemeError(f"rope: base must be above 1, got {base}; the paper's is 10000")
        self.base = base

    def frequencies(self, length: int) -> Tensor:
        """Radians a token for each lane at this length: (D/2,) float64."""
        lanes = torch.arange(0, self.shape.head_dim, 2, dtype=torch.float64)
        return self.base ** (-lanes / self.shape.head_dim)

    def gain(self, length: int) -> float:
        """Factor on queries and on keys at this length: scores grow by its square."""
        return 1.0

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        cos, sin = pos.once((self, "turn"), lambda: self.turn(pos))
        first = pos.tokens - pos.queries
        return turned(q, cos[..., first:, :], sin[..., first:, :]), turned(k, cos, sin)

    def turn(self, pos: Positions) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every token's angles: (B or 1, 1, T, D/2) fp32 each."""
        # float64 until the end: in fp32 the angle at position 131072 would already be off by 4e-3.
        angles = pos.ids[:, None, :, None] * self.frequencies(pos.length).to(pos.ids.device)
        gain = self.gain(pos.length)
        return (angles.cos() * gain).float(), (angles.sin() * gain).float()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, H, T, D) with each pair (i, i + D/2) turned; at least in fp32, returned in the dtype of x.

    cos, sin: (B or 1, 1, T, D/2).
    """
    # In memory, heads stay inside tokens, as projections leave them: attention then writes its output so, ready for
    # the next projection, and no copy is made of it.
    a, b = x.transpose(1, 2).to(torch.promote_types(x.dtype, cos.dtype)).chunk(2, -1)  # (B, T, H, D/2)
    cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).transpose(1, 2).to(x.dtype)
