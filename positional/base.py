"""The protocol: what a positional encoding is told, where it may act, and what it may do to attention scores."""

# Shapes, everywhere in this package:
# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size · C width

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor, nn

AtPair = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) index tensors that broadcast together -> one value for each pair."""


class SchemeError(Exception):
    """A positional encoding that cannot be built or used as asked; the message names it and the fix."""


@dataclass(frozen=True)
class Shape:
    """The facts about a model that a scheme may need. Lengths are in tokens."""

    width: int
    heads: int
    kv_heads: int
    layers: int
    train_length: int  # L0 of every formula: the longest input seen in training
    key_size: int | None = None  # channels of a query and of a key. None: width / heads

    @property
    def head_dim(self) -> int:
        return self.width // self.heads if self.key_size is None else self.key_size


@dataclass(frozen=True)
class Positions:
    """Where every key and every query sits, and in which layer. Queries are the last `queries` of the tokens.

    Packed documents, left padding, skipped or random positions and cached decoding differ only in what stands here.
    Causality follows the order of the tokens, not their positions: a token sees itself and the tokens before it.
    In cross-attention (see `across`) the queries are no tokens, and may be more than there are of them.
    """

    ids: Tensor  # (B or 1, T) int64, the position of each token
    queries: int  # Q
    length: int  # the length being run: 1 + the largest position, as a Python number, so that reading it costs nothing
    contiguous: bool = False  # known to go up by exactly one from token to token, in every row
    causal: bool = True
    segments: Tensor | None = None  # (B or 1, T); a token sees only tokens of its own segment. None: all are one
    layer: int = 0  # which of the model's layers asks
    notes: Tensor | None = None  # (B, T, N) what the scheme noted of each token in this layer; see `Scheme.note`
    asking: Tensor | None = None  # (B or 1, Q) positions of queries that are no tokens; their segment is 0
    memo: dict = field(default_factory=dict, repr=False, compare=False)  # see `once`

    @classmethod
    def first(cls, tokens: int, *, queries: int | None = None, device=None, causal: bool = True) -> "Positions":
        """Positions 0 … tokens-1, the same in every row; the last `queries` of them (default: all) ask."""
        ids = torch.arange(tokens, device=device)[None]
        return cls(ids, tokens if queries is None else queries, tokens, contiguous=True, causal=causal)

    @classmethod
    def across(cls, queries: Tensor, keys: Tensor, length: int, *, seen: Tensor | None = None) -> "Positions":
        """Cross-attention: queries at (B or 1, Q) positions look at other tokens, at (B or 1, T) positions.

        length: 1 + the largest position of both.   seen: (B or 1, T), False for tokens that are hidden, as padding is.
        """
        segments = None if seen is None else seen.long() - 1
        return cls(keys, queries.shape[-1], length, causal=False, segments=segments, asking=queries)

    @property
    def tokens(self) -> int:
        return self.ids.shape[-1]

    def last(self, tokens: int) -> "Positions":
        """The same queries, with only the last `tokens` of the tokens to see."""
        if tokens == self.tokens:
            return self

        def cut() -> "Positions":
            segments = None if self.segments is None else self.segments[:, -tokens:]
            return replace(self, ids=self.ids[:, -tokens:], segments=segments, memo={})

        return self.once(("last", tokens), cut)

    @property
    def of_queries(self) -> Tensor:  # (B or 1, Q)
        return self.ids[:, self.tokens - self.queries :] if self.asking is None else self.asking

    @property
    def segments_of_queries(self) -> Tensor:  # (B or 1, Q), where there are segments
        return self.segments[:, self.tokens - self.queries :] if self.asking is None else torch.zeros_like(self.asking)

    def renumbered(self, numbers: Tensor, length: int) -> "Positions":
        """The same tokens, those at position p now at numbers[row, p]. numbers: (B, length so far), below `length`."""
        ids = numbers.to(self.ids.device).gather(1, self.ids.expand(len(numbers), -1))
        return replace(self, ids=ids, length=length, contiguous=False, memo={})

    def distance(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """How far key j lies behind query i: position of the query minus position of the key (negative: ahead)."""
        return self.of_queries[row_of(self.of_queries, b), i] - self.ids[row_of(self.ids, b), j]

    def once(self, key: Hashable, make: Callable[[], object]):
        """`make()`, computed for the first layer that asks and kept for the others of the same forward pass.

        Only for values without a gradient: a layer that is run again for its gradient must find the same graph.
        """
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]


def row_of(shared: Tensor, b: Tensor) -> Tensor:
    """The row of a (B or 1, T) tensor that holds batch b."""
    # Of as many axes as b: torch.compile would read the number out of a tensor that has none.
    return b if shared.shape[0] > 1 else torch.zeros([1] * b.dim(), dtype=b.dtype, device=b.device)


class ByDistance:
    """A bias that depends on head and distance alone: an `AtPair` that backends may ask for `vector` instead."""

    def __init__(self, bias: Callable[[Tensor, Tensor], Tensor], pos: Positions):
        self.bias, self.pos = bias, pos

    def __call__(self, b, h, i, j):
        return self.bias(self.pos.distance(b, i, j), h)

    def vector(self, distances: Tensor, heads: int) -> Tensor:
        """The bias at each of the (N,) distances, for every head: (H, N)."""
        return self.bias(distances[None, :], torch.arange(heads, device=distances.device)[:, None])


AtRows = Callable[[Tensor, Tensor], Tensor]
"""(c,) query and (K,) key indices, both consecutive -> (B or 1, H, c, K): what is made of whole rows, not by pairs."""


@dataclass(frozen=True)
class Scores:
    """What a scheme does to the attention scores q·k/√D, said once; every backend lowers it to its own kernel."""

    slopes: Tensor | None = None  # (H,) fp32: score -= slopes[h] * |distance|
    decay: Tensor | None = None  # (B or 1, H, T) fp32: score -= decay[query] - decay[key], what lies between the two
    window: int | None = None  # a query sees itself and the window-1 tokens before it
    sinks: int | None = None  # beside its window, a query sees the tokens before it whose position is below this
    beyond: int | None = None  # a query sees only tokens at least this many before it: what a window leaves out
    bias: AtPair | None = None  # any other number added to a score
    rows: AtRows | None = None  # numbers added to whole rows of scores
    keep: AtPair | None = None  # any other mask: False hides the key
    cap: float | None = None  # score = cap · tanh(score / cap), before any other word acts

    @property
    def needs(self) -> frozenset[str]:
        """The words used, for a backend to compare with those it can run."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) is not None)

    @classmethod
    def of_distance(cls, bias: Callable[[Tensor, Tensor], Tensor], pos: Positions) -> "Scores":
        """Add bias(distance, head) to the scores; both arguments are int64 tensors that broadcast together."""
        return cls(bias=ByDistance(bias, pos))


class Scheme(nn.Module):
    """A positional encoding. Every hook does nothing by default, so this class is NoPE; override where a scheme acts.

    A scheme keeps no buffers: what follows from Python numbers is computed when needed, in fp32, so that no cast, no
    loading path and no earlier longer input can change it.
    """

    limit: int | None = None  # the longest input it can take, in tokens; None: any
    reach: int | None = None  # a token sees at most itself and the reach-1 before it: a cache may forget the others
    prefix_consistent: bool = True  # the output at a token depends on nothing after it, not even on how much follows
    causal_only: str | None = None  # why it has no meaning where a token also sees those after it; None: it has
    notes: int = 0  # N, how many numbers it notes of a token in each layer

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def place(self, pos: Positions, rows: int) -> Positions:
        """In training alone, once: where the tokens of each of the batch's rows are said to sit.

        What is drawn comes from torch's own generator of random numbers, for the CPU on every device.
        """
        return pos

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        """(B, Q, C) token embeddings, once, before the first layer."""
        return x

    def note(self, x: Tensor, pos: Positions) -> Tensor | None:
        """(B, Q, C) what enters a layer's attention -> (B, Q, N) fp32, kept as keys are: `notes` of the later hooks."""
        return None

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        """(B, H, Q, D) queries and (B, G, T, D) keys, in every layer."""
        return q, k

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        """What is added to or hidden from the scores, in every layer."""
        return Scores()

    def parts(self, q: Tensor, k: Tensor, pos: Positions) -> list[tuple[Tensor, Tensor, Scores]]:
        """Rotated queries and keys, and what their scores undergo. Most schemes have one part, made by the two hooks.

        With several, each sees keys that the others do not, and one softmax over all is what comes out.
        """
        q, k = self.rotate(q, k, pos)
        return [(q, k, self.scores(q, k, pos))]

    def at(self, layer: int) -> "Scheme":
        """The scheme of one layer; most are the same in all."""
        return self
