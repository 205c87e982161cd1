"""RoPE: queries and keys turned by an angle proportional to position (Su et al. 2021, arXiv:2104.09864)."""

from typing import Literal

import torch
from torch import Tensor

from positional.base import Positions, Scheme, SchemeError, Shape

Layout = Literal["half", "interleaved"]


class Rope(Scheme):
    """Lane i turns a pair of channels by position · base^(-2i/D).

    base: the slowest lane turns once in about 2π·base tokens.
    layout: which channels are lane i's pair: i and i + D/2 (half: Llama, GPT-NeoX) or 2i and 2i + 1 (interleaved:
    GPT-J, Meta's own Llama). It makes no difference but for weights that were trained with one of them.
    Extensions override `frequencies` and `gain`, which are pure functions of the length being run. Where they give
    fewer than D/2 lanes, the channels behind these lanes' pairs are not turned.
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0, layout: Layout = "half"):
        super().__init__(shape)
        if shape.head_dim % 2:
            raise SchemeError(
                f"rope turns pairs of channels and needs an even head size, got {shape.head_dim} "
                f"(width {shape.width} / heads {shape.heads})"
            )
        if base <= 1:
            raise SchemeError(f"rope: base must be above 1, got {base}; the paper's is 10000")
        self.base, self.layout = base, layout

    def frequencies(self, length: int) -> Tensor:
        """Radians a token for each lane at this length: (D/2,) float64."""
        lanes = torch.arange(0, self.shape.head_dim, 2, dtype=torch.float64)
        return self.base ** (-lanes / self.shape.head_dim)

    def gain(self, length: int) -> float:
        """Factor on queries and on keys at this length: scores grow by its square."""
        return 1.0

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        cos, sin = pos.once((self, "turn"), lambda: self.turn(pos.ids, pos.length))
        first = pos.tokens - pos.queries
        return turned(q, cos[..., first:, :], sin[..., first:, :], self.layout), turned(k, cos, sin, self.layout)

    def turn(self, ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angles at (B or 1, T) positions, whole or not: (B or 1, 1, T, lanes) fp32 each."""
        # float64 until the end: in fp32 the angle at position 131072 would already be off by 4e-3.
        angles = ids[:, None, :, None] * self.frequencies(length).to(ids.device)
        gain = self.gain(length)
        return (angles.cos() * gain).float(), (angles.sin() * gain).float()


def turned(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout = "half") -> Tensor:
    """(B, H, T, D) with the pair of each lane turned; at least in fp32, returned in the dtype of x.

    cos, sin: (B or 1, 1, T, lanes).
    """
    # In memory, heads stay inside tokens, as projections leave them: attention then writes its output so, ready for
    # the next projection, and no copy is made of it.
    lanes = cos.shape[-1]
    full = x.transpose(1, 2).to(torch.promote_types(x.dtype, cos.dtype))  # (B, T, H, D)
    pairs, rest = full[..., : 2 * lanes], full[..., 2 * lanes :]
    cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
    if layout == "half":
        a, b = pairs.chunk(2, -1)
        out = torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
    else:
        a, b = pairs.unflatten(-1, (lanes, 2)).unbind(-1)
        out = torch.cat([torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), rest], -1)
    return out.transpose(1, 2).to(x.dtype)
