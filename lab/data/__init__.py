"""Text -> token ids: training and held-out documents, told apart by their content, in flat memory-mapped files."""

import hashlib
import heapq
import json
import sys
from pathlib import Path

import numpy as np

from lab import LabError
from lab.data.stored import Corpus, Side, damage, opened
from lab.data.write import build
from lab.settings import Data
from lab.sources import identity
from lab.tokenizer import tokenizer_of

FORMAT = 2  # of the cached files; another number and old caches are left alone


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
