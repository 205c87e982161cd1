"""Self-Extend: near keys as trained, far keys at positions shared by groups (Jin et al. 2024, arXiv:2401.01325)."""

from typing import Any

from torch import Tensor

from positional.base import Positions, SchemeError, Scores, Shape
from positional.rope import Rope, turned


class SelfExtend(Rope):
    """Keys less than `window` tokens back are rotated as in RoPE, those beyond at position // group, with the query's
    shifted so that the two meet. A model trained on L tokens then reads (L - window) · group + window.

    group: tokens that share a position, at least 1 (paper: 8).
    window: tokens, 1 to the train length (paper: a quarter of it).
    """

    causal_only = "its near and far keys both lie behind the query"

    def __init__(self, shape: Shape, *, group: int, window: int, **rope: Any):
        super().__init__(shape, **rope)
        if group < 1 or not 1 <= window <= shape.train_length:
            raise SchemeError(
                f"group must be at least 1 and window between 1 and the train length {shape.train_length}, "
                f"got group {group} and window {window}; the paper's are 8 and 1024 for a train length of 4096"
            )
        self.group, self.window = group, window

    def parts(self, q: Tensor, k: Tensor, pos: Positions) -> list[tuple[Tensor, Tensor, Scores]]:
        near = *super().rotate(q, k, pos), Scores(window=self.window)
        if pos.length <= self.window:
            return [near]
        shift = self.window - self.window // self.group

        def turns():
            keys, queries = pos.ids // self.group, pos.of_queries // self.group + shift
            return self.turn(queries, pos.length), self.turn(keys, pos.length)

        of_q, of_k = pos.once((self, "far"), turns)
        return [near, (turned(q, *of_q, self.layout), turned(k, *of_k, self.layout), Scores(beyond=self.window))]
