"""Sinusoidal: fixed sines and cosines added to the embeddings (Vaswani et al. 2017, arXiv:1706.03762)."""

import torch
from torch import Tensor

from positional.base import Positions, Scheme, SchemeError, Shape


class Sinusoidal(Scheme):
    """Channel 2i holds sin(p·base^(-2i/C)), channel 2i+1 the cosine of the same angle.

    base: the longest wavelength is 2π·base tokens.
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0):
        super().__init__(shape)
        if shape.width % 2:
            raise SchemeError(f"sinusoidal needs an even width, got {shape.width}: sines and cosines come in pairs")
        if base <= 1:
            raise SchemeError(f"sinusoidal: base must be above 1, got {base}; the paper's is 10000")
        self.base = base

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return x + self.table(pos.of_queries).to(x.dtype)

    def table(self, ids: Tensor) -> Tensor:
        """(…,) positions -> (…, C) fp32."""
        width = self.shape.width
        lanes = torch.arange(0, width, 2, device=ids.device, dtype=torch.float64)
        angles = ids[..., None] * self.base ** (-lanes / width)  # (…, C/2) float64: exact to fp32 at any position
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).float()
