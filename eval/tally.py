"""tally: answers counted by what they vary: one cell for each task, length and depth, with what an interval needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from eval.sample import Answered


@dataclass(frozen=True)
class Cell:
    """The answers that are alike in `about`, one by one."""

    about: dict[str, Any]
    exact: tuple[bool, ...]
    nats: tuple[float, ...]
    tokens: tuple[int, ...]  # of each answer
    groups: tuple[int, ...]  # answers of one group share a haystack: they are no independent draws

    @property
    def count(self) -> int:
        return len(self.exact)

    @property
    def accuracy(self) -> float:
        """Share of answers with every token right."""
        return sum(self.exact) / self.count

    @property
    def loss(self) -> float:
        """Nats per token of the answers."""
        return fsum(self.nats) / sum(self.tokens)


def tally(answers: Iterable[Answered], by: Sequence[str] = ("task", "length", "depth")) -> list[Cell]:
    """Cells in the order in which they first appear. An answer without one of `by` counts where others lack it too."""
    found: dict[tuple, list[Answered]] = {}
    for answer in answers:
        found.setdefault(tuple(answer.about.get(name) for name in by), []).append(answer)
    return [
        Cell(
            {name: value for name, value in zip(by, values, strict=True) if value is not None},
            tuple(answer.exact for answer in alike),
            tuple(answer.nats for answer in alike),
            tuple(len(answer.right) for answer in alike),
            tuple(answer.sample.group for answer in alike),
        )
        for values, alike in found.items()
    ]
