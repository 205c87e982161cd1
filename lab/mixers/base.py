"""A mixer in the place of attention: reads tokens from first to last and carries a state from each to the next."""

# B batch · Q new tokens · N documents · L tokens of the longest · C width · S × H what is carried, twice

import bisect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from lab import LabError
from lab.cache import state_of
from lab.linear import linear
from lab.mixers.documents import Documents
from positional import Positions, Shape

State = tuple[Tensor, Tensor]
"""(B or N, S, H) twice; a mixer that carries one thing leaves the other with H = 0."""


@dataclass(frozen=True)
class Place:
    """Where a mixer stands in a model."""

    width: int  # C
    layers: int  # of the model
    weights: int  # of attention in the same place
    number: int = 0  # how many layers of its kind come before it

    @classmethod
    def of(cls, shape: Shape, number: int = 0) -> "Place":
        attention = shape.width * (2 * shape.width + 2 * shape.kv_heads * shape.head_dim)
        return cls(shape.width, shape.layers, attention, number)


class Mixer(nn.Module):
    """What comes out at a token depends on it and, through the state alone, on the tokens before it.

    A document begins with a state of zeros, so packed documents, and tokens beside padding, are each as if alone.
    """

    gates: int
    """How many numbers are made for each that comes out before the way back to the width."""

    def __init__(self, place: Place, size: int):
        super().__init__()
        if size < 1:
            raise LabError(f"mixer {type(self).__name__.lower()}: size must be at least 1, got {size}")
        self.size = size
        self.out = linear(size, place.width, (2 * place.layers) ** -0.5)

    @property
    def made(self) -> int:
        """How many numbers of a token it makes, forward."""
        return (self.gates + 1) * self.size + self.out.out_features

    def begin(self, rows: int, like: Tensor) -> State:
        """The state before the first token."""
        raise NotImplementedError

    def read(self, x: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """(N, L, C) tokens and the state before them -> (N, L, size), and the state after the last.

        lengths: (N,) how many of the L places are tokens; what follows them is no one's. None: all.
        """
        raise NotImplementedError

    def forward(self, x: Tensor, pos: Positions, number: int, cache: Cache | None = None) -> Tensor:
        """(B, Q, C) -> (B, Q, C).   number: of the layer, whose state is in the cache."""
        kept = None if cache is None else state_of(cache, number)
        before = None if kept is None else kept.state
        if pos.segments is None:
            y, after = self.read(x, before or self.begin(len(x), x))
        else:
            y, after = self.read_documents(x, pos, before)
        if kept is not None:
            kept.put(after, x.shape[1])
        return self.out(y)

    def read_documents(self, x: Tensor, pos: Positions, before: State | None) -> tuple[Tensor, State]:
        """Each document by itself; the state that is kept is that of the document which each row ends in."""
        documents = pos.once("documents", lambda: Documents.of(pos, len(x)))
        none = self.begin(len(x), x)
        begun = documents.begun(before or none)
        y, ended = self.read(documents.split(x), begun, documents.lengths)
        return documents.joined(y), documents.ended(ended, before or none)


def fitting(weights: Callable[[int], int], budget: int) -> int:
    """The size of which `weights`, which grows with it, comes nearest to the budget."""
    above = 1 + bisect.bisect_left(range(1, budget + 1), budget, key=weights)
    return min((max(1, above - 1), above), key=lambda size: abs(weights(size) - budget))


def nothing(rows: int, like: Tensor) -> Tensor:
    return torch.zeros(rows, 1, 0, dtype=like.dtype, device=like.device)
