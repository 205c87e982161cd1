"""Lines through measured costs, in logarithms: their exponents with intervals, and where two of them cross."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

LAST = 4
"""A line is laid through so many of the longest lengths: at the short ones, what is fixed outweighs what grows."""


@dataclass(frozen=True)
class Exponent:
    """cost ~ n^value. The 95 % interval is of the line through these points; None: two points make any line."""

    value: float
    low: float | None
    high: float | None


def exponent(costs: dict[int, float]) -> Exponent | None:
    """Of costs by length. None: fewer than two."""
    some = {n: costs[n] for n in sorted(costs)[-LAST:] if costs[n] > 0}
    if len(some) < 2:
        return None
    line = stats.linregress(np.log(list(some)), np.log(list(some.values())))
    if len(some) < 3:
        return Exponent(line.slope, None, None)
    half = stats.t.ppf(0.975, len(some) - 2) * line.stderr
    return Exponent(line.slope, line.slope - half, line.slope + half)


def crossover(one: dict[int, float], other: dict[int, float]) -> float | str:
    """The length from which on `one` costs more, between two that were measured; in words where there is none."""
    lengths = sorted(one.keys() & other.keys())
    if not lengths:
        return "was not measured"
    ahead = [math.log(one[n] / other[n]) for n in lengths]
    if ahead[-1] <= 0:
        return f"at none up to {lengths[-1]:,}"
    for i in reversed(range(len(lengths) - 1)):
        if ahead[i] <= 0:
            share = -ahead[i] / (ahead[i + 1] - ahead[i])
            return lengths[i] * (lengths[i + 1] / lengths[i]) ** share
    return f"at every length from {lengths[0]:,}"
