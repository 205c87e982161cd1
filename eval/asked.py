"""asked: tasks with known answers, asked of one model at many lengths; an answer is kept, and not asked for again."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from eval import EvalError
from eval.entries import Asked, named
from eval.grid import Haystack, answers_of, haystacks
from eval.lengths import l_ret
from eval.plan import Forward, Piece
from eval.points import Point, of_reach
from eval.sample import Answered, Answering, Sample
from eval.scorer import Budget
from eval.stats import rate
from eval.store import Store
from eval.tasks import build
from eval.voice import Voice

TAU = 0.85
"""The share of the hits at the training length that still counts as reading."""

Hits = dict[int, tuple[NDArray, NDArray]]
"""By length, whether each answer is exact, and the number of its sample."""

Todo = list[tuple[Asked, int, list[int]]]
"""Of each task and length, the numbers of samples that are not answered yet."""


class Questions:
    """What is asked of any model: sample `n` of a task at a length is the same for all.

    Raises EvalError where a task is unknown, asks what another does, or does not fit into a length.
    """

    def __init__(self, tasks: Sequence[Asked], lengths: Sequence[int], voice: Voice):
        self.tasks, self.lengths, self.voice = named(tasks), sorted(set(lengths)), voice
        self.digests: dict[tuple[int, int, int], str] = {}
        for asked in self.tasks:
            for length in self.lengths:
                self.made(asked, length, 0)

    def made(self, asked: Asked, length: int, number: int) -> Sample | Haystack:
        if asked.task == "grid":
            return haystacks([length], asked.deep, voice=self.voice, seed=number)[0]
        return build(asked.task, asked.options, length=length, count=1, voice=self.voice, first=number)[0]

    def digest(self, asked: Asked, length: int, number: int) -> str:
        """What tells a sample from any other: its tokens, and which of them are answers."""
        at = self.tasks.index(asked), length, number
        if at not in self.digests:
            said = hashlib.sha256()
            for sample in samples_of(self.made(asked, length, number)):
                said.update(sample.ids.tobytes() + json.dumps(sample.answers).encode())
            self.digests[at] = said.hexdigest()
        return self.digests[at]


class Session:
    """The questions as put to one model, and its answers, in the store under what they depend on."""

    def __init__(self, questions: Questions, store: Store, identity: str, limit: int | None = None):
        """identity: what names model and weights.   limit: the longest input that the model takes."""
        self.questions, self.store, self.identity, self.limit = questions, store, identity, limit

    def takes(self, length: int) -> bool:
        return self.limit is None or length <= self.limit

    def key(self, asked: Asked, length: int, number: int) -> str:
        said = f"{self.identity} {self.questions.digest(asked, length, number)}"
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def missing(self, mine: slice = slice(None)) -> Todo:
        """What is not answered yet, of this process's share."""
        found = [
            (
                asked,
                length,
                [n for n in range(asked.count)[mine] if self.store.get(self.key(asked, length, n)) is None],
            )
            for asked in self.questions.tasks
            for length in self.questions.lengths
            if self.takes(length)
        ]
        return [one for one in found if one[2]]

    def runs(self, todo: Todo, prefix_consistent: bool) -> list[Forward]:
        """The forward passes that this takes."""
        found = []
        for asked, length, numbers in todo:
            found += runs_of(self.questions.made(asked, length, numbers[0]), prefix_consistent) * len(numbers)
        return found

    def ask(
        self,
        model: nn.Module,
        *,
        prefix_consistent: bool,
        batch_tokens: int = 16384,
        mine: slice = slice(None),
        meet: Callable[[], None] = lambda: None,
        advance: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """Ask what is not answered yet.

        prefix_consistent: whether what the model makes of a token depends on nothing after it.   mine, meet: this
        process's share of the samples, and a call that returns once every process has asked its own.
        advance: told how many samples are answered.
        """
        asking = Answering(model, Budget(batch_tokens))
        for asked, length, numbers in self.missing(mine):
            together = max(1, batch_tokens // length)
            for at in range(0, len(numbers), together):
                part = numbers[at : at + together]
                made = [self.questions.made(asked, length, n) for n in part]
                found = answers(asking, made, prefix_consistent)
                for n, some in zip(part, found, strict=True):
                    check(some, f"{asked.name}, sample {n} of {length} tokens")
                self.store.put(
                    {self.key(asked, length, n): numbers_of(some) for n, some in zip(part, found, strict=True)}
                )
                advance(len(part))
        meet()
        self.store.read()

    def kept(self, asked: Asked, length: int) -> list[NDArray[np.float32]]:
        """Of each sample (answers, 3): whether it is exact, its nats, its tokens. Raises EvalError where one is not."""
        found = [self.store.get(self.key(asked, length, n)) for n in range(asked.count)]
        if any(one is None for one in found):
            raise EvalError(
                f"{self.store.folder}: answers to {asked.name} are missing or damaged; is another process writing "
                "there? The same command asks again"
            )
        return [one.reshape(-1, 3) for one in found]

    def points(self) -> Iterator[Point]:
        """Every number of every task, length by length."""
        for asked in self.questions.tasks:
            for length in self.questions.lengths:
                if self.takes(length):
                    yield from points_of(asked, length, self.kept(asked, length))
                else:
                    yield unanswered(asked, length, f"takes at most {self.limit} tokens")

    def hits(self, asked: Asked) -> Hits:
        """None beyond the model's limit."""
        found = {}
        for length in self.questions.lengths:
            kept = self.kept(asked, length) if self.takes(length) else []
            found[length] = (
                np.array([row[0] for one in kept for row in one]),
                members(kept),
            )
        return found


# How it is done


def samples_of(made: Sample | Haystack) -> tuple[Sample, ...]:
    return made.samples if isinstance(made, Haystack) else (made,)


def answers(asking: Answering, made: list[Sample] | list[Haystack], prefix_consistent: bool) -> list[list[Answered]]:
    """The answers to each; those of a haystack together."""
    if isinstance(made[0], Haystack):
        return [answers_of(asking, one, prefix_consistent) for one in made]
    return asking.answers(made)


def check(some: list[Answered], where: str) -> None:
    if not all(np.isfinite(one.nats) for one in some):
        raise EvalError(f"{where}: the model's logits are not finite at an answer")


def numbers_of(some: list[Answered]) -> NDArray[np.float32]:
    """What is kept of answers: for each, whether it is exact, its nats, its tokens."""
    return np.array([[one.exact, one.nats, len(one.right)] for one in some], np.float32).ravel()


def points_of(asked: Asked, length: int, kept: list[NDArray]) -> Iterator[Point]:
    """Of one task at one length; of a grid, of all its depths together and then of each."""
    yield from summed(asked.name, length, "", kept)
    if asked.task == "grid":
        for at, depth in enumerate(asked.deep):
            yield from summed(asked.name, length, f" at depth {depth:.2f}", [one[[at]] for one in kept])


def summed(name: str, length: int, where: str, kept: list[NDArray]) -> Iterator[Point]:
    """Share of exact answers, with an interval over samples, and nats a token of the answers."""
    every = np.concatenate(kept)
    exact = rate(every[:, 0], members(kept))
    yield Point(name, f"exact{where}", length, exact.value, exact.low, exact.high, len(every))
    loss = float(every[:, 1].sum(dtype=np.float64) / every[:, 2].sum(dtype=np.float64))
    yield Point(name, f"answer nats{where}", length, loss, None, None, len(every))


def members(kept: list[NDArray]) -> NDArray[np.intp]:
    """Of which sample each answer is: answers of one share a haystack, and are no independent draws."""
    return np.repeat(np.arange(len(kept)), np.array([len(one) for one in kept], np.intp))


def retention(asked: Asked, hits: Sequence[Hits], train_length: int) -> Iterator[Point]:
    """How far the model reads by its answers, compared to those at train_length. hits: of each training seed.

    Nothing of a control, nor where there are no answers at train_length.
    """
    lengths = sorted(hits[0])
    if asked.control or not all(train_length in one and len(one[train_length][0]) for one in hits):
        return
    joined = {n: tuple(np.concatenate([one[n][k] for one in hits]) for k in range(2)) for n in lengths}
    made = l_ret(
        {n: exact for n, (exact, _) in joined.items()},
        train_length,
        TAU,
        groups={n: groups for n, (_, groups) in joined.items()},
    )
    yield from of_reach(f"L_ret({TAU:g}) {asked.name}", made, lengths[-1], len(joined[train_length][0]))


def unanswered(asked: Asked, length: int, note: str) -> Point:
    return Point(asked.name, "exact", length, None, None, None, 0, note)


def runs_of(made: Sample | Haystack, prefix_consistent: bool) -> list[Forward]:
    """The forward passes of one sample, or of one haystack with all its questions."""
    found = []
    if isinstance(made, Haystack) and prefix_consistent:
        found.append(forward(made.shared, made.shared - 1))
        return found + [forward(len(one.ids) - made.shared - 1, 0) for one in made.samples]
    return [forward(len(one.ids) - 1, min(first for first, _ in one.answers) - 1) for one in samples_of(made)]


def forward(length: int, first: int) -> Forward:
    return Forward(0, length, (Piece(("asked", length), first, length, 0),), bos=False)
