"""Sequence tasks for an encoder–decoder: the source is the problem, the target its answer, a byte a token."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eval.algorithmic import counts, every, problems
from lab.algorithmic import Problems, corpus_of, kind_of
from lab.seq2seq import bpe
from lab.seq2seq.pairs import Rows
from lab.seq2seq.settings import Translation

FIRST = len(bpe.SPECIAL)
"""The token of byte 0; before it stand padding, start and end."""
END = 2


@dataclass(frozen=True)
class Tasks:
    """Problems without end, where parallel text has its training pairs."""

    train: Problems
    tokenizer: object
    meta: dict


def tasks_of(run: Translation) -> Tasks:
    found = corpus_of(run.data)
    meta = {**found.meta, "vocab_size": FIRST + 256, "eos": END, "pad": 0, "tokenizer": {"name": "bytes"}}
    return Tasks(found.train, bpe.of_bytes(), meta)


def ids_of(text: bytes) -> np.ndarray:
    return np.concatenate([np.frombuffer(text, np.uint8).astype(np.int64) + FIRST, [END]])


def text_of(ids: list[int]) -> bytes:
    """What is written before the end; tokens that are no bytes are left out."""
    ids = ids[: ids.index(END)] if END in ids else ids
    return bytes(one - FIRST for one in ids if one >= FIRST)


def drawn(side: Problems, *, rows: int, seed: int, step: int) -> Rows:
    """The problems of a step: a hash of seed and number draws the size of each."""
    numbers = range(step * rows, (step + 1) * rows)
    kinds: dict[tuple[str, int], list[int]] = {}
    for number in numbers:
        kinds.setdefault(kind_of(side, seed, number), []).append(number)
    found = {}
    for (task, size), some in kinds.items():
        for number, problem, answer in zip(some, *problems(task, size, some, seed, "train"), strict=True):
            found[number] = ids_of(problem), ids_of(answer)
    return [found[number] for number in numbers]


def tested(task: str, size: int, most: int) -> Iterator[tuple[bytes, bytes]]:
    """(problem, answer) of up to `most` test problems, none of which is trained on."""
    few = counts(task, size)["test"] <= most
    found = every(task, size, "test") if few else problems(task, size, range(most), 0, "test")
    return zip(*found, strict=True)
