"""Λ-mask: the last tokens, and the first ones at a capped distance, LM-Infinite (Han et al. 2024, arXiv:2308.16137)."""

from typing import Any

import torch
from torch import Tensor

from positional.base import Positions, SchemeError, Scores, Shape, row_of
from positional.rope import Rope, turned


class LambdaMask(Rope):
    """A token sees itself and the window-1 before it, and the first `sinks` of its text; rotated as in RoPE at the
    distance min(d, train length).

    window: tokens, at most the train length; null: train length, as in the paper.
    sinks: tokens; the paper finds 10 to 100 much alike.
    """

    causal_only = "its near and far keys both lie behind the query"

    def __init__(self, shape: Shape, *, window: int | None = None, sinks: int = 10, **rope: Any):
        super().__init__(shape, **rope)
        self.window, self.sinks = shape.train_length if window is None else window, sinks
        if not 1 <= self.window <= shape.train_length or sinks < 0:
            raise SchemeError(
                f"window must be between 1 and the train length {shape.train_length} and sinks not negative, got "
                f"window {self.window} and sinks {sinks}; the paper's are the train length and 10 to 100"
            )
        self.reach = None if sinks else self.window

    def parts(self, q: Tensor, k: Tensor, pos: Positions) -> list[tuple[Tensor, Tensor, Scores]]:
        near, cap = self.rotate(q, k, pos), self.shape.train_length
        parts = [(*near, Scores(window=self.window))]
        if self.sinks and self.window < min(cap, pos.length):
            parts.append((*near, Scores(window=cap, beyond=self.window, keep=self.first(pos))))
        if self.sinks and cap < pos.length:
            ids = torch.full_like(pos.ids[:1, :1], cap)
            turn = pos.once((self, "cap"), lambda: self.turn(ids, pos.length))
            parts.append((turned(q, *turn, self.layout), k, Scores(beyond=cap, keep=self.first(pos))))
        return parts

    def first(self, pos: Positions):
        return lambda b, h, i, j: pos.ids[row_of(pos.ids, b), j] < self.sinks
