"""Documents -> token ids on disk: each on the side that its content says, whole or not there at all."""

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lab import LabError
from lab.data.stored import BYTES, damage
from lab.settings import Data
from lab.sources import documents
from lab.tokenizer import Tokenizer

TOGETHER = 64  # documents a tokenizer is given at once, to use all its threads
DAY = 86400  # seconds


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
