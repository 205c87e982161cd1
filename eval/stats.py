"""stats: means and rates with 95 % intervals, and what may be said of two models that scored the same tokens."""

# S training seeds · N documents · L lengths

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, t

from eval import EvalError
from eval.resample import REPLICATES, Array, checked, ordered, resample


@dataclass(frozen=True)
class Curve:
    """A mean per length and its 95 % interval, each (L,); NaN at a length that was not measured."""

    value: Array
    low: Array
    high: Array
    documents: int
    seeds: int

    @property
    def covers(self) -> str:
        """What the interval allows to have been drawn otherwise."""
        return "documents and training seeds" if self.seeds > 1 else "documents, not training seeds"


@dataclass(frozen=True)
class Difference(Curve):
    """Of a - b. wins: (L,) the share of documents on which a loses fewer nats; a tie is half a win."""

    wins: Array


def curve(sums: ArrayLike, counts: ArrayLike, *, replicates: int = REPLICATES, seed: int = 0) -> Curve:
    """The mean over tokens at each length, with an interval from resampling whole documents.

    sums: (N, L), or (S, N, L) of several training seeds: the nats of each document; NaN for all of them at a length
    that the model does not take.   counts: the tokens that these sums are over; (N, L) serves all seeds.
    One document has no interval. With several seeds of which the spread is but noise the interval is wider than needed.
    """
    sums, counts = checked(sums, counts)
    found = resample(sums, counts, ordered(counts, sums), replicates, seed)
    return Curve(found.value, *found.interval(), documents=sums.shape[1], seeds=sums.shape[0])


def paired(a: ArrayLike, b: ArrayLike, counts: ArrayLike, *, replicates: int = REPLICATES, seed: int = 0) -> Difference:
    """How many nats more a token costs model a than model b, on the same tokens of the same documents.

    a, b, counts: sums and counts as for `curve`. What makes a document hard is in both and cancels: this interval is
    narrower than those of the two curves. Seed n of a is set against seed n of b; where they share nothing, that is as
    good as any other pairing.
    """
    (a, counts), (b, _) = checked(a, counts), checked(b, counts)
    if a.shape != b.shape:
        raise EvalError(f"one model has sums of {a.shape}, the other of {b.shape} (seeds, documents, lengths)")
    # What a and b are alike in comes first: to swap them is to swap signs, and not also the order of the documents.
    order = ordered(counts, a + b, abs(a - b), a)
    found = resample(a - b, counts, order, replicates, seed)
    less = np.sign((b - a).sum(0))  # 1: a is better
    wins = np.where(np.isnan(found.value), np.nan, (0.5 + less / 2).mean(0))
    return Difference(found.value, *found.interval(), documents=a.shape[1], seeds=a.shape[0], wins=wins)


def verdict(low: float, high: float) -> str:
    """Which of two models an interval of their difference in loss, a - b, shows to be better: a, b or undecided."""
    return "a" if high < 0 else "b" if low > 0 else "undecided"


def bits_per_byte(sums: ArrayLike, sizes: ArrayLike, **how: int) -> Curve:
    """`curve` in bits a byte, comparable between tokenisers. sizes: bytes of the scored tokens, not of documents."""
    return curve(np.asarray(sums, np.float64) / math.log(2), sizes, **how)


@dataclass(frozen=True)
class Rate:
    """A share of hits and its 95 % interval; NaN without samples."""

    value: float
    low: float
    high: float
    samples: int
    groups: int


def rate(hits: ArrayLike, groups: ArrayLike | None = None, *, replicates: int = REPLICATES, seed: int = 0) -> Rate:
    """The share of samples that are hits. groups: samples with the same number share a haystack; None: none do.

    Without groups, Wilson's interval. With them, the bootstrap over groups joined with Wilson's for as many independent
    samples as tell what these tell: fewer, the more the groups differ (Kish's design effect), and with Student's t.
    Near 0 and 1 neither is wide enough alone; joined they have 95 % for rates up to 90 %, but 91 % where the rate is
    98 % and few groups have most of the misses. Where all groups have one rate, as at 0 % and 100 %, nothing tells
    whether samples of a group are alike: then a group counts as one sample.
    """
    hits = np.asarray(hits, np.float64)
    if not hits.size:
        return Rate(math.nan, math.nan, math.nan, 0, 0)
    _, group = np.unique(np.arange(hits.size) if groups is None else np.asarray(groups), return_inverse=True)
    right, size = np.bincount(group, hits), np.bincount(group)
    samples, count, value = hits.size, len(size), float(hits.mean())
    if count == samples:
        return Rate(value, *wilson(hits.sum(), samples), samples, count)
    spread = ((right - value * size) ** 2).sum()
    if spread < 1e-9:  # every group has the rate of all, or there is but one
        return Rate(value, *wilson(value * count, count), samples, count)
    variance, independent = spread * count / (count - 1) / samples**2, value * (1 - value) / samples
    equal = samples * min(1.0, independent / variance)
    low, high = wilson(value * equal, equal, float(t.ppf(0.975, count - 1)))
    sums, counts = checked(right[:, None], size[:, None])
    drawn = resample(sums, counts, ordered(counts, sums), replicates, seed).interval()
    return Rate(value, min(low, float(drawn[0][0])), max(high, float(drawn[1][0])), samples, count)


def wilson(hits: float, samples: float, reach: float = float(norm.ppf(0.975))) -> tuple[float, float]:
    """The interval of a rate (Wilson 1927). reach: in standard errors.

    Its coverage is 95 % on average over rates, not at each: near 0 and 1 it falls to some 84 %.
    """
    if not samples:
        return math.nan, math.nan
    share, extra = hits / samples, reach**2 / samples
    centre = (share + extra / 2) / (1 + extra)
    half = reach / (1 + extra) * math.sqrt(share * (1 - share) / samples + extra / samples / 4)
    return (max(0.0, centre - half) if hits > 0 else 0.0), (min(1.0, centre + half) if hits < samples else 1.0)


def cautions(documents: int, seeds: int) -> list[str]:
    """What to tell the reader of intervals from so many documents and training seeds."""
    said = []
    if documents < 6:  # with probability 2^(1-N) the truth is beyond all N documents, and beyond it no resample reaches
        said.append(f"{documents} documents: intervals from fewer than 6 cover less than 95 %; use 30 or more")
    elif documents < 30:
        said.append(f"{documents} documents: intervals are rough; use 30 or more")
    if seeds == 1:
        said.append("1 training seed: intervals leave out what another seed would change; train 3 or more")
    elif seeds < 3:
        said.append(f"{seeds} training seeds: intervals are rough, and wide; train 3 or more")
    return said
