"""plan: which forward passes serve which records, known before anything is run."""

# N tokens

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eval import EvalError
from eval.protocols import PROTOCOLS, Protocol, Window

STRIDE = 256
"""Tokens; of the protocols that have a stride, the one of the published scripts."""

Record = tuple[str, int]
"""A protocol's name and a context length."""


@dataclass(frozen=True, eq=False)
class Document:
    """A text as tokens; where the model was trained with one, the first is the token that begins a text."""

    name: str
    ids: Tensor  # (N,) int64
    bytes: NDArray[np.integer] | None = None  # (N,) bytes of text that each token stands for; None: not known
    digests: dict[int, str] = field(default_factory=dict, repr=False)

    def digest(self, stop: int) -> str:
        """What tells the first `stop` tokens from others."""
        if stop not in self.digests:
            self.digests[stop] = hashlib.sha256(self.ids[:stop].numpy().tobytes()).hexdigest()
        return self.digests[stop]


@dataclass(frozen=True)
class Piece:
    """Part of a forward pass that one record wants: places first … stop-1 are its losses from `at` on."""

    record: Record
    first: int
    stop: int
    at: int


@dataclass(frozen=True)
class Forward:
    """Run tokens start … start+length-1 of a document; each piece is wanted by a record."""

    start: int
    length: int
    pieces: tuple[Piece, ...]
    bos: bool  # whether its first token is replaced by the one that begins a text
    hidden: range | None = None  # places whose tokens are hidden and scored: pieces then count these

    @property
    def first(self) -> int:
        return min(piece.first for piece in self.pieces)

    @property
    def scored(self) -> int:
        """At how many places logits are made."""
        return self.length - self.first if self.hidden is None else len(self.hidden)


def forwards(records: dict[Record, Iterable[Window]], shared: bool, bos: bool = True) -> list[Forward]:
    """The forward passes that serve all windows of one document.

    shared: a window may be read off a longer one with the same start, because what follows changes nothing before it.
    bos: whether there is a token that begins a text; the document begins with it.
    """
    found: dict[tuple, list[Piece]] = {}
    length: dict[tuple, int] = {}
    for record, windows in records.items():
        at = 0
        for window in windows:
            looking_back = window.hidden is None
            replaced = bos and looking_back and PROTOCOLS[record[0]].bos and window.start > 0
            # What looks ahead is never read off a longer window: every token in it changes every loss.
            key = window.start, 0 if shared and looking_back else window.length, replaced, window.hidden
            found.setdefault(key, []).append(Piece(record, window.first, window.first + window.scored, at))
            length[key] = max(length.get(key, 0), window.length)
            at += window.scored
    runs = [Forward(key[0], length[key], tuple(pieces), *key[2:]) for key, pieces in found.items()]
    return sorted(runs, key=lambda run: (-run.length, run.start))


@dataclass(frozen=True)
class Plan:
    """What will be run of these documents. Raises EvalError where it cannot be."""

    documents: Sequence[Document]
    lengths: list[int]  # asked for; kept in order, each once
    protocols: list[Protocol]  # each once
    limit: int | None = None  # the longest input that the model takes
    shared: bool = False  # whether a shorter window may be read off a longer one
    stride: int = STRIDE
    bos: int | None = None  # the token that windows begin with, in the place of their first
    mask: int | None = None  # the token that stands for a hidden one; None: the model reads from left to right
    known: dict[tuple, list] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "lengths", sorted(set(self.lengths)))
        object.__setattr__(self, "protocols", list({one.name: one for one in self.protocols}.values()))
        if not self.documents:
            raise EvalError("there is no document to measure")
        if not self.lengths or self.lengths[0] < 2 or any(length % 2 for length in self.lengths):
            raise EvalError(f"lengths {self.lengths}: each must be an even number of tokens, 2 or more")
        if self.stride < 1:
            raise EvalError(f"stride {self.stride}: must be 1 token or more")
        for protocol in self.protocols:
            self.check_order(protocol)
            self.check_documents(protocol)
        for record in self.records():
            if not self.count(record, self.documents[0]):
                raise EvalError(f"{record[0]} scores no token of a window of {record[1]}: take longer lengths")

    def check_order(self, protocol: Protocol) -> None:
        if protocol.hides and self.mask is None:
            raise EvalError(f"{protocol.name} is of masked language models: give the plan `mask`, the token that hides")
        if self.mask is not None and not protocol.hides:
            raise EvalError(
                f"{protocol.name} asks for the next token, which a masked language model sees: use eval.pseudo"
            )

    def check_documents(self, protocol: Protocol) -> None:
        wanted = protocol.needs(self.longest, self.stride)
        if short := [one for one in self.documents if len(one.ids) < wanted]:
            have = max(len(one.ids) for one in self.documents)
            raise EvalError(
                f"{protocol.name} at {self.longest} tokens needs documents of {wanted} tokens: {len(short)} of "
                f"{len(self.documents)} are shorter ({short[0].name} has {len(short[0].ids)}, the longest {have}). "
                "Take shorter lengths, or leave the short documents out"
            )
        if self.bos is not None and (wrong := [one for one in self.documents if one.ids[0] != self.bos]):
            raise EvalError(
                f"{wrong[0].name} begins with token {int(wrong[0].ids[0])}, and windows are to begin with {self.bos}: "
                "put that before the text"
            )

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    @property
    def reachable(self) -> list[int]:
        return [length for length in self.lengths if self.limit is None or length <= self.limit]

    def has(self, protocol: str) -> bool:
        return any(one.name == protocol for one in self.protocols)

    def protocol(self, record: Record) -> Protocol:
        return next(one for one in self.protocols if one.name == record[0])

    def records(self) -> Iterator[Record]:
        """What there will be losses of; by position only once, in the longest window that the model takes."""
        for protocol in self.protocols:
            lengths = self.reachable[-1:] if protocol.name == "position" else self.reachable
            yield from ((protocol.name, length) for length in lengths)

    def windows(self, record: Record, document: Document) -> list[Window]:
        key = record, len(document.ids)
        if key not in self.known:
            protocol = self.protocol(record)
            read = len(document.ids) if protocol.whole else protocol.needs(self.longest, self.stride)
            self.known[key] = protocol.windows(read, record[1], self.longest, self.stride)
        return self.known[key]

    def count(self, record: Record, document: Document) -> int:
        """How many losses there will be."""
        return sum(window.scored for window in self.windows(record, document))

    def targets(self, record: Record, document: Document) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(targets,) which token of the document each loss is of, and how many others were seen."""
        windows = self.windows(record, document)
        return np.concatenate([w.targets for w in windows]), np.concatenate([w.seen for w in windows])

    def runs(self, document: Document, records: Sequence[Record] | None = None) -> list[Forward]:
        """The forward passes of one document for these records (default: all)."""
        wanted = tuple(self.records() if records is None else records)
        key = wanted, len(document.ids)
        if key not in self.known:
            windows = {record: self.windows(record, document) for record in wanted}
            self.known[key] = forwards(windows, self.shared, self.bos is not None)
        return self.known[key]

    def tokens(self, document: Document, records: Sequence[Record] | None = None) -> int:
        """How many tokens these forward passes run."""
        return sum(run.length for run in self.runs(document, records))

    def key(self, identity: str, document: Document, record: Record) -> str:
        """Everything that a document's losses depend on: the model, the windows, the tokens in them, the first token or
        the one that hides others.

        Lengths, stride and the name of the protocol matter by the windows that come of them, and in no other way.
        """
        windows = self.windows(record, document)
        stop = 1 + max(window.start + window.length for window in windows)
        protocol = self.protocol(record)
        begin = self.mask if protocol.hides else self.bos if protocol.bos else None
        said = [identity, document.digest(stop), begin, [window.said for window in windows]]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
