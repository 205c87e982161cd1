"""LongRoPE's factors: the lists that a search may try, and how new lists come of old ones (arXiv:2502.20082)."""

# N lanes of a head, from the fastest to the slowest

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab import LabError

Curve = Callable[[NDArray], NDArray]
"""How factors rise below the critical lane: share of the way there -> exponent of the critical lane's factor."""

STEPS = 0.01, 0.3
"""The smallest and the largest step of a mutation, in shares of what may vary. Small ones refine, large explore."""


@dataclass(frozen=True)
class Individual:
    """Factors of all N lanes, and the lane from which on each is at least the whole extension."""

    critical: int
    factors: tuple[float, ...]


@dataclass(frozen=True)
class Space:
    """Lists of N factors that never fall from one lane to the next, with a critical lane that is searched as well.

    From the critical lane on factors lie between `factor` and `most` times it. Below they rise from 1 to the critical
    lane's as NTK's do, λ_c^(i/c), or by a bent curve. Position interpolation (c = 0) and NTK (c = N - 1) are in it.

    lanes: N = D/2.   factor: times the train length.   critical: the first lane that does not turn once within the
    train length; which one is best is known to lie near it, mostly below.
    most: published lists end at up to twice the factor (Phi-3.5-mini: 64.8, with 32).
    Raises LabError where there is nothing to extend, or nothing to vary.
    """

    lanes: int
    factor: float
    critical: int
    most: float = 2.0

    def __post_init__(self):
        if self.factor <= 1:
            raise LabError(
                f"longrope: the target is {self.factor:g} times the train length, which is within: nothing is to be "
                "searched. Write a longer target",
                code=2,
            )
        if self.most <= 1:
            raise LabError(f"longrope: factors may grow to {self.most:g} times the extension, which must be above 1", 2)
        object.__setattr__(self, "critical", min(max(self.critical, 0), self.lanes - 1))

    def given(self, factors: Sequence[float]) -> Individual:
        """A published list as it is, though no child may be so: some interpolate no lane by the whole extension."""
        whole = [lane for lane, one in enumerate(factors) if one >= self.factor * (1 - 1e-9)]
        return Individual(whole[0] if whole else self.lanes - 1, tuple(map(float, factors)))

    def laid(self, critical: int, below: Curve, shares: NDArray) -> Individual:
        """shares: of the lanes from the critical one on, 0 for `factor` and 1 for the most; sorted, cut to 0 … 1."""
        slow = self.factor * self.most ** np.sort(np.clip(shares, 0, 1))
        exponents = np.clip(below(np.arange(critical) / max(critical, 1)), 0, 1)
        return Individual(critical, tuple(np.concatenate([slow[0] ** exponents, slow]).tolist()))

    def plain(self) -> Individual:
        """The whole extension from the theoretical critical lane on, NTK below."""
        return self.laid(self.critical, straight, np.zeros(self.lanes - self.critical))

    def drawn(self, random: np.random.Generator) -> Individual:
        """Any: a critical lane within a quarter of all lanes from the theoretical one, NTK below."""
        near = self.lanes // 4
        critical = int(np.clip(self.critical + random.integers(-near, near + 1), 0, self.lanes - 1))
        return self.laid(critical, straight, random.random(self.lanes - critical))

    def mutated(self, one: Individual, random: np.random.Generator) -> Individual:
        """The critical lane moves, the curve below it bends, or neither; factors from there on move, all or some."""
        step = np.exp(random.uniform(*np.log(STEPS)))
        critical, below = one.critical, curve_of(one)
        if random.random() < 0.2:
            moved = critical + np.rint(random.normal() * max(1, step * self.lanes))
            critical = int(np.clip(moved, 0, self.lanes - 1))
        if random.random() < 0.5:
            below = bent(below, np.exp(random.normal() * step))
        shares = self.shares(one, critical)
        return self.laid(critical, below, shares + step * direction(len(shares), random))

    def crossed(self, a: Individual, b: Individual, random: np.random.Generator) -> Individual:
        """Critical lane and curve of either, each lane from there on of either."""
        first, second = random.integers(2, size=2)
        critical = (a, b)[first].critical
        pick = random.random(self.lanes - critical) < 0.5
        shares = np.where(pick, self.shares(a, critical), self.shares(b, critical))
        return self.laid(critical, curve_of((a, b)[second]), shares)

    def shares(self, one: Individual, critical: int) -> NDArray:
        """What `laid` makes its factors from this lane on of; lanes that interpolate by less than it all: below 0."""
        return np.log(np.array(one.factors[critical:]) / self.factor) / np.log(self.most)


def straight(way: NDArray) -> NDArray:
    """NTK's curve."""
    return way


def bent(curve: Curve, power: float) -> Curve:
    return lambda way: np.clip(curve(way), 0, 1) ** power


def curve_of(one: Individual) -> Curve:
    """How its factors rise below its critical lane, for any other number of lanes there."""
    logs = np.log(one.factors[: one.critical + 1])
    if one.critical == 0 or logs[-1] <= 0:
        return straight
    places = np.arange(one.critical + 1) / one.critical
    return lambda way: np.interp(way, places, logs / logs[-1])


def direction(count: int, random: np.random.Generator) -> NDArray:
    """Of a step: all lanes alike, ever more towards the last, or some lanes, each by its own amount."""
    kind = random.integers(4)
    if kind == 0:
        return np.full(count, random.normal())
    if kind == 1:
        return np.linspace(0, 1, count) * random.normal()
    return (random.random(count) < 0.3) * random.normal(size=count)
