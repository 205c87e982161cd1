"""Learned: one trained vector per position, none beyond the training length (Gehring et al. 2017, arXiv:1705.03122)."""

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Shape


class Learned(Scheme):
    """A table of vectors added to the embeddings; a longer input has no vector and is refused.

    std: spread of the initial vectors, beside embeddings of unit variance.
    positions: how many have a vector; null: train length. More are of use where training reaches them, as it does
    behind random-positions or pose.
    """

    def __init__(self, shape: Shape, *, std: float = 0.02, positions: int | None = None):
        super().__init__(shape)
        if std < 0:
            raise SchemeError(f"learned: std must not be negative, got {std}")
        if positions is not None and positions < shape.train_length:
            raise SchemeError(
                f"learned: positions must be at least the train length {shape.train_length}, got {positions}"
            )
        self.limit = shape.train_length if positions is None else positions
        self.table = nn.Parameter(torch.randn(self.limit, shape.width) * std)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        # Checked before the lookup: on a GPU an index past the table would poison the whole process.
        if pos.length > self.limit:
            raise SchemeError(
                f"learned has a vector for each of {self.limit} positions and none for position {pos.length - 1}: "
                f"run at most {self.limit} tokens, or train at a longer length"
            )
        return x + self.table[pos.of_queries].to(x.dtype)
