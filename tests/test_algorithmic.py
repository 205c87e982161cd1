"""Algorithmic problems: written as by hand, the same for ever, on one side only, learned from and scored exactly."""

import json
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_runs import equal, logged, tiny
from torch import nn

import lab.train
from eval import EvalError
from eval.algorithmic import (
    END,
    accuracies,
    counts,
    every,
    held_out,
    length,
    problems,
    prompt,
    reciprocal_ranks,
    samples,
)
from eval.problems import LETTERS, NAMES, TASKS, task_of
from lab import LabError
from lab.algorithmic import Problems, answers, batch, corpus_of, kind_of, rows_of
from lab.checkpoint import digest
from lab.compare import compare
from lab.config import read
from lab.data import corpus
from lab.evaluate import evaluate
from lab.ranking import layout, merged, questions, ranking
from lab.rows import Row, write
from lab.rows import read as rows_in
from lab.settings import Data
from lab.train import accelerator_for, train

SMALL = ["train.steps=4", "data.source=algorithmic", "data.path=[]", "eval.problems=5", "train.length=32"]
CHARACTER = {task: re.compile(pattern) for task, pattern in {
    "copy": r"[a-z]+", "reverse": r"[a-z]+", "sort": r"[a-z]+", "sum": r"[1-9]+", "parity": r"[01]+",
    "addition": r"(0|[1-9]\d*)\+(0|[1-9]\d*)", "lego": r"(\w=[+-]\w;)+\w", "words": r"0|[1-9]\d*",
}.items()}  # fmt: skip


def solved(task: str, problem: str) -> str:
    """The answer, worked out from the text alone."""
    if task == "copy":
        return problem
    if task == "reverse":
        return problem[::-1]
    if task == "sort":
        return "".join(sorted(problem))
    if task in ("sum", "parity"):
        return str(sum(map(int, problem)) % (10 if task == "sum" else 2))
    if task == "addition":
        return str(sum(map(int, problem.split("+"))))
    if task == "words":
        return named(int(problem))
    *clauses, asked = problem.split(";")
    value = {"1": 1}
    for clause in clauses:
        name, (sign, of) = clause[0], clause[2:]
        value[name] = value[of] * (-1 if sign == "-" else 1)
    return "-" if value[asked] < 0 else "+"


NUMERALS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
NUMERALS = dict(enumerate(f"zero {NUMERALS} eighteen nineteen".split()))
NUMERALS |= dict(zip(range(20, 100, 10), "twenty thirty forty fifty sixty seventy eighty ninety".split(), strict=True))
NUMERALS |= {100: "hundred", 1000: "thousand", 10**6: "million", 10**9: "billion"}


def named(number: int) -> str:
    """The largest numeral that fits, how many of it, and the name of what is left."""
    largest = max(value for value in NUMERALS if value <= number)
    many = named(number // largest) + " " if largest >= 100 else ""
    left = number % largest if largest else 0
    return many + NUMERALS[largest] + (f" {named(left)}" if left else "")


def size_of(task: str, problem: str) -> int:
    if task == "addition":
        return max(map(len, problem.split("+")))
    return problem.count("=") if task == "lego" else len(problem)


def text_of(sample) -> str:
    return bytes(sample.ids.astype(np.uint8)).decode()


def written(task: str, size: int, *numbers: int) -> tuple[str, str]:
    """The problem that these numbers stand for, and its answer."""
    (problem,), (answer,) = task_of(task).write(np.array([numbers]), size)
    return problem.decode(), answer.decode()


class Told(nn.Module):
    """A model that knows the answers of these samples, or what is to be answered instead."""

    def __init__(self, instead=lambda task, problem: solved(task, problem)):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.instead = instead

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, 256)
        for row, line in enumerate(ids.tolist()):
            text = bytes(line).decode()
            asked = text.rindex("=")
            task, problem = text[:asked].split(" ", 1)
            said = (self.instead(task, problem) + "\0").ljust(len(text) - asked, "\0")
            for place in range(asked, len(text)):
                logits[row, place, ord(said[place - asked])] = 1
        return SimpleNamespace(logits=logits)


# How problems are written


@pytest.mark.parametrize(
    ("task", "size", "numbers", "problem", "answer"),
    [
        ("copy", 4, (3, 1, 2, 0), "dbca", "dbca"),
        ("reverse", 4, (3, 1, 2, 0), "dbca", "acbd"),
        ("sort", 5, (3, 1, 25, 1, 0), "dbzba", "abbdz"),
        ("sum", 3, (8, 8, 4), "995", "3"),
        ("parity", 2, (1,), "01", "1"),
        ("parity", 6, (0b1011, 0, 1), "101101", "0"),
        ("words", 1, (0,), "0", "zero"),
        ("words", 4, (0, 0, 4, 2), "1042", "one thousand forty two"),
        ("words", 7, (1, 0, 0, 0, 9, 1, 7), "2000917", "two million nine hundred seventeen"),
        ("addition", 1, (7, 0, 5), "7+5", "12"),
        ("addition", 3, (7, 2, 8, 9, 3, 0, 4), "997+143", "1140"),  # which 2: both terms have three digits
        ("addition", 3, (7, 0, 8, 9, 3, 0, 4), "997+3", "1000"),  # 0: the second has one
        ("addition", 3, (7, 4, 8, 9, 3, 0, 4), "97+143", "240"),  # 4 = 3 + 1: the first has two
        ("lego", 1, (0, 1), "a=-1;a", "-"),
        ("lego", 3, (1, 0, 0, 0, 1, 1), "b=+1;c=-b;a=-c;a", "+"),  # the last name left fills the gap: 51 on from b
    ],
)
def test_a_problem_by_hand(task, size, numbers, problem, answer):
    assert written(task, size, *numbers) == (problem, answer)


def test_a_sample_begins_with_its_task_and_ends_with_the_end():
    (one,) = samples("reverse", 3, 1, seed=7)
    text = text_of(one)
    assert re.fullmatch(r"reverse ([a-z]{3})=([a-z]{3})\0", text) and text[8:11] == text[12:15][::-1]
    assert one.answers == ((12, 16),) and one.about == {"task": "reverse", "size": 3} and one.ids.dtype == np.int64


@pytest.mark.parametrize(
    ("task", "size", "texts"),
    [
        ("copy", 3, ["copy hls=hls", "copy dvp=dvp"]),
        ("sum", 5, ["sum 73839=0", "sum 71266=2"]),
        ("addition", 2, ["addition 6+48=54", "addition 63+6=69"]),
        ("lego", 2, ["lego M=+1;J=-M;J=-", "lego I=-1;Z=-I;Z=+"]),
    ],
)
def test_the_test_problems_stay_what_they_are(task, size, texts):
    """Another machine or version must ask the same, or its figures cannot be put beside these."""
    assert [text_of(one).rstrip("\0") for one in samples(task, size, 2, seed=0)] == texts


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("side", ["train", "test"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 40])
def test_a_problem_of_any_size_is_one_and_its_answer_is_right(task, side, size):
    if size > (task_of(task).limit or size) or not counts(task, size)[side]:
        return
    longest = 0
    for problem, answer in zip(*problems(task, size, range(200), 3, side), strict=True):
        text = problem.decode()
        assert CHARACTER[task].fullmatch(text) and size_of(task, text) == size
        assert answer.decode() == solved(task, text)
        longest = max(longest, len(prompt(task, problem) + answer) + 1)
    assert longest <= length(task, size)
    if task not in ("addition", "words"):  # there few are the longest: two long terms with a carry, 373373
        assert longest == length(task, size)


def test_the_longest_addition_is_as_long_as_said():
    assert len("addition 999+999=1998\0") == length("addition", 3)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_longest_name_of_a_number_is_as_long_as_said(size):
    longest = max(len(f"words {n}={named(n)}") for n in range(10 ** (size - 1) if size > 1 else 0, 10**size)) + 1
    assert longest == length("words", size)


def test_a_chain_of_all_letters_names_each_once():
    for problem in problems("lego", 52, range(20), 0, "test")[0]:
        assert sorted(clause[0] for clause in problem.decode().split(";")[:-1]) == sorted(NAMES.tobytes().decode())


# Which problem comes when


def test_a_problem_hangs_on_its_own_index_alone():
    whole = problems("addition", 5, range(50), 1, "train")
    for indices in ([3], [49, 3, 17]):
        assert problems("addition", 5, indices, 1, "train") == tuple([part[i] for i in indices] for part in whole)


def test_another_index_seed_size_and_side_are_other_problems():
    def first(size=12, index=0, seed=0, side="test"):
        return problems("copy", size, [index], seed, side)[0][0][:11]

    assert len({first(), first(size=13), first(index=1), first(seed=1), first(side="train")}) == 5


@pytest.mark.parametrize(("task", "size"), [("copy", 2), ("sum", 3), ("parity", 6), ("addition", 2), ("lego", 1)])
def test_every_problem_of_a_side_is_as_likely(task, size):
    """A chi-square over the first and the last symbol; for addition, over the lengths of the terms, each alike."""
    draws = 8000
    found = [text.decode() for text in problems(task, size, range(draws), 5, "train")[0]]
    if task == "addition":
        marks = [tuple(map(len, text.split("+"))) for text in found]
        wanted = {mark: draws / 3 for mark in [(1, 2), (2, 1), (2, 2)]}
    else:
        marks = [(text[0], text[-1] if task != "lego" else text[2]) for text in found]
        whole = Counter(
            (t[0], t[-1] if task != "lego" else t[2]) for t in map(bytes.decode, every(task, size, "train")[0])
        )
        wanted = {mark: draws * count / whole.total() for mark, count in whole.items()}
    seen = Counter(marks)
    assert seen.keys() <= wanted.keys()
    square, freedom = sum((seen[m] - n) ** 2 / n for m, n in wanted.items()), len(wanted) - 1
    assert abs(square - freedom) < 5 * (2 * freedom) ** 0.5


# No test problem is trained on


def whole(task: str, size: int) -> set[str]:
    """All problems of a size, from what they are and not from how they are made."""

    def strings(symbols, n):
        return [""] if n == 0 else [s + rest for s in symbols for rest in strings(symbols, n - 1)]

    if task == "addition":
        low, high = (0, 10) if size == 1 else (10 ** (size - 1), 10**size)
        every_pair = [(a, b) for a in range(high) for b in range(high) if max(a, b) >= low]
        return {f"{a}+{b}" for a, b in every_pair}
    if task == "lego":
        names = NAMES.tobytes().decode()
        if size == 1:
            return {f"{a}={s}1;{a}" for a in names for s in "+-"}
        return {f"{a}={s}1;{b}={t}{a};{b}" for a in names for b in names if a != b for s in "+-" for t in "+-"}
    if task == "words":
        return {str(n) for n in range(10 ** (size - 1) if size > 1 else 0, 10**size)}
    symbols = {"sum": "123456789", "parity": "01"}.get(task, LETTERS.tobytes().decode())
    return set(strings(symbols, size))


@pytest.mark.parametrize(
    ("task", "size"),
    [
        *((task, size) for task in TASKS for size in (1, 2)),
        ("sum", 3),
        ("copy", 3),
        *(("parity", n) for n in range(3, 11)),
    ],
)
def test_the_sides_share_no_problem_and_together_have_all(task, size):
    sides = {side: [text.decode() for text in every(task, size, side)[0]] for side in ("train", "test")}
    assert {side: len(found) for side, found in sides.items()} == counts(task, size)
    assert len(set(sides["train"])) + len(set(sides["test"])) == task_of(task).count(size)
    assert set(sides["train"]) | set(sides["test"]) == whole(task, size)
    for side, found in sides.items():  # what is drawn, under any seed, is of its side
        for seed in (0, 1) if found else ():
            assert {text.decode() for text in problems(task, size, range(300), seed, side)[0]} <= set(found)


@pytest.mark.parametrize("task", TASKS)
def test_about_a_tenth_is_tested_on(task):
    sizes = [size for size in (4, 8, 20) if size <= (task_of(task).limit or size)]
    shares = [counts(task, size)["test"] / task_of(task).count(size) for size in sizes]
    assert all(0.08 < share < 0.13 for share in shares)
    assert [held_out(n) for n in (2, 4, 8, 9, 10, 16, 26, 52)] == [0, 0, 1, 1, 1, 2, 3, 5]


def test_where_few_are_there_to_test_on_each_is_asked_once():
    assert counts("copy", 1) == {"train": 23, "test": 3}
    assert len({text_of(one) for one in samples("copy", 1, 100, seed=0)}) == len(samples("copy", 1, 100, seed=0)) == 3
    assert len(samples("copy", 2, 78, seed=0)) == 78 and len(samples("copy", 2, 77, seed=0)) == 77


def test_where_none_is_there_to_test_on_the_result_says_so():
    assert counts("parity", 2) == {"train": 4, "test": 0} and samples("parity", 2, 9, seed=0) == []
    (one,) = accuracies(Told(), "parity", [2], 9)
    assert (one.exact, one.token, one.count) == (None, None, 0)
    assert one.note == "only 4 problems of 2 bits, too few to hold any out: all are trained on"


# What cannot be


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: samples("multiply", 3, 1, 0),
            "no algorithmic task `multiply`; there are copy, reverse, sort, sum, parity, addition, lego, words",
        ),
        (
            lambda: samples("lego", 53, 1, 0),
            "lego has no problem of 53 hops: a size is a whole number from 1 to 52, as many as there are letters for "
            "variables",
        ),
        (lambda: samples("copy", 0, 1, 0), "copy has no problem of 0 letters: a size is a whole number from 1 on"),
        (lambda: samples("copy", 3, 0, 0), "0 problems of copy cannot be asked for: give a whole number from 1 on"),
        (
            lambda: problems("parity", 1, [0], 0, "test"),
            "parity: only 2 problems of 1 bits, too few to hold any out: all are trained on",
        ),
    ],
)
def test_what_is_not_there_is_told(ask, said):
    with pytest.raises(EvalError) as caught:
        ask()
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["data.task=[]"], "data.task: source algorithmic needs one: copy, or a list such as [copy, reverse]"),
        (["data.task=mul"], "data.task: no algorithmic task `mul`; there are copy, reverse, sort, sum, parity"),
        (["data.sizes=[5, 4]"], "data.sizes: [5, 4] holds no size: write the smallest first"),
        (["data.tokenizer=gpt2"], "data.tokenizer: algorithmic problems are made of bytes, not of `gpt2`"),
        (
            ["data.sizes=[1, 14]"],
            "train.length: a problem of copy with 14 letters takes 34 tokens, 32 are given: raise train.length to 34 "
            "or lower data.sizes",
        ),
        (["data.task=lego", "data.sizes=[1, 53]"], "data.sizes: lego has no problem of 53 hops"),
        (["data.task=lego", "data.sizes=[1, 3]", "eval.sizes=[3, 60]"], "eval.sizes: lego has no problem of 60 hops"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_runs(tmp_path, change, said):
    with pytest.raises(LabError) as caught:
        tiny(tmp_path, *SMALL, "data.task=copy", "data.sizes=[1, 4]", *change)
    assert said in str(caught.value) and "1 to mend" in str(caught.value)


def test_a_length_that_fits_to_the_token_is_taken(tmp_path):
    assert tiny(tmp_path, *SMALL, "data.task=copy", "data.sizes=[1, 13]").train.length == length("copy", 13) - 1


# Accuracy


@pytest.mark.parametrize("task", TASKS)
def test_who_knows_the_answers_has_all_right(task):
    for one in accuracies(Told(), task, [3, 9], 20):
        assert (one.exact, one.token) == (1.0, 1.0) and one.count == min(20, counts(task, one.size)["test"])


def test_who_only_copies_is_right_where_a_problem_reads_the_same_backwards():
    asked = samples("reverse", 2, 78, seed=0)
    texts = [text_of(one)[8:10] for one in asked]
    (one,) = accuracies(Told(lambda task, problem: problem), "reverse", [2], 78)
    assert one.exact == sum(text == text[::-1] for text in texts) / 78 > 0
    assert one.token == one.exact  # with two letters, both are right or none is
    assert (one.count, one.tokens) == (78, 156)


def test_an_answer_that_does_not_end_is_not_exact_but_its_tokens_count():
    (one,) = accuracies(Told(lambda task, problem: problem + "x"), "copy", [5], 10)
    assert (one.exact, one.token) == (0.0, 1.0)


def test_one_wrong_letter_in_four_is_a_quarter_of_the_tokens_and_no_exact_match():
    (one,) = accuracies(Told(lambda task, problem: "!" + problem[1:]), "copy", [4], 10)
    assert (one.exact, one.token, one.tokens) == (0.0, 0.75, 40)


def test_a_length_beyond_the_scheme_has_a_reason_in_place_of_a_value():
    fits, beyond = accuracies(Told(), "copy", [3, 4], 10, limit=length("copy", 3) - 1)
    assert fits.exact == 1.0
    assert (beyond.exact, beyond.count, beyond.note) == (None, 0, "takes at most 12 tokens")


# Ranks


def test_reciprocal_ranks_by_hand():
    table = {
        "nope": {("copy", 0): 0.9, ("copy", 1): 0.5, ("sum", 0): 0.0},
        "rope": {("copy", 0): 0.1, ("copy", 1): 0.5, ("sum", 0): 0.0},
        "alibi": {("copy", 0): 0.4, ("copy", 1): 0.2, ("sum", 0): 0.0},
    }
    third = (1 + 1 / 2 + 1 / 3) / 3  # all three tie
    expected = {
        "nope": (1 + 3 / 4 + third) / 3,  # first; shares the first two ranks; ties
        "rope": (1 / 3 + 3 / 4 + third) / 3,
        "alibi": (1 / 2 + 1 / 3 + third) / 3,
    }
    assert reciprocal_ranks(table) == pytest.approx(expected, abs=1e-12)
    assert reciprocal_ranks(dict(reversed(table.items()))) == pytest.approx(expected, abs=1e-12)


def test_a_scheme_that_cannot_read_a_length_ranks_with_those_that_get_nothing_right():
    found = reciprocal_ranks({"learned": {1: None}, "rope": {1: 0.0}, "alibi": {1: 0.1}})
    assert found == pytest.approx({"alibi": 1.0, "rope": 5 / 12, "learned": 5 / 12}, abs=1e-12)


def test_schemes_that_were_not_asked_the_same_are_not_ranked():
    with pytest.raises(EvalError, match=r"rope has no accuracy for \('copy', 1\): ranks compare schemes on the same"):
        reciprocal_ranks({"nope": {("copy", 0): 1, ("copy", 1): 1}, "rope": {("copy", 0): 1}})
    with pytest.raises(EvalError, match="there is nothing to rank"):
        reciprocal_ranks({})


def row(scheme, size, value, seed=0, task="copy", note=None, metric="exact") -> Row:
    note = ("longer than trained" if size > 2 else "") if note is None else note
    return Row(
        "r", scheme, scheme, seed, f"algorithmic/{task}", metric, size, value, 10 if value is not None else 0, note
    )


def test_the_ranking_goes_by_the_mean_over_the_longer_sizes_for_each_task_and_seed():
    rows = [row("nope", n, v) for n, v in ((1, 0.0), (2, 0.0), (3, 0.5), (4, 0.1))]
    rows += [row("rope", n, v) for n, v in ((1, 1.0), (2, 1.0), (3, 0.2), (4, 0.2))]
    rows += [row("nope", 3, 0.0, metric="token"), row("rope", 3, 1.0, metric="token")]
    rows += [row("nope", 3, 0.1, seed=1), row("rope", 3, 0.2, seed=1)]
    assert questions(rows) == {
        "nope": {("copy", 0): pytest.approx(0.3), ("copy", 1): 0.1},
        "rope": {("copy", 0): pytest.approx(0.2), ("copy", 1): 0.2},
    }
    assert ranking(rows) == {"": {"nope": 0.75, "rope": 0.75}, "copy": {"nope": 0.75, "rope": 0.75}}


def test_the_table_shows_exact_match_by_size_and_says_why_a_value_is_missing():
    rows = [row("nope", n, v, seed) for seed in (0, 1) for n, v in ((1, 1.0), (2, 0.8), (3, 0.5), (4, seed / 10))]
    rows += [row("learned", n, v, seed) for seed in (0, 1) for n, v in ((1, 1.0), (2, 0.6))]
    rows += [
        row("learned", n, None, s, note="longer than trained; takes at most 9 tokens") for s in (0, 1) for n in (3, 4)
    ]
    header, body, notes = layout(rows)
    assert header == ["% exact", "1–2", "2 (1×)", "3 (1.5×)", "4 (2×)", "longer", "MRR"]
    assert body == [
        ["nope", "90 (90–90)", "80 (80–80)", "50 (50–50)", "5 (0–10)", "28 (25–30)", "1.00"],
        ["learned", "80 (80–80)", "60 (60–60)", "–", "–", "–", "0.50"],
    ]
    assert notes == [
        "10 test problems a size, none of them trained on, the same for all; 2 seed(s).",
        "MRR, mean reciprocal rank by the mean over the longer sizes, over 1 task(s): nope 1.00, learned 0.50.",
        "– learned: takes at most 9 tokens (sizes 3–4).",
    ]


def test_comparisons_on_different_tasks_are_ranked_together(tmp_path):
    for task, best in (("copy", "nope"), ("sum", "rope")):
        rows = [row(name, n, float(name == best), task=task) for name in ("nope", "rope") for n in (2, 3)]
        (tmp_path / task / "compare").mkdir(parents=True)
        write(tmp_path / task / "compare" / "rows.jsonl", rows)
    rows = merged([tmp_path / "copy", tmp_path / "sum"])
    assert ranking(rows) == {
        "": {"nope": 0.75, "rope": 0.75},
        "copy": {"nope": 1.0, "rope": 0.5},
        "sum": {"nope": 0.5, "rope": 1.0},
    }
    assert [line[0] for line in layout(rows)[1]] == ["copy: nope", "copy: rope", "sum: nope", "sum: rope"]
    with pytest.raises(LabError, match="rows.jsonl holds no rows of algorithmic problems: run `lab compare` on some"):
        merged([tmp_path / "copy", tmp_path])
    (tmp_path / "again" / "compare").mkdir(parents=True)
    write(tmp_path / "again" / "compare" / "rows.jsonl", rows)
    with pytest.raises(LabError, match="copy and .*again both hold copy of nope: give one"):
        merged([tmp_path / "copy", tmp_path / "again"])


# Training on them

SIDE = Problems(("copy", "addition"), (1, 5))


def texts_of(ids: np.ndarray) -> list[str]:
    return [bytes(line.astype(np.uint8)).decode().rstrip("\0") for line in ids]


def test_a_batch_is_a_function_of_seed_and_step():
    ids, numbers = batch(SIDE, length=40, size=8, seed=3, step=5)
    again, _ = batch(SIDE, length=40, size=8, seed=3, step=5)
    assert (ids == again).all() and ids.shape == (8, 41) and ids.dtype == np.int64
    assert numbers.tolist() == list(range(40, 48))
    long, _ = batch(SIDE, length=40, size=16, seed=3, step=2)  # problems 32 to 47
    assert (long[8:] == ids).all()
    for seed, step in ((4, 5), (3, 6)):
        assert texts_of(batch(SIDE, length=40, size=8, seed=seed, step=step)[0]) != texts_of(ids)


def test_a_row_is_one_problem_of_the_training_side_and_ends():
    ids, numbers = batch(SIDE, length=40, size=300, seed=0, step=0)
    for number, text in zip(numbers.tolist(), texts_of(ids), strict=True):
        task, size = kind_of(SIDE, 0, number)
        asked, answer = text.rsplit("=", 1)
        assert asked.startswith(f"{task} ") and answer == solved(task, asked.split(" ", 1)[1])
        assert text == prompt(task, problems(task, size, [number], 0, "train")[0][0]).decode() + answer


def test_tasks_and_sizes_come_as_often():
    seen = Counter(kind_of(SIDE, 1, number) for number in range(10000))
    assert len(seen) == 10
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) < 9 + 5 * 18**0.5


def test_labels_are_the_answer_and_its_end_alone():
    text = b"lego a=-1;a=-\0\0\0"
    ids = np.frombuffer(text, np.uint8).astype(np.int64)[None]
    assert answers(ids).tolist() == [[-100] * 11 + [ord("-"), END] + [-100] * 2]


@pytest.mark.parametrize("task", TASKS)
def test_labels_are_what_the_test_scores(task):
    for one in samples(task, 6, 20, seed=0):
        (start, stop), ids = *one.answers, np.concatenate([one.ids, [END, END]])
        labels = answers(ids[None])[0]
        assert labels[start - 1 : stop - 1].tolist() == one.ids[start:stop].tolist()
        assert (labels >= 0).sum() == stop - start


def test_nothing_that_is_tested_is_among_what_was_trained_on():
    side = Problems(tuple(TASKS), (1, 8))
    seen = set(texts_of(np.concatenate([batch(side, length=120, size=500, seed=s, step=s)[0] for s in range(4)])))
    kinds = [(task, n) for task in TASKS for n in range(1, 17) if n <= (task_of(task).limit or n)]
    asked = {text_of(one).rstrip("\0") for task, n in kinds for one in samples(task, n, 100, seed=0)}
    assert len(seen) > 1000 and len(asked) > 5000 and not seen & asked


def test_the_corpus_reports_where_few_can_be_tested_on():
    meta = corpus(Data(source="algorithmic", task=["parity"], sizes=(1, 10))).meta
    assert (meta["vocab_size"], meta["eos"]) == (256, 0)
    assert meta["few"]["parity 1"] == {"train": 2, "test": 0} and meta["few"]["parity 9"] == {"train": 448, "test": 64}
    assert "parity 10" not in meta["few"]
    assert json.loads(json.dumps(meta)) == meta
    other = corpus_of(Data(source="algorithmic", task=["parity"], sizes=(1, 9))).meta
    assert other["sha256"] != meta["sha256"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("algorithmic")


@pytest.fixture(scope="module")
def run(folder):
    """Trained, with a look at the test problems on the way."""
    run = tiny(folder, *SMALL, "name=whole", "data.task=[copy, sum]", "data.sizes=[1, 4]", "train.eval_every=2")
    train(run)
    return run


def test_a_run_logs_the_share_that_it_answers(run):
    (line,) = [line for line in logged(run) if line["step"] == 4]
    assert {key for key in line if "exact" in key} == {f"exact_{task}_{n}" for task in ("copy", "sum") for n in (4, 8)}


def test_an_interrupted_run_ends_with_the_same_weights(folder, run, monkeypatch):
    other = tiny(folder, *SMALL, "name=halves", "data.task=[copy, sum]", "data.sizes=[1, 4]", "train.save_every=2")
    steps = lab.train.one_step

    def broken(run, accelerator, model, adam, call, names, count, step, *rest):
        if step == 3:
            raise KeyboardInterrupt
        return steps(run, accelerator, model, adam, call, names, count, step, *rest)

    monkeypatch.setattr(lab.train, "one_step", broken)
    with pytest.raises(KeyboardInterrupt):
        train(other)
    monkeypatch.undo()
    train(other)
    assert equal(run, other)


def test_a_runs_rows_tell_task_size_and_what_was_trained_on(run):
    rows = list(evaluate(run, accelerator_for(run)))
    assert rows_in(run.path / "rows.jsonl") == rows
    assert {(row.probe, row.metric) for row in rows} == {
        (f"algorithmic/{task}", metric) for task in ("copy", "sum") for metric in ("exact", "token")
    }
    assert {row.length for row in rows} == set(range(1, 9))
    assert all((row.note == "longer than trained") == (row.length > 4) for row in rows)
    one = {row.length: row.count for row in rows if (row.probe, row.metric) == ("algorithmic/sum", "exact")}
    assert one == {1: 1} | dict.fromkeys(range(2, 9), 5)


def test_the_sizes_to_test_may_be_given(run):
    asked = run.model_copy(update={"eval": run.eval.model_copy(update={"sizes": [6, 3]})})
    blank = Row("r", "rope", "rope", 0, "", "", 0, None, 0)
    model = SimpleNamespace(scheme=SimpleNamespace(limit=4))
    assert [row.length for row in rows_of(blank, asked, model)] == [3, 3, 6, 6] * 2


def test_schemes_are_compared_by_size(folder, run):
    lines = "[{train: nope, swap: [alibi, relative]}, {train: learned}]"
    which = read(
        folder / "tiny.yaml", [*SMALL, "name=both", "data.task=copy", "data.sizes=[1, 13]", f"compare.runs={lines}"]
    )
    out = compare(which)
    table = (out / "table.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")] == [
        "% exact", "---", "nope", "nope → alibi", "nope → relative", "learned",
    ]  # fmt: skip
    assert "– learned: takes at most 32 tokens (sizes 14–26)." in table
    assert "– nope → relative: needs training: " in table and (out / "sizes.png").stat().st_size > 1000
    before = digest(out / "rows.jsonl")
    compare(which)
    assert digest(out / "rows.jsonl") == before


@pytest.mark.slow
def test_a_small_model_learns_to_copy_what_it_was_not_shown(folder):
    run = tiny(folder, "name=learns", "data.source=algorithmic", "data.path=[]", "data.task=copy", "data.sizes=[1, 4]",
               "train.length=14", "train.batch=64", "train.steps=800", "train.warmup=50", "model.width=64",
               "model.layers=2", "train.save_every=800")  # fmt: skip
    train(run)
    rows = [row for row in evaluate(run, accelerator_for(run)) if row.metric == "exact" and row.length in (2, 3, 4)]
    assert min(row.value for row in rows) > 0.9


def test_the_config_reads_and_its_length_is_that_of_its_longest_problem():
    run = read("configs/algorithmic.yaml")
    assert run.train.length == max(length(task, run.data.sizes[1]) for task in run.data.task) - 1
    assert len(run.compare.seeds) == 3
