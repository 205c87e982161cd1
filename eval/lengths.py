"""lengths: how far a model's context reaches, as the longest length that passes a rule, with an interval."""

# R replicates · S training seeds · N documents · L lengths

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval import EvalError
from eval.resample import REPLICATES, Array, Resampled, checked, ordered, resample
from eval.stats import rate


@dataclass(frozen=True)
class Reach:
    """Lengths in tokens; 0 where not even the shortest one passes.

    shown: the longest that passes with the bound of its interval, as all shorter ones do: what the data vouch for.
    seen: the longest that passes by the means alone, as all shorter ones do. More data move `shown` towards it.
    low, high: between them lies what 95 % of the bootstrap's replicates have for `seen`; None for a single document.
    `shown` asks for what nearly all replicates grant: expect it at `low`, not in the middle. All four are lengths that
    were measured: the truth is anywhere up to the next longer one, and beyond the longest, where `high` is that.
    """

    shown: int
    seen: int
    low: int | None
    high: int | None


def l_ppl(
    sums: ArrayLike,
    counts: ArrayLike,
    lengths: Sequence[int],
    train_length: int,
    eps: float = 0.02,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Reach:
    """The longest length at which a token costs at most `eps` nats more than at train_length, as at all in between.

    sums, counts: as for `eval.stats.curve`, over the same tokens at all lengths.   Its bound: the upper one of the
    paired difference to train_length.   A length that was not measured fails, and so ends what passes.
    """
    found = replicated(sums, counts, lengths, replicates, seed)
    start = place(lengths, train_length, found.value)
    rise = difference(found, list(range(start, len(lengths))), [start] * (len(lengths) - start))
    return reach(lengths[start:], rise.interval()[1] <= eps, rise.value <= eps, rise.drawn <= eps, rise.tail)


def l_gain(
    sums: ArrayLike, counts: ArrayLike, lengths: Sequence[int], *, replicates: int = REPLICATES, seed: int = 0
) -> Reach:
    """The longest length at which a token costs less than at half of it, as at all shorter ones: context still helps.

    sums, counts: as for `eval.stats.curve`, over the same tokens at all lengths. Lengths whose half is not among them
    are passed over.   Its bound: the upper one of the paired difference.   That all shorter ones pass keeps a model
    which breaks down at one length, and does less badly at twice that, from looking helped; and it keeps the chance of
    showing too long a length at that of one test, 2.5 %, however many lengths are tested.
    """
    found = replicated(sums, counts, lengths, replicates, seed)
    pairs = [(n, m) for n, long in enumerate(lengths) for m, short in enumerate(lengths) if long == 2 * short]
    if not pairs:
        raise EvalError(
            f"lengths {list(lengths)}: none is twice another, and what is compared is a length and its half"
        )
    wholes, halves = map(list, zip(*pairs, strict=True))
    gain = difference(found, wholes, halves)
    return reach([lengths[n] for n in wholes], gain.interval()[1] < 0, gain.value < 0, gain.drawn < 0, gain.tail)


def l_ret(
    hits: Mapping[int, ArrayLike],
    train_length: int,
    tau: float = 0.85,
    *,
    groups: Mapping[int, ArrayLike] | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Reach:
    """The longest length whose rate of hits is at least `tau` times that at train_length, as of all shorter ones.

    hits: by length, the samples' hits; none at a length that was not measured, which fails.   groups: by length, the
    samples' haystacks; a number found at two lengths is one haystack, drawn as often for both.   Its bound: the
    lower one of `eval.stats.rate`. The rate at train_length is taken as known there, and varies in the replicates: with
    as many samples at each length, one that just misses the mark is shown in some 4 % of cases and not in 2.5 %.
    A model without a hit at train_length passes nowhere. With few samples not even train_length is shown.
    """
    lengths = sorted(hits)
    named = [np.arange(np.size(hits[n])) if groups is None else np.asarray(groups[n]) for n in lengths]
    rates = [rate(hits[n], group, replicates=replicates, seed=seed) for n, group in zip(lengths, named, strict=True)]
    value, low = np.array([one.value for one in rates]), np.array([one.low for one in rates])
    start = place(lengths, train_length, value)
    sums, counts = by_group([np.asarray(hits[n], np.float64) for n in lengths], named)
    found = replicated(sums, counts, lengths, replicates, seed)
    need, drawn_need = tau * value[start], tau * found.drawn[:, start, None]
    return reach(
        lengths,
        (low >= need) & (need > 0),
        (value >= need) & (need > 0),
        (found.drawn >= drawn_need) & (drawn_need > 0),
        found.tail,
    )


def ruler(accuracy: Mapping[int, float], threshold: float = 0.856) -> int | None:
    """RULER's effective length (Hsieh et al. 2024, arXiv:2404.06654): the longest whose accuracy is above threshold.

    The threshold, the accuracy of Llama-2-7B-chat at 4k tokens, is of RULER's 13 tasks alone. No uncertainty enters.
    """
    return max((length for length, value in accuracy.items() if value > threshold), default=None)


# How it is done


def replicated(sums: ArrayLike, counts: ArrayLike, lengths: Sequence[int], replicates: int, seed: int) -> Resampled:
    sums, counts = checked(sums, counts)
    if list(lengths) != sorted(set(lengths)) or len(lengths) != sums.shape[-1]:
        raise EvalError(
            f"lengths {list(lengths)} must ascend, one for each of the {sums.shape[-1]} columns of the sums"
        )
    return resample(sums, counts, ordered(counts, sums), replicates, seed)


def place(lengths: Sequence[int], train_length: int, value: Array) -> int:
    """Where train_length is, to which all lengths are compared."""
    if train_length not in lengths or np.isnan(value[list(lengths).index(train_length)]):
        known = [length for length, one in zip(lengths, value, strict=True) if not np.isnan(one)]
        raise EvalError(f"train_length: {train_length} tokens were not measured, only {known}; measure it too")
    return list(lengths).index(train_length)


def difference(found: Resampled, these: list[int], those: list[int]) -> Resampled:
    """Means at `these` lengths minus means at `those`, replicate by replicate: what is common to both cancels."""
    return Resampled(
        found.value[these] - found.value[those],
        found.drawn[:, these] - found.drawn[:, those],
        np.minimum(found.tail[these], found.tail[those]),
    )


def reach(lengths: Sequence[int], shown: NDArray, seen: NDArray, drawn: NDArray, tail: Array) -> Reach:
    """From what passes: (L,) with its bound, (L,) without, and (R, L) in each replicate."""
    grid = np.array([0, *lengths])
    longest = np.sort(passing(drawn))
    tail = 0.0 if np.isnan(tail).all() else float(np.nanmin(tail))
    ends = [None, None]
    if tail:
        last = len(longest) - 1
        ends = [int(grid[longest[at]]) for at in (math.floor(tail * last), last - math.floor(tail * last))]
    return Reach(int(grid[passing(shown)]), int(grid[passing(seen)]), *ends)


def passing(passes: NDArray) -> NDArray:
    """How many lengths pass, counted from the shortest to the first that fails: (…, L) → (…)."""
    return np.logical_and.accumulate(passes, -1).sum(-1)


def by_group(hits: list[Array], named: list[NDArray]) -> tuple[Array, Array]:
    """Hits and samples of each group at each length, (groups, L): groups are to hits what documents are to nats."""
    names = np.unique(np.concatenate(named))
    where = [np.searchsorted(names, group) for group in named]
    sums = np.stack([np.bincount(at, one, len(names)) for at, one in zip(where, hits, strict=True)], 1)
    counts = np.stack([np.bincount(at, minlength=len(names)) for at in where], 1)
    return np.where(counts.sum(0) > 0, sums, np.nan), counts
