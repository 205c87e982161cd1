"""Text -> token ids: training and held-out documents, told apart by their content, in flat memory-mapped files."""

import contextlib
import errno
import functools
import hashlib
import heapq
import importlib.metadata
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lab import LabError
from lab.settings import Data
from lab.sources import documents, identity
from lab.tokenizer import Tokenizer, tokenizer_of

FORMAT = 2  # of the cached files; another number and old caches are left alone
TOGETHER = 64  # documents a tokenizer is given at once, to use all its threads
BYTES = np.dtype(np.uint32)  # a token may stand for a long run of blanks
DAY = 86400  # seconds


@dataclass(frozen=True)
class Side:
    """The training or the held-out documents: N token ids on end, every document followed by the end token."""

    ids: np.ndarray  # (N,) memory-mapped, uint8 to uint32 by vocabulary
    starts: np.ndarray  # (documents + 1,) int64: document d is ids[starts[d] : starts[d + 1] - 1]
    names: list[str]
    bytes: np.ndarray | None = None  # (N,) of text that each token stands for, uint32; of held-out text, where known

    def document(self, d: int) -> np.ndarray:
        """The tokens of document d, without the end token."""
        return self.ids[self.within(d)]

    def within(self, d: int) -> slice:
        return slice(self.starts[d], self.starts[d + 1] - 1)

    def at(self, offsets: np.ndarray, length: int) -> list[str]:
        """The documents that the stretches ids[o : o + length] touch, in order, each once."""
        first = np.searchsorted(self.starts, offsets, side="right") - 1
        last = np.searchsorted(self.starts, np.asarray(offsets) + length, side="left")
        touched = dict.fromkeys(d for a, z in zip(first, last, strict=True) for d in range(a, z))
        return [self.names[d] for d in touched]


@dataclass(frozen=True)
class Corpus:
    """Both sides, and what they were made from: meta["vocab_size"], ["eos"], ["sha256"], ["source"], counts a side."""

    train: Side
    held_out: Side
    meta: dict[str, Any]


def corpus(settings: Data) -> Corpus:
    """The documents of these settings as token ids: built at the first call, then read from settings.cache.

    Raises LabError where the source, the tokenizer or the cache folder cannot be used, or nothing is held out.
    """
    if settings.source == "algorithmic":
        from lab.algorithmic import corpus_of

        return corpus_of(settings)
    source, tokenizer = identity(settings), tokenizer_of(settings.tokenizer)
    made_from = {"format": FORMAT, "source": source, "tokenizer": tokenizer.identity}
    made_from |= {"settings": settings.model_dump(include={"documents", "held_out"})}
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(settings.cache).expanduser() / key
    if flaw := damage(folder):
        if folder.exists():
            print(f"{folder} is damaged ({flaw}): building it again", file=sys.stderr)
        build(folder, settings, made_from, tokenizer)
    found = opened(folder)
    if not found.held_out.names:
        raise LabError(nothing_held_out(len(found.train.names), settings.held_out))
    return found


def nothing_held_out(count: int, held_out: float) -> str:
    return (
        f"data: no documents to evaluate on: at data.held_out {held_out}, none of {count} was held out. A document is "
        "never on both sides: raise data.held_out, add documents, or cut long ones into several files or rows"
    )


def distinct(settings: Data) -> Iterator[tuple[str, str, bytes]]:
    """(name, text, sha256) of the documents that are not empty and were not seen before, without NUL characters."""
    seen = set()
    for name, text in documents(settings):
        content = text.encode("utf-8", "replace").replace(b"\0", b"")
        digest = hashlib.sha256(content).digest()
        if content and digest not in seen:
            seen.add(digest)
            yield name, content.decode(), digest


def is_held_out(digest: bytes, fraction: float) -> bool:
    """A document's side hangs on its content alone: it stays there whatever is added or dropped around it."""
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


class Writer:
    """One side, written document by document."""

    def __init__(self, file: BinaryIO, tokenizer: Tokenizer, sizes: BinaryIO | None = None):
        """sizes: where the bytes of every token go."""
        self.file, self.tokenizer, self.sizes = file, tokenizer, sizes
        self.end = np.array([tokenizer.eos], tokenizer.dtype).tobytes()
        self.starts, self.names, self.bytes, self.hash = [0], [], 0, hashlib.sha256()

    def add(self, name: str, text: str, ids: np.ndarray):
        written = ids.astype(self.tokenizer.dtype).tobytes() + self.end
        self.file.write(written)
        self.hash.update(written)
        if self.sizes and self.tokenizer.sizes:
            # The end token stands for none.
            self.sizes.write(self.tokenizer.sizes(text).astype(BYTES).tobytes() + bytes(BYTES.itemsize))
        self.starts.append(self.starts[-1] + len(ids) + 1)
        self.names.append(name)
        self.bytes += len(text.encode())

    def finish(self, starts: BinaryIO, names: BinaryIO) -> dict[str, Any]:
        starts.write(np.array(self.starts, np.int64).tobytes())  # np.save hides why a write failed
        names.write(json.dumps(self.names).encode())
        counts = {"documents": len(self.names), "tokens": self.starts[-1], "bytes": self.bytes}
        return counts | {"sha256": self.hash.hexdigest()}


def build(folder: Path, settings: Data, made_from: dict, tokenizer: Tokenizer):
    """Write the cache beside its place, then rename it there: whenever the process dies, no half-made one is found."""
    aside = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    try:
        sweep(folder)
        aside.mkdir(parents=True)
        write(aside, settings, made_from, tokenizer)
        settle(aside, folder)
    except OSError as error:  # the sources' own errors come as LabError
        raise LabError(unwritable(error, aside, made_from["source"].get("bytes"))) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write(folder: Path, settings: Data, made_from: dict, tokenizer: Tokenizer):
    names = "train.ids", "held_out.ids", "held_out.bytes"
    with contextlib.ExitStack() as files:
        train, held_out, sizes = (files.enter_context(open(folder / name, "wb")) for name in names)
        sides = [Writer(train, tokenizer), Writer(held_out, tokenizer, sizes)]
        for name, text, digest, ids in encoded(settings, tokenizer):
            sides[is_held_out(digest, settings.held_out)].add(name, text, ids)
        if not any(side.names for side in sides):
            raise LabError(f"data: the documents of source {settings.source} are all empty; give it some text")
        secured(train), secured(held_out), secured(sizes)
    meta = made_from | {"vocab_size": tokenizer.vocab_size, "eos": tokenizer.eos, "dtype": str(tokenizer.dtype)}
    meta |= {"sized": tokenizer.sizes is not None}
    for name, side in zip(("train", "held_out"), sides, strict=True):
        with open(folder / f"{name}.starts", "wb") as starts, open(folder / f"{name}.names.json", "wb") as names:
            meta[name] = side.finish(starts, names)
            secured(starts), secured(names)
    both = meta["train"]["sha256"] + meta["held_out"]["sha256"]
    meta |= {"sha256": hashlib.sha256(both.encode()).hexdigest(), "versions": versions(settings)}
    with open(folder / "meta.json", "wb") as file:
        file.write(json.dumps(meta, indent=1).encode())
        secured(file)


def encoded(settings: Data, tokenizer: Tokenizer) -> Iterator[tuple[str, str, bytes, np.ndarray]]:
    """(name, text, sha256, ids) of each document that has any token."""
    from tqdm import tqdm

    found = islice(distinct(settings), settings.documents)
    # disable=None: silent unless a terminal looks on; delay: in seconds, so that a small corpus says nothing.
    found = iter(tqdm(found, desc="text to token ids", unit=" documents", delay=2, disable=None))
    while group := list(islice(found, TOGETHER)):
        for document, ids in zip(group, tokenizer.encode([text for _, text, _ in group]), strict=True):
            if len(ids):
                yield *document, ids


def secured(file: BinaryIO):
    """On the disk, not only in the system's memory: a rename must never get there before the content."""
    file.flush()
    os.fsync(file.fileno())


def settle(aside: Path, folder: Path):
    """Move a finished cache to its place; if another process was first, its cache holds the same and stays."""
    if damage(folder):
        broken = aside.with_name(aside.name + "-broken")
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, broken)
        shutil.rmtree(broken, ignore_errors=True)
    try:
        os.rename(aside, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or damage(folder):
            raise


def sweep(folder: Path):
    """Remove what killed builds of this cache left; one that still runs has written something within a day."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        with contextlib.suppress(FileNotFoundError):  # it has just been moved to its place
            if time.time() - max(path.stat().st_mtime for path in (left, *left.iterdir())) > DAY:
                shutil.rmtree(left, ignore_errors=True)


def unwritable(error: OSError, folder: Path, text_bytes: int | None) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"data.cache: {folder.parent} cannot be written: {error.strerror or error}"
    written = sum(path.stat().st_size for path in folder.glob("*"))
    needs = f", of {megabytes(text_bytes)} of text" if text_bytes else ""
    return (
        f"data.cache: no space left in {folder.parent}: it was full after {megabytes(written)} of token ids{needs}. "
        "Free some space, point data.cache at another disk, or lower data.documents"
    )


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def versions(settings: Data) -> dict[str, str]:
    """Of the packages that may have had a part in the ids."""
    names = [] if settings.source == "stdlib" else ["datasets"]
    names += [] if settings.tokenizer == "bytes" else ["transformers", "tokenizers"]
    return {name: importlib.metadata.version(name) for name in names}


def damage(folder: Path) -> str | None:
    """What is wrong with a cache; None when it is whole."""
    try:
        opened(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return str(error) or type(error).__name__
    return None


def opened(folder: Path) -> Corpus:
    meta = json.loads((folder / "meta.json").read_text())
    return Corpus(read(folder, "train", meta), read(folder, "held_out", meta), meta)


def read(folder: Path, name: str, meta: dict) -> Side:
    counts = meta[name]
    ids = mapped(folder / f"{name}.ids", np.dtype(meta["dtype"]), counts["tokens"])
    sizes = mapped(folder / f"{name}.bytes", BYTES, counts["tokens"]) if name == "held_out" and meta["sized"] else None
    starts = np.fromfile(folder / f"{name}.starts", np.int64)
    names = json.loads((folder / f"{name}.names.json").read_text())
    if not len(starts) - 1 == len(names) == counts["documents"]:
        raise ValueError(f"{name} has {len(names)} names, {len(starts) - 1} starts, {counts['documents']} documents")
    return Side(ids, starts, names, sizes)


def mapped(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes of {count * dtype.itemsize}")
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if count else np.zeros(0, dtype)


def batch(side: Side, *, length: int, size: int, seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The whole batch of a step, over all ranks: ids (size, length + 1) int64 and their offsets (size,) int64.

    A row's first `length` ids are the inputs, its last `length` the targets. A pure function of its arguments: an epoch
    cuts the ids into stretches at a phase of its own and visits each once, in an order of its own; batches run across
    epochs. Raises LabError if the side is shorter than one row.
    """
    if len(side.ids) <= length:
        raise LabError(
            f"data: {len(side.names)} training documents hold {len(side.ids)} tokens, but one sequence of train.length "
            f"{length} needs {length + 1}: add text, lower train.length, or lower data.held_out"
        )
    epochs, places = np.divmod(step * size + np.arange(size), stretches(len(side.ids), length))
    orders = {epoch: order(len(side.ids), length, seed, epoch) for epoch in np.unique(epochs).tolist()}
    offsets = np.array([orders[epoch][place] for epoch, place in zip(epochs.tolist(), places, strict=True)])
    return np.array(side.ids[offsets[:, None] + np.arange(length + 1)], np.int64), offsets


def packed(side: Side, ids: np.ndarray, offsets: np.ndarray) -> dict[str, np.ndarray]:
    """What keeps the documents of a batch apart: each of them (size, length) int64, under its name in the model's call.

    segments: the number of the document that each input belongs to, its end token included.
    position_ids: counted from 0 at the document's first token; where its beginning is cut off, at the row's first.
    shift_labels: the targets, -100 at an end token: what follows there is another document, of which nothing is known.
    """
    # From the starts, not from the end token among the ids: a tokenizer may read an end token in a text.
    places = offsets[:, None] + np.arange(ids.shape[1])
    document = np.searchsorted(side.starts, places, side="right") - 1  # (size, length + 1)
    begun = np.maximum(side.starts[document], offsets[:, None])
    return {
        "segments": document[:, :-1],
        "position_ids": (places - begun)[:, :-1],
        "shift_labels": np.where(document[:, 1:] == document[:, :-1], ids[:, 1:], -100),
    }


def stretches(tokens: int, length: int) -> int:
    """How many an epoch has: one fewer than fit, so that every phase has as many and leaves out only ends."""
    return max(1, (tokens - 1) // length - 1)


@functools.lru_cache(2)
def order(tokens: int, length: int, seed: int, epoch: int) -> np.ndarray:
    """The offsets of an epoch's stretches, in the order of its visits."""
    count, random = stretches(tokens, length), np.random.default_rng([seed, epoch])
    phase = random.integers(tokens - count * length)
    return phase + length * random.permutation(count)


def long_documents(
    side: Side, *, length: int, count: int, whole: bool = False
) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """(name, first `length` ids as int64, their bytes) of `count` documents with at least so many tokens, without end
    tokens.

    whole: all ids instead.   Bytes are None where they are not known.

    They are the first in the order of a hash of their content, so a document added elsewhere displaces at most one.
    Raises LabError if there are fewer.
    """
    lengths = np.diff(side.starts) - 1
    fitting = np.flatnonzero(lengths >= length).tolist()
    if len(fitting) < count:
        raise LabError(
            f"eval: only {len(fitting)} of {len(lengths)} held-out documents have {length} tokens, and {count} are "
            f"asked for (by eval.documents; while training 8); the longest has {max(lengths, default=0)}. Lower "
            "eval.documents, eval.lengths or train.length, add longer texts, or raise data.held_out"
        )
    chosen = heapq.nsmallest(count, fitting, key=lambda d: hashlib.sha256(side.document(d)).digest())
    found = []
    for d in chosen:
        part = side.within(d) if whole else slice(side.starts[d], side.starts[d] + length)
        sizes = None if side.bytes is None else np.array(side.bytes[part])
        found.append((side.names[d], np.array(side.ids[part], np.int64), sizes))
    return found
