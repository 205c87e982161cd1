"""Token ids on disk: the training and the held-out documents, memory-mapped, and what is wrong with them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BYTES = np.dtype(np.uint32)  # a token may stand for a long run of blanks


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
