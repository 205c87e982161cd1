"""Dual chunk attention: no distance above training, chunk by chunk (An et al. 2024, arXiv:2402.17463)."""

from typing import Any

import torch
from torch import Tensor

from positional.base import Positions, SchemeError, Scores, Shape, row_of
from positional.rope import Rope, turned


class DualChunk(Rope):
    """With chunks of s tokens and a train length c, a key at position j counts as at j mod s. A query at i counts as at
    i mod s for keys of its own chunk, at min(i mod s + s, c - 1) for those of the chunk before, at c - 1 for all
    before that. The c - s nearest keys are thus at their true distance.

    chunk: tokens, at most the train length; null: 3/4 of the train length, as in the paper.
    """

    causal_only = "its chunks all lie behind the query"

    def __init__(self, shape: Shape, *, chunk: int | None = None, **rope: Any):
        super().__init__(shape, **rope)
        self.chunk = max(1, shape.train_length * 3 // 4) if chunk is None else chunk
        if not 1 <= self.chunk <= shape.train_length:
            raise SchemeError(
                f"chunk must be between 1 and the train length {shape.train_length}, got {chunk} tokens; "
                "the paper's is 3/4 of it"
            )

    def parts(self, q: Tensor, k: Tensor, pos: Positions) -> list[tuple[Tensor, Tensor, Scores]]:
        keys, *queries = pos.once((self, "turns"), lambda: self.turns(pos))
        k = turned(k, *keys, self.layout)
        said = [self.chunks_back(0, 0, pos), self.chunks_back(1, 1, pos), self.chunks_back(2, pos.length, pos)]
        there = 1 + (pos.length - 1) // self.chunk  # how many of them there are
        return [(turned(q, *turn, self.layout), k, scores) for turn, scores in zip(queries, said, strict=True)][:there]

    def turns(self, pos: Positions) -> list[tuple[Tensor, Tensor]]:
        """Of keys, and of queries for keys of the same, of the last and of earlier chunks."""
        size, far, asked = self.chunk, self.shape.train_length - 1, pos.of_queries % self.chunk
        ids = pos.ids % size, asked, (asked + size).clamp(max=far), torch.full_like(asked, far)
        return [self.turn(one, pos.length) for one in ids]

    def chunks_back(self, nearest: int, farthest: int, pos: Positions) -> Scores:
        """See only keys that lie so many chunks back."""

        def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = row_of(pos.ids, b)
            back = pos.of_queries[row, i] // self.chunk - pos.ids[row, j] // self.chunk
            return (back >= nearest) & (back <= farthest)

        if not pos.contiguous:
            return Scores(keep=keep)
        # The same again in tokens, which lets a backend leave out whole stretches of keys.
        window = (farthest + 1) * self.chunk if farthest < 2 else None
        return Scores(window=window, beyond=(nearest - 1) * self.chunk + 1 if nearest else None, keep=keep)
