"""The cache: what attention keeps of tokens that have been read, so that a new one costs its own work alone."""

# B batch · Q new tokens · T all tokens · G key heads · D head size

from collections.abc import Collection
from dataclasses import fields

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from lab import LabError
from positional import Scheme

# Keys are kept as they were before rotation. A rotation may depend on where the queries are, or on the length being
# run; done anew for all keys, which costs less than attending to them, it is exact for every scheme.

NAME = "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"
"""What transformers calls a cache, in the calls it makes and in a model's output: the first from 5.24 on."""


def cache_for(scheme: Scheme, layers: int, carrying: Collection[int] = ()) -> Cache:
    """An empty cache: keys and values of each layer, where the tokens sit (16 bytes a token), each layer's notes.

    A layer whose scheme has a `reach` keeps the reach-1 last tokens and forgets those that no new one will see.
    carrying: numbers of layers that keep a state instead.
    """
    own = [StateLayer() if number in carrying else layer_for(scheme.at(number)) for number in range(layers)]
    noted = [layer_for(scheme.at(number)) for number in range(layers)] if scheme.notes else []
    return Cache(layers=[*own, DynamicLayer(), *noted])


def layer_for(scheme: Scheme) -> DynamicLayer:
    # Of a window of 1 transformers' layer would keep all: its last 0 tokens are spelled as a slice from -0.
    return DynamicLayer() if scheme.reach is None else DynamicSlidingWindowLayer(max(2, scheme.reach))


class StateLayer(DynamicLayer):
    """What a layer carries from token to token: a state after the last, in the place of keys and values of all."""

    is_croppable = False

    def __init__(self):
        super().__init__()
        self.tokens = 0  # read by now

    @property
    def state(self) -> tuple[Tensor, Tensor] | None:
        return None if self.keys is None else (self.keys, self.values)

    def put(self, state: tuple[Tensor, Tensor], tokens: int) -> None:
        """The state after so many more tokens."""
        if not self.is_initialized:
            self.lazy_initialization(*state)
        (self.keys, self.values), self.tokens = state, self.tokens + tokens

    def get_seq_length(self) -> int:
        return self.tokens

    def crop(self, tokens: int) -> None:
        if tokens not in (0, self.tokens):
            raise LabError(
                "a state that has read a token cannot forget it: decode without what takes tokens back, such as an "
                "assistant model or prompt lookup"
            )

    def reset(self) -> None:
        super().reset()
        self.tokens = 0


def state_of(cache: Cache, number: int) -> StateLayer:
    """The place of a layer's state; in a cache that transformers made it is put there."""
    cache.layers.extend(DynamicLayer() for _ in range(number + 1 - len(cache.layers)))
    if not isinstance(cache.layers[number], StateLayer):
        cache.layers[number] = StateLayer()
    return cache.layers[number]


def usable(cache: Cache, scheme: Scheme, name: str) -> Cache:
    """The cache itself. Raises LabError where decoding with it would not give what the full forward gives.

    name: what to call the scheme in an error.
    """
    if not scheme.prefix_consistent:
        raise LabError(
            f"{name} encodes all tokens anew when the input grows: what a cache holds of them would be of a shorter "
            "input. Pass use_cache=False; `generate` does so by itself"
        )
    if fixed := [layer for layer in cache.layers if not isinstance(layer, DynamicLayer)]:
        raise LabError(
            f"a cache of {type(fixed[0]).__name__} hands out room that no token fills yet: pass none, and one is made, "
            "or transformers' DynamicCache()"
        )
    return cache


def remember(cache: Cache, layers: int, ids: Tensor, segments: Tensor | None, batch: int) -> tuple[Tensor, Tensor]:
    """Add the places of the new tokens, (B or 1, Q), to those of the earlier: position and segment of all, (B, T).

    They are kept as the keys and values of one more layer, so that whatever reorders or crops the cache reaches them.
    """
    cache.layers.extend(DynamicLayer() for _ in range(layers + 1 - len(cache.layers)))  # one that transformers made
    segments = torch.zeros_like(ids) if segments is None else segments
    places = (x.expand(batch, -1)[:, None, :, None] for x in (ids, segments))  # (B, 1, Q, 1), as (B, G, Q, D)
    return tuple(x[:, 0, :, 0] for x in cache.update(*places, layers))


def note_down(cache: Cache, layers: int, number: int, notes: Tensor | None) -> Tensor | None:
    """Add a layer's (B, Q, N) notes of the new tokens to those of the earlier: (B, T, N), as far back as its keys."""
    if notes is None:
        return None
    place = layers + 1 + number
    cache.layers.extend(DynamicLayer() for _ in range(place + 1 - len(cache.layers)))  # one that transformers made
    return cache.update(notes[:, None], notes[:, None, :, :0], place)[0][:, 0]


def places_of(cache: Cache, layers: int) -> Tensor | None:
    """(B, T) positions of the tokens in the cache; None: it is empty."""
    if not cache.get_seq_length(layers):
        return None
    return cache.layers[layers].keys[:, 0, :, 0]
