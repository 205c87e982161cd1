"""Window: a token sees only those near it and, if asked to, the first (Beltagy et al. 2020, arXiv:2004.05150)."""

from torch import Tensor

from positional.base import Positions, Scheme, SchemeError, Scores, Shape


class Window(Scheme):
    """A token sees itself and the window-1 before it. It tells no order: `[rope, {kind: window, window: 512}]` does.

    window: tokens, at least 1 (512 is usual).   sinks: how many tokens, 0 or more (4 is usual), at the beginning of
    a text stay visible from everywhere, at the positions they have (Xiao et al. 2023, arXiv:2309.17453, who
    renumber them).
    """

    def __init__(self, shape: Shape, *, window: int, sinks: int = 0):
        super().__init__(shape)
        if window < 1 or sinks < 0:
            raise SchemeError(
                f"window must be at least 1 and sinks not negative, got window {window} and sinks {sinks}; "
                "512 and 4 are usual"
            )
        self.window, self.sinks = window, sinks
        self.reach = None if sinks else window

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        return Scores(window=self.window, sinks=self.sinks or None)
