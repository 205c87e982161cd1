"""Algorithmic problems as what a run is trained on and measured by: their batches, their test, and what cannot fit."""

# B problems a step · T tokens

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from eval import EvalError
from eval.algorithmic import END, accuracies, counts, length, problems, prompt
from eval.problems import task_of
from lab.data import Corpus
from lab.ranking import LONGER
from lab.rows import Row
from lab.settings import Data, Run


@dataclass(frozen=True)
class Problems:
    """Training problems without end, where a corpus has its training documents: each made when its step comes."""

    tasks: tuple[str, ...]
    sizes: tuple[int, int]  # smallest, largest
    names: tuple[str, ...] = ()

    def at(self, offsets: np.ndarray, length: int) -> list[str]:
        return [f"problem {number}" for number in offsets.tolist()]


def corpus_of(settings: Data) -> Corpus:
    """The problems of these settings. Nothing is stored: meta says what they are and where few are there to test on."""
    smallest, largest = settings.sizes
    source = {"source": "algorithmic", "task": settings.task, "sizes": [smallest, largest]}
    found = {f"{task} {size}": counts(task, size) for task in settings.task for size in range(smallest, largest + 1)}
    meta = {"source": source, "tokenizer": {"name": "bytes"}, "vocab_size": 256, "eos": END}
    meta |= {"sha256": hashlib.sha256(json.dumps(source).encode()).hexdigest()}
    meta |= {"few": {name: count for name, count in found.items() if count["test"] < 100}}
    return Corpus(Problems(tuple(settings.task), (smallest, largest)), None, meta)


def batch(side: Problems, *, length: int, size: int, seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The problems of a step, over all ranks: ids (size, length + 1) int64, filled up with ends, and their numbers.

    A pure function of its arguments: a hash of seed and number draws a problem's task and size, each as likely.
    """
    numbers = step * size + np.arange(size)
    kinds: dict[tuple[str, int], list[int]] = {}
    for number in numbers.tolist():
        kinds.setdefault(kind_of(side, seed, number), []).append(number)
    ids = np.full((size, length + 1), END, np.int64)
    for (task, of_size), found in kinds.items():
        for number, problem, answer in zip(found, *problems(task, of_size, found, seed, "train"), strict=True):
            text = prompt(task, problem) + answer
            ids[number - numbers[0], : len(text)] = np.frombuffer(text, np.uint8)
    return ids, numbers


def kind_of(side: Problems, seed: int, number: int) -> tuple[str, int]:
    """The task and the size of a training problem."""
    smallest, largest = side.sizes
    draw = int.from_bytes(hashlib.sha256(f"problem {number} {seed}".encode()).digest()[:16], "big")
    draw, task = divmod(draw, len(side.tasks))
    return side.tasks[task], smallest + draw % (largest - smallest + 1)


def answers(ids: np.ndarray) -> np.ndarray:
    """What each input is to predict, (B, T): the answer and the end after it; -100 on the problem and what fills up.

    As in the paper's code, which masks the problem: most of it is drawn at random and cannot be learned.
    """
    place = np.arange(ids.shape[1])
    asked = ids.shape[1] - 1 - np.argmax(ids[:, ::-1] == ord("="), 1)  # of the last "=": an answer has none
    ended = np.argmax(ids == END, 1)
    return np.where((place > asked[:, None]) & (place <= ended[:, None]), ids, -100)[:, 1:]


def sizes_of(run: Run) -> list[int]:
    """The sizes to test; the paper's, up to twice the largest trained on, where none are given."""
    return sorted(set(run.eval.sizes)) or list(range(1, 2 * run.data.sizes[1] + 1))


def rows_of(blank: Row, run: Run, model) -> Iterator[Row]:
    """The rows of the scheme that is in the model: exact match and accuracy by token, by task and size.

    Every process measures all, so that all have the same rows. The problems are the same for each run, seed and scheme.
    """
    for task in run.data.task:
        found = accuracies(
            model,
            task,
            sizes_of(run),
            run.eval.problems,
            limit=model.scheme.limit,
            batch_tokens=run.eval.batch_tokens,
        )
        for one in found:
            row = row_of(blank, run, task, one.size, one.note)
            yield replace(row, metric="exact", value=one.exact, count=one.count)
            yield replace(row, metric="token", value=one.token, count=one.tokens)


def unmeasured(blank: Row, run: Run, note: str) -> Iterator[Row]:
    """The same rows without values, of a scheme that cannot be measured; the note says why."""
    for task in run.data.task:
        for size in sizes_of(run):
            yield from (replace(row_of(blank, run, task, size, note), metric=metric) for metric in ("exact", "token"))


def row_of(blank: Row, run: Run, task: str, size: int, note: str) -> Row:
    longer = LONGER if size > run.data.sizes[1] else ""
    note = "; ".join(part for part in (longer, note) if part)
    return replace(blank, probe=f"algorithmic/{task}", length=size, note=note)


def progress(model, run: Run) -> dict[str, float]:
    """The share of 32 test problems that is answered exactly at the largest size trained on and at twice that."""
    found = {}
    for task in run.data.task:
        for one in accuracies(model, task, both_ends(task, run), 32, limit=model.scheme.limit):
            if one.exact is not None:
                found[f"exact_{task}_{one.size}"] = one.exact
    return found


def both_ends(task: str, run: Run) -> list[int]:
    largest = run.data.sizes[1]
    return [size for size in (largest, 2 * largest) if size <= (task_of(task).limit or size)]


def flaws(run: Run) -> list[str]:
    """What of these settings cannot be: tasks and sizes that do not exist, problems longer than a sequence."""
    found = []
    smallest, largest = run.data.sizes
    if smallest > largest:
        found.append(f"data.sizes: [{smallest}, {largest}] holds no size: write the smallest first")
    if run.data.tokenizer != "bytes":
        found.append(f"data.tokenizer: algorithmic problems are made of bytes, not of `{run.data.tokenizer}`")
    if not run.data.task:
        found.append("data.task: source algorithmic needs one: copy, or a list such as [copy, reverse]")
    for task in run.data.task:
        try:
            needed = length(task, largest) - 1
            if needed > run.train.length:
                found.append(
                    f"train.length: a problem of {task} with {largest} {task_of(task).unit} takes {needed} tokens, "
                    f"{run.train.length} are given: raise train.length to {needed} or lower data.sizes"
                )
        except EvalError as error:
            found.append(f"data.{'sizes' if 'size' in str(error) else 'task'}: {error}")
            continue
        try:
            task_of(task, max(sizes_of(run)))
        except EvalError as error:
            found.append(f"eval.sizes: {error}")
    return found
