"""Algorithmic problems: eight families, each a way to write the problem of a size that some numbers stand for."""

# N problems · S size · K numbers a problem

import string
from collections.abc import Callable
from dataclasses import dataclass
from math import perm

import numpy as np
from numpy.typing import NDArray

from eval import EvalError
from eval.spelled import DIGITS, longest, spelled

Written = tuple[list[bytes], list[bytes]]  # problems, answers
LETTERS = np.frombuffer(string.ascii_lowercase.encode(), np.uint8)
NAMES = np.frombuffer(string.ascii_letters.encode(), np.uint8)  # of the variables of a chain


@dataclass(frozen=True)
class Task:
    """The problems of one family. K numbers stand for a problem; the first of them alone moves it between the sides."""

    unit: str  # what a size counts
    largest: int  # the size that training goes up to in the paper
    numbers: Callable[[int], list[int]]  # how many values each of the numbers of a problem of this size can take
    count: Callable[[int], int]  # different problems of this size
    longest: Callable[[int], int]  # bytes of the longest problem of this size with its answer
    write: Callable[[NDArray, int], Written]  # (N, K) numbers, size -> problems and answers
    limit: int | None = None  # the largest size there is
    why: str = ""  # that is the largest


def rows(text: NDArray) -> list[bytes]:
    """(N, S) bytes -> N strings."""
    return [line.tobytes() for line in text]


def digits(values: NDArray) -> NDArray:
    """Numbers below 10 -> their bytes."""
    return (values + ord("0")).astype(np.uint8)


def write_copy(drawn: NDArray, size: int) -> Written:
    letters = LETTERS[drawn]  # (N, S)
    return rows(letters), rows(letters)


def write_reverse(drawn: NDArray, size: int) -> Written:
    letters = LETTERS[drawn]
    return rows(letters), rows(letters[:, ::-1])


def write_sort(drawn: NDArray, size: int) -> Written:
    letters = LETTERS[drawn]
    return rows(letters), rows(np.sort(letters, 1))


def write_sum(drawn: NDArray, size: int) -> Written:
    """Digits from 1 to 9; the last digit of their sum."""
    return rows(digits(drawn + 1)), rows(digits((drawn + 1).sum(1, keepdims=True) % 10))


def leading(size: int) -> int:
    """How many bits of a parity problem its first number stands for."""
    return min(4, size)


def write_parity(drawn: NDArray, size: int) -> Written:
    """The first number is the first four bits, so that two in sixteen of its values can be the test's."""
    first = drawn[:, :1] >> np.arange(leading(size))[::-1] & 1
    bits = np.concatenate([first, drawn[:, 1:]], 1)  # (N, S)
    return rows(digits(bits)), rows(digits(bits.sum(1, keepdims=True) % 2))


def addition_numbers(size: int) -> list[int]:
    """The last digit of one term; which lengths the terms have; the other digits, of which a shorter term uses some."""
    upper = [9] + [10] * (size - 2) if size > 1 else []
    return [10, 2 * size - 1, *upper, 10, *upper]


def addition_count(size: int) -> int:
    def terms(length: int) -> int:
        return 10 if length == 1 else 9 * 10 ** (length - 1)

    return terms(size) * (2 * sum(map(terms, range(1, size))) + terms(size))


def write_addition(drawn: NDArray, size: int) -> Written:
    """The longer term has S digits, the other any number up to S, each number alike; digits in their usual order."""
    terms = []
    for units, which, *upper in drawn.tolist():
        first, second = upper[: size - 1], upper[size:]
        lengths = (size, which + 1) if which < size else (which - size + 1, size)
        terms.append((term(first, units, lengths[0]), term(second, upper[size - 1], lengths[1])))
    return [f"{a}+{b}".encode() for a, b in terms], [str(a + b).encode() for a, b in terms]


def term(upper: list[int], units: int, length: int) -> int:
    """A number of `length` digits: the first is not 0, unless it is the only one."""
    if length == 1:
        return units
    return int("".join(map(str, [upper[0] + 1, *upper[1 : length - 1], units])))


def lego_numbers(size: int) -> list[int]:
    """The first variable; the others, each among those that are left; a sign a clause."""
    return [len(NAMES), *range(len(NAMES) - 1, len(NAMES) - size, -1), *[2] * size]


def write_lego(drawn: NDArray, size: int) -> Written:
    """b=+1;a=-b;d=+a;d -> the sign of d. Variables are counted on from the first, so that it may be any of them."""
    pick = np.arange(len(drawn))
    left = np.tile(np.arange(1, len(NAMES)), (len(drawn), 1))
    steps = np.zeros((len(drawn), size), np.int64)  # from the first variable to each
    for k in range(1, size):
        steps[:, k] = left[pick, drawn[:, k]]
        left[pick, drawn[:, k]] = left[:, len(NAMES) - 1 - k]
    names = NAMES[(drawn[:, :1] + steps) % len(NAMES)]
    minus = drawn[:, size:]  # (N, S) 1 where the clause turns the sign
    clauses = np.empty((len(drawn), size, 5), np.uint8)
    clauses[...] = np.frombuffer(b"a=+1;", np.uint8)
    clauses[..., 0] = names
    clauses[..., 2] = sign(minus)
    clauses[:, 1:, 3] = names[:, :-1]
    problem = np.concatenate([clauses.reshape(len(drawn), -1), names[:, -1:]], 1)
    return rows(problem), rows(sign(minus.sum(1, keepdims=True) % 2))


def sign(minus: NDArray) -> NDArray:
    return np.where(minus, ord("-"), ord("+")).astype(np.uint8)


def write_words(drawn: NDArray, size: int) -> Written:
    """The digits of a number, the first not 0 unless it is the only one; its name in English."""
    values = drawn + (np.arange(size) == 0) * (size > 1)
    numbers = ["".join(map(str, line)) for line in values.tolist()]
    return [number.encode() for number in numbers], [spelled(int(number)).encode() for number in numbers]


def items(largest: int, values: int, write: Callable, answer: Callable[[int], int], unit: str) -> Task:
    """A task whose problem is S items of so many values."""
    return Task(unit, largest, lambda s: [values] * s, lambda s: values**s, lambda s: s + answer(s), write)


TASKS = {
    "copy": items(20, len(LETTERS), write_copy, lambda s: s, "letters"),
    "reverse": items(20, len(LETTERS), write_reverse, lambda s: s, "letters"),
    "sort": items(8, len(LETTERS), write_sort, lambda s: s, "letters"),
    "sum": items(8, 9, write_sum, lambda s: 1, "digits"),
    "parity": Task(
        "bits", 8, lambda s: [2 ** leading(s), *[2] * (s - leading(s))], lambda s: 2**s, lambda s: s + 1, write_parity
    ),
    "addition": Task("digits", 8, addition_numbers, addition_count, lambda s: 3 * s + 2, write_addition),
    "lego": Task(
        "hops",
        8,
        lego_numbers,
        lambda s: perm(len(NAMES), s) * 2**s,
        lambda s: 5 * s + 2,
        write_lego,
        limit=len(NAMES),
        why="as many as there are letters for variables",
    ),
    "words": Task(
        "digits",
        4,
        lambda s: [9 if s > 1 else 10, *[10] * (s - 1)],
        lambda s: 9 * 10 ** (s - 1) if s > 1 else 10,
        lambda s: s + longest(s),
        write_words,
        limit=DIGITS,
        why="as far as numbers are named here",
    ),
}


def task_of(name: str, size: int | None = None) -> Task:
    """A task by name. Raises EvalError where there is none, or it has no problem of this size."""
    if name not in TASKS:
        raise EvalError(f"no algorithmic task `{name}`; there are {', '.join(TASKS)}")
    task = TASKS[name]
    if size is not None and not (size >= 1 and (task.limit is None or size <= task.limit)):
        most = f" to {task.limit}, {task.why}" if task.limit else " on"
        raise EvalError(f"{name} has no problem of {size} {task.unit}: a size is a whole number from 1{most}")
    return task
