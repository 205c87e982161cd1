"""Length generalization on algorithmic problems, and how schemes rank (Kazemnejad et al. 2023, arXiv:2305.19466)."""

# N problems · K numbers a problem

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from eval import EvalError
from eval.problems import Written, task_of
from eval.sample import Answering, Sample
from eval.scorer import Budget

END = 0  # ends an answer: to stop at the right place is part of it
Side = Literal["train", "test"]


def held_out(values: int) -> int:
    """How many of so many values of a problem's first number make it a test problem: a tenth, to the nearest."""
    return round(values / 10)


def counts(task: str, size: int) -> dict[Side, int]:
    """How many problems of this size each side has. A size with few problems may have none to test on."""
    kind = task_of(task, size)
    values, every = kind.numbers(size)[0], kind.count(size)
    test = every // values * held_out(values)
    return {"train": every - test, "test": test}


def problems(task: str, size: int, indices: Sequence[int], seed: int, side: Side) -> Written:
    """A problem for each index: a function of task, size, index, seed and side, whatever stands beside it.

    The sides share no problem, under any seed: a hash of the problem without its first number, added to that number,
    tells the side, so that a problem of either is made by setting one number and not by searching for one that fits.
    """
    kind = task_of(task, size)
    values, *others = kind.numbers(size)
    spare = held_out(values)
    choices = spare if side == "test" else values - spare
    if not choices:
        raise EvalError(f"{task}: {few(task, size)}")
    said = [f"{task} {size} {index} {seed} {side}" for index in indices]
    return sided(task, size, drawn([choices, *others], said), side)


def drawn(numbers: list[int], said: list[str]) -> NDArray[np.int64]:
    """(N, K) numbers, each below its own bound, from a hash of each text; the bias of so wide a hash is below 2^-57."""
    raw = b"".join(hashlib.shake_256(text.encode()).digest(8 * len(numbers)) for text in said)
    return (np.frombuffer(raw, "<u8").reshape(len(said), -1) % np.array(numbers, np.uint64)).astype(np.int64)


def sided(task: str, size: int, chosen: NDArray, side: Side) -> Written:
    """Problems whose first number is given as the how-manieth of those that put them on this side."""
    kind = task_of(task, size)
    values = kind.numbers(size)[0]
    rest = chosen.copy()
    rest[:, 0] = 0
    marks = [
        int.from_bytes(hashlib.sha256(f"{task} {size} ".encode() + text).digest()[:8], "big") % values
        for text in kind.write(rest, size)[0]
    ]
    first = chosen[:, 0] + (0 if side == "test" else held_out(values))
    rest[:, 0] = (first + np.array(marks, np.int64)) % values
    return kind.write(rest, size)


def every(task: str, size: int, side: Side) -> Written:
    """All problems of a side, each once, in an order of no meaning; for sizes that have few."""
    values, *others = task_of(task, size).numbers(size)
    numbers = [held_out(values) if side == "test" else values - held_out(values), *others]
    if not numbers[0]:
        return [], []
    chosen = np.stack(np.unravel_index(np.arange(prod(numbers)), numbers), 1)
    texts, answers = sided(task, size, chosen, side)
    answer_of = dict(zip(texts, answers, strict=True))  # a number that a problem does not use makes none new
    return list(answer_of), list(answer_of.values())


def few(task: str, size: int) -> str:
    kind = task_of(task, size)
    return f"only {kind.count(size)} problems of {size} {kind.unit}, too few to hold any out: all are trained on"


def prompt(task: str, problem: bytes) -> bytes:
    """What a problem looks like up to its answer: it begins alike, as a scheme that sees no position needs it to."""
    return f"{task} ".encode() + problem + b"="


def length(task: str, size: int) -> int:
    """Tokens of the longest problem of this size, with its answer and the end."""
    return len(prompt(task, b"")) + task_of(task, size).longest(size) + 1


def samples(task: str, size: int, n: int, seed: int, side: Side = "test") -> list[Sample]:
    """`n` problems, or all of the side, each once, where it has no more than that; none where it has none.

    Where there are more they are drawn one by one, so that one may come twice: an estimate is right either way.
    """
    if n < 1:
        raise EvalError(f"{n} problems of {task} cannot be asked for: give a whole number from 1 on")
    all_of_them = counts(task, size)[side] <= n
    found = every(task, size, side) if all_of_them else problems(task, size, range(n), seed, side)
    return [sample(task, size, *one) for one in zip(*found, strict=True)]


def sample(task: str, size: int, problem: bytes, answer: bytes) -> Sample:
    asked = prompt(task, problem)
    ids = np.frombuffer(asked + answer + bytes([END]), np.uint8).astype(np.int64)
    return Sample(ids, ((len(asked), len(ids)),), {"task": task, "size": size})


@dataclass(frozen=True)
class Accuracy:
    """How many of the problems of one size are answered."""

    task: str
    size: int
    exact: float | None  # share of the problems of which each token of the answer is right, its end included
    token: float | None  # share of the tokens of all answers that are right, their ends left out: they tell too little
    count: int  # problems
    tokens: int
    note: str = ""  # why there is no value


def accuracies(
    model: nn.Module,
    task: str,
    sizes: Sequence[int],
    n: int,
    *,
    seed: int = 0,
    limit: int | None = None,
    batch_tokens: int = 16384,
) -> Iterator[Accuracy]:
    """Of up to `n` test problems of each size, by teacher forcing. limit: the most tokens the model's scheme takes."""
    asking = Answering(model, Budget(batch_tokens))
    for size in sizes:
        asked = samples(task, size, n, seed)
        if not asked:
            yield Accuracy(task, size, None, None, 0, 0, few(task, size))
        elif limit is not None and length(task, size) - 1 > limit:
            yield Accuracy(task, size, None, None, 0, 0, f"takes at most {limit} tokens")
        else:
            found = [one for some in asking.answers(asked) for one in some]
            right = [token for one in found for token in one.right[:-1]]
            exact = fmean(one.exact for one in found)
            yield Accuracy(task, size, exact, fmean(right), len(found), len(right))


def reciprocal_ranks(table: Mapping[str, Mapping[Hashable, float | None]]) -> dict[str, float]:
    """Mean reciprocal rank of each scheme: table[scheme][question] is its accuracy, the best of a question has rank 1.

    A question is whatever the schemes are compared on: in the paper a task with a seed, its accuracy the mean over the
    longer sizes. Schemes that tie share the mean of the reciprocal ranks that they take up: what the paper's rule, the
    first in its table first, gives on average over the orders of the table. None, where a scheme cannot read the
    length, counts as 0. Raises EvalError where the schemes were not asked the same.
    """
    questions = {scheme: set(line) for scheme, line in table.items()}
    asked = set().union(*questions.values())
    for scheme, own in questions.items():
        if own != asked:
            lacking = ", ".join(sorted(map(str, asked - own)))
            raise EvalError(f"{scheme} has no accuracy for {lacking}: ranks compare schemes on the same questions")
    if not asked:
        raise EvalError("there is nothing to rank: measure at least one task at a size longer than trained")
    shares: dict[str, list[float]] = {scheme: [] for scheme in table}
    for question in asked:
        values = {scheme: line[question] or 0.0 for scheme, line in table.items()}
        for scheme, value in values.items():
            above = sum(other > value for other in values.values())
            level = sum(other == value for other in values.values())
            shares[scheme].append(fmean(1 / rank for rank in range(above + 1, above + level + 1)))
    return {scheme: fmean(share) for scheme, share in shares.items()}
