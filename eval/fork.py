"""fork: a cache that is given to one continuation after the other, as it was before the first."""

# B rows · G key heads · T tokens · D head size

import copy

from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class Rewound(DynamicLayer):
    """A layer of a growing cache with room at its end: what follows is written there, over what followed before."""

    def __init__(self, layer: DynamicLayer, rows: int, room: int):
        super().__init__()
        self.__dict__ |= vars(layer)
        self.begun = layer.keys.shape[-2]
        self.whole = tuple(roomy(x, rows, room) for x in (layer.keys, layer.values))
        self.rewind()

    def rewind(self) -> None:
        self.keys, self.values = (x[..., : self.begun, :] for x in self.whole)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        start, stop = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        for whole, new in zip(self.whole, (key_states, value_states), strict=True):
            whole[..., start:stop, :] = new
        self.keys, self.values = (x[..., :stop, :] for x in self.whole)
        return self.keys, self.values


def roomy(x: Tensor, rows: int, room: int) -> Tensor:
    """(1, G, T, D) as (rows, G, T + room, D), the room yet to be written."""
    _, heads, tokens, size = x.shape
    out = x.new_empty(rows, heads, tokens + room, size)
    out[..., :tokens, :] = x
    return out


class Fork:
    """What follows a cache of one row, so many rows at once and at most `room` tokens of each."""

    def __init__(self, cache, rows: int, room: int):
        self.cache, self.rows = cache, rows
        layers = getattr(cache, "layers", ())
        self.own = {
            id(layer): Rewound(layer, rows, room) for layer in layers if type(layer) is DynamicLayer and begun(layer)
        }
        windows = [layer for layer in layers if type(layer) is DynamicSlidingWindowLayer and begun(layer)]
        # Of a window keys and values are shared: what grows there is made anew.
        self.views = {id(x): x.expand(rows, *x.shape[1:]) for layer in windows for x in (layer.keys, layer.values)}
        self.rest = [n for n, layer in enumerate(layers) if id(layer) not in self.own and layer not in windows]

    def again(self):
        """The cache, in so many rows, without what followed it before."""
        for layer in self.own.values():
            layer.rewind()
        cache = copy.deepcopy(self.cache, self.own | self.views)
        if self.rows > 1:
            for other in [cache.layers[n] for n in self.rest] if hasattr(cache, "layers") else [cache]:
                other.batch_repeat_interleave(self.rows)
        return cache


def begun(layer) -> bool:
    """Whether there is anything in it."""
    return isinstance(layer.keys, Tensor) and layer.keys.dim() == 4
