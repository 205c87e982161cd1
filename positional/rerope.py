"""ReRoPE: near keys as trained, all far ones at one distance, or leaking on slowly (Su 2023, ScientificSpaces)."""

from typing import Any

from torch import Tensor

from positional.base import Positions, SchemeError, Scores, Shape
from positional.rope import Rope, turned


class ReRoPE(Rope):
    """Distances d below `window` as in RoPE; from there on window, or leaky: window + (d - window) / leak.

    window: tokens, 1 to the train length (Su: a quarter).
    leak: how many tokens beyond the window count as one, at least 1; null: any number counts as none.
    Su's are 1024, and leaky 512 with a leak of 16, for a train length of 4096. His code also scales queries by log n.
    """

    causal_only = "its near and far keys both lie behind the query"

    def __init__(self, shape: Shape, *, window: int, leak: float | None = None, **rope: Any):
        super().__init__(shape, **rope)
        if not 1 <= window <= shape.train_length:
            raise SchemeError(
                f"window must be between 1 and the train length {shape.train_length}, got {window} tokens; "
                "Su's is 1024 for a train length of 4096"
            )
        if leak is not None and leak < 1:
            raise SchemeError(f"leak must be at least 1, or null for none, got {leak}; Su's is 16")
        self.window, self.slope = window, 0.0 if leak is None else 1 / leak

    def parts(self, q: Tensor, k: Tensor, pos: Positions) -> list[tuple[Tensor, Tensor, Scores]]:
        near = *self.rotate(q, k, pos), Scores(window=self.window)
        if pos.length <= self.window:
            return [near]

        def turns():
            keys = pos.ids.double() * self.slope
            queries = pos.of_queries.double() * self.slope + self.window * (1 - self.slope)
            return self.turn(queries, pos.length), self.turn(keys, pos.length)

        of_q, of_k = pos.once((self, "far"), turns)
        return [near, (turned(q, *of_q, self.layout), turned(k, *of_k, self.layout), Scores(beyond=self.window))]
