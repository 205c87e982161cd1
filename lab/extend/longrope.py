"""LongRoPE's search: by evolution to the factors that cost least, from where a crash left it (arXiv:2402.13753)."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.jsonl import append, lines
from eval.tasks import seed_of
from lab import LabError
from lab.extend.longrope_factors import Individual, Space

POPULATION = 16
"""So many are tried before any has parents: the starting ones, and others drawn. LongRoPE: 64, of 1344."""

PARENTS = 4
"""The best so many may have children. With 8 or more it takes longer to come as near to planted factors."""

CROSSED = 0.2
"""The share of children with two parents."""

Fitness = Callable[[list[float]], float]
"""Factors -> what they cost: less is fitter. What is no number is the worst of all."""


@dataclass(frozen=True)
class Evaluated:
    """The `number`-th individual, where it came from, and what it costs."""

    number: int
    origin: str
    individual: Individual
    cost: float  # inf where it was no number

    @property
    def factors(self) -> list[float]:
        return list(self.individual.factors)


@dataclass(frozen=True)
class Found:
    """All that were evaluated, in order."""

    history: list[Evaluated]

    @property
    def best(self) -> Evaluated:
        """The first of the fittest."""
        return ranked(self.history)[0]


def search(
    space: Space,
    start: Mapping[str, Sequence[float]],
    fitness: Fitness,
    *,
    budget: int,
    path: Path,
    seed: int = 0,
    about: Mapping[str, Any] | None = None,
    advance: Callable[[Evaluated, float], None] = lambda one, least: None,
) -> Found:
    """Evaluate `budget` individuals, those of `start` first; the best of all is never worse than any of them.

    LongRoPE evaluates children by the dozen; here each has for parents the best of all before it, so that a search may
    end after any number of them, and a larger budget goes on where a smaller one ended.
    start: name -> factors of each lane.   about: what else the fitness depends on, as JSON.
    path: a JSON-lines file of every individual, on disk before the next is made: after a crash the same call continues,
    and ends as it would have ended.   advance: told each new individual, and the least cost so far.
    Raises LabError where the budget is too small, where `path` is of another search, or where no cost is a number.
    """
    check(budget, start)
    kept = opened(path, {"seed": seed, "space": asdict(space), "start": list(start), **(about or {})})
    history: list[Evaluated] = []
    for number in range(budget):
        one = kept.get(number)
        if one is None:
            origin, individual = following(space, start, history, seed)
            one = Evaluated(number, origin, individual, finite(fitness(list(individual.factors))))
            append(path, [written(one)])
            advance(one, min(before.cost for before in [*history, one]))
        history.append(one)
    if not np.isfinite(Found(history).best.cost):
        raise LabError(
            f"longrope: none of {budget} lists of factors costs a finite number of nats: the model's logits are not "
            "finite at this length. A dtype with more range may help, or a shorter target"
        )
    return Found(history)


def check(budget: int, start: Mapping[str, Sequence[float]]) -> None:
    """Raise LabError for a budget that ends before the search has begun."""
    if budget < len(start):
        raise LabError(
            f"longrope: a budget of {budget} evaluations is less than the {len(start)} that the search starts from "
            f"({', '.join(start)}): write at least {len(start)}; ten times as many is little",
            code=2,
        )


def done(path: Path) -> int:
    """How many individuals a file holds."""
    return sum("number" in record for record in lines(path))


# How it is done


def following(
    space: Space, start: Mapping[str, Sequence[float]], history: list[Evaluated], seed: int
) -> tuple[str, Individual]:
    """The next one and its origin, by nothing but the seed and what was before it."""
    number = len(history)
    if number < len(start):
        name = list(start)[number]
        return name, space.given(start[name])
    random = np.random.default_rng(seed_of("longrope", seed, number))
    tried = {one.individual for one in history}
    while True:
        origin, made = offspring(space, history, random)
        if made not in tried:
            return origin, made


def offspring(space: Space, history: list[Evaluated], random: np.random.Generator) -> tuple[str, Individual]:
    if len(history) < POPULATION:
        return "drawn", space.drawn(random)
    parents = ranked(history)[:PARENTS]
    if random.random() < CROSSED:
        a, b = (parents[n] for n in random.choice(len(parents), 2, replace=False))
        return f"of {a.number} and {b.number}", space.crossed(a.individual, b.individual, random)
    one = parents[random.integers(len(parents))]
    return f"of {one.number}", space.mutated(one.individual, random)


def ranked(history: list[Evaluated]) -> list[Evaluated]:
    return sorted(history, key=lambda one: (one.cost, one.number))


def finite(cost: float) -> float:
    return float(cost) if np.isfinite(cost) else float("inf")


# The file


def opened(path: Path, search: dict[str, Any]) -> dict[int, Evaluated]:
    """What the file holds already, by number. A new one begins with what it will be of."""
    said = json.loads(json.dumps(search))
    records = lines(path)
    before = next((record["search"] for record in records if "search" in record), None)
    if before is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        append(path, [{"search": said}])
        return {}
    if other := [key for key in said if said[key] != before.get(key)]:
        raise LabError(
            f"{path} is of a search with another {' and another '.join(other)}: rename or delete it to begin anew",
            code=2,
        )
    return {one.number: one for one in (read(record) for record in records if "number" in record)}


def written(one: Evaluated) -> dict[str, Any]:
    """JSON has no infinity."""
    cost = one.cost if np.isfinite(one.cost) else None
    return {"number": one.number, "origin": one.origin, "cost": cost, **asdict(one.individual)}


def read(record: dict[str, Any]) -> Evaluated:
    cost = float("inf") if record["cost"] is None else record["cost"]
    individual = Individual(record["critical"], tuple(record["factors"]))
    return Evaluated(record["number"], record["origin"], individual, cost)
