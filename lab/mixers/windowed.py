"""Windowed: any encoding, and a window in those layers whose mixer is one."""

from typing import Any

from torch import Tensor

from positional import Positions, Scheme
from positional.stack import Stack
from positional.window import Window


class Windowed(Scheme):
    """In layer l the encoding stacked with a window of windows[l], the options of one; None: as it is."""

    def __init__(self, scheme: Scheme, windows: list[dict[str, Any] | None]):
        super().__init__(scheme.shape)
        self.scheme = scheme
        self.limit, self.notes = scheme.limit, scheme.notes
        self.prefix_consistent = scheme.prefix_consistent
        # Made once, and hidden from torch in a tuple, so that no parameter has two names.
        self.of_layers = tuple(self.of_layer(layer, window) for layer, window in enumerate(windows))

    def of_layer(self, layer: int, window: dict[str, Any] | None) -> Scheme:
        scheme = self.scheme.at(layer)
        return scheme if window is None else Stack(self.shape, [scheme, Window(self.shape, **window)])

    def at(self, layer: int) -> Scheme:
        return self.of_layers[layer]

    def place(self, pos: Positions, rows: int) -> Positions:
        return self.scheme.place(pos, rows)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return self.scheme.embed(x, pos)
