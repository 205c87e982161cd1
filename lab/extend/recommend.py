"""What a comparison of methods says: how far each holds, what it costs where it is not needed, and which to take."""

# D documents · L lengths

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.perplexity import Measured
from eval.stats import Difference, paired, verdict
from lab.rows import Row
from positional.build import Spec, with_options

EPS = 0.02
"""Nats a token by which a method may cost more than the baseline and still count as holding."""


@dataclass(frozen=True)
class Curve:
    """What one method lost on the same tokens of the same documents, and how often it found a needle."""

    name: str
    spec: Spec | None  # None: the model as it is
    lengths: list[int]
    sums: NDArray  # (D, L) nats
    counts: NDArray  # (D, L) tokens
    needles: dict[int, Row]  # by length, the share of needles found

    @classmethod
    def of(cls, name: str, spec: Spec | None, measured: Measured, rows: Sequence[Row]) -> "Curve":
        found = {row.length: row for row in rows if row.scheme == name and (row.probe, row.metric) == NEEDLES}
        return cls(name, spec, measured.plan.lengths, *measured.sums("suffix"), found)

    def against(self, length: int, other: "Curve", at: int) -> Difference:
        """How many nats more a token costs here at `length` than `other` at length `at`."""
        here, there = self.lengths.index(length), other.lengths.index(at)
        return paired(self.sums[:, [here]], other.sums[:, [there]], self.counts[:, [here]])


NEEDLES = ("grid", "exact")


@dataclass(frozen=True)
class Judged:
    """One method beside two baselines: the model as it is, and the model with the text cut to its train length."""

    curve: Curve
    holds: int | None  # the longest length up to which it costs at most EPS more than the cut text; None: at none
    gain: Difference  # at the length to reach, over the cut text; negative: it costs less
    short: Difference  # at the shortest length, over the model as it is
    needles: Row | None  # at the length to reach


def judged(raw: Curve, methods: Sequence[Curve], train_length: int, to: int) -> list[Judged]:
    return [
        Judged(
            one,
            holds(one, raw, train_length),
            one.against(to, raw, train_length),
            one.against(one.lengths[0], raw, one.lengths[0]),
            one.needles.get(to),
        )
        for one in methods
    ]


def holds(one: Curve, raw: Curve, train_length: int) -> int | None:
    """As the upper end of the interval shows, at this length and at all shorter ones beyond the train length."""
    found = None
    for length in (length for length in one.lengths if length > train_length):
        if not one.against(length, raw, train_length).high[0] <= EPS:
            break
        found = length
    return found


def chosen(methods: Sequence[Judged], to: int) -> Judged | None:
    """Of those that hold at the length to reach and find needles as often as any that do, the one that loses least.

    None: none holds there.
    """
    able = [one for one in methods if one.holds == to]
    asked = [one.needles for one in able if one.needles is not None]
    if asked:
        best = max(asked, key=lambda row: row.value)
        able = [one for one in able if one.needles is not None and one.needles.high >= (best.low or 0.0)]
    return min(able, key=lambda one: one.gain.value[0], default=None)


def said(raw: Curve, methods: Sequence[Judged], train_length: int, to: int) -> Iterator[str]:
    """A sentence for the model as it is, one for each method, and what to do."""
    apart = raw.against(to, raw, train_length)
    yield f"As it is, a token costs {told(apart)} at {to} than with the text cut to {train_length}."
    for one in methods:
        yield sentence(one, train_length, to)
    best = chosen(methods, to)
    if best is None:
        partly = [one for one in methods if one.holds]
        reach = max(partly, key=lambda one: one.holds, default=None)
        rest = f"; {reach.curve.name} does to {reach.holds}" if reach else ""
        yield (
            f"Recommended: cut the text to {train_length} tokens, or fine-tune: no method is shown to hold at {to}, "
            f"within {EPS} nats of the cut text{rest}."
        )
        return
    alike = [o.curve.name for o in methods if o is not best and o.holds == to and undecided(best.curve, o.curve, to)]
    rest = f" Not told apart from it by loss: {', '.join(alike)}." if alike else ""
    found = f", and finds {best.needles.value:.0%} of needles" if best.needles else ""
    yield (
        f"Recommended: {best.curve.name} ({with_options(best.curve.spec)}), which holds to {to} tokens: "
        f"{told(best.gain)} than with the text cut to {train_length}{found}.{rest}"
    )


def undecided(a: Curve, b: Curve, to: int) -> bool:
    made = a.against(to, b, to)
    return verdict(float(made.low[0]), float(made.high[0])) == "undecided"


def sentence(one: Judged, train_length: int, to: int) -> str:
    how_far = f"holds to {one.holds}" if one.holds else f"does not hold beyond {train_length}"
    needles = "" if one.needles is None else f"; {one.needles.value:.0%} of {one.needles.count} needles at {to}"
    shortest = one.curve.lengths[0]
    cost = f"; at {shortest}, {told(one.short)} than as it is" if shortest <= train_length else ""
    return f"{one.curve.name} {how_far}: at {to}, {told(one.gain)} than the cut text{needles}{cost}."


def told(made: Difference) -> str:
    """A difference in words, with its interval."""
    value, low, high = float(made.value[0]), float(made.low[0]), float(made.high[0])
    ends = "" if np.isnan(low) else f" (95 %: {low:+.3f} to {high:+.3f})"
    return f"{abs(value):.3f} nats {'less' if value < 0 else 'more'}{ends}"
