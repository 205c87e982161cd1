"""resample: means over tokens, and the same means had other documents and other training seeds been drawn."""

# R replicates · S training seeds · N documents · L lengths

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, t

from eval import EvalError

Array = NDArray[np.float64]
REPLICATES = 4000
"""At 10 documents an interval ends at the 0.9 % quantile: 34 replicates lie beyond it."""


@dataclass(frozen=True)
class Resampled:
    """The means (L,), those of each replicate (R, L), and the share of replicates to leave out at either end (L,)."""

    value: Array
    drawn: Array
    tail: Array

    def interval(self) -> tuple[Array, Array]:
        """The 95 % interval at each length, (L,) twice; NaN where one document holds all tokens."""
        return quantile(self.drawn, self.tail), quantile(self.drawn, 1 - self.tail)


def resample(sums: Array, counts: Array, order: NDArray[np.intp], replicates: int, seed: int) -> Resampled:
    """Bootstrap whole documents, crossed with training seeds: one drawing serves all lengths, and all seeds.

    sums, counts: (S, N, L) from `checked`.   order: of the documents, from `ordered`.
    """
    seeds, documents, lengths = sums.shape
    measured = ~np.isnan(sums).any((0, 1))
    sums, counts = sums[:, order][..., measured], counts[:, order][..., measured]
    rng = np.random.default_rng(seed)
    by_document = draw(rng, documents, replicates)
    by_seed = draw(rng, seeds, replicates)
    if seeds > 1:
        # Drawn with replacement, 3 seeds can neither leave the range of the 3 nor show all of their spread: where seeds
        # are what varies, 95 % would be 75 %, and 85 % with 5. Wider weights make it the t interval of their mean.
        by_seed = 1 + (by_seed - 1) * widened(seeds) / norm.ppf(0.975)
    value, drawn, tail = np.full(lengths, np.nan), np.full((replicates, lengths), np.nan), np.full(lengths, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):  # a replicate may have no tokens at a length: then it is NaN
        value[measured] = (sums.sum(1) / counts.sum(1)).mean(0)
        each = [(by_document @ s) / (by_document @ c) for s, c in zip(sums, counts, strict=True)]  # S times (R, L)
    drawn[:, measured] = sum(by_seed[:, n, None] * each[n] for n in range(seeds)) / seeds
    tail[measured] = norm.cdf(-widened(effective(counts[0])))
    return Resampled(value, drawn, tail)


def draw(rng: np.random.Generator, count: int, replicates: int) -> Array:
    """How often each of `count` is drawn with replacement, (R, count)."""
    cells = rng.integers(count, size=(replicates, count)) + count * np.arange(replicates)[:, None]
    return np.bincount(cells.ravel(), minlength=replicates * count).reshape(replicates, count).astype(np.float64)


def widened(count: NDArray | float) -> NDArray | float:
    """How many standard errors of a bootstrap the 95 % interval of a mean of `count` values reaches to either side.

    The bootstrap's own is too short by √((count-1)/count), and it takes the spread for known, which Student's t does
    not (Hesterberg 2015, arXiv:1411.5279, "expanded percentile interval").
    """
    return np.sqrt(count / (count - 1)) * t.ppf(0.975, count - 1)


def effective(counts: Array) -> Array:
    """How many documents of equal size tell as much as these (N, L), at each length (Kish); N where they are equal.

    Taken for N, 40 documents whose sizes spread by a factor of e have an interval of 93 %, not of 95 %.
    """
    one = counts.sum(0) ** 2 / (counts**2).sum(0)
    return np.where(one > 1 + 1e-9, one, np.nan)


def quantile(drawn: Array, at: Array) -> Array:
    """The quantile `at` (L,) of each column of (R, L)."""
    told = ~np.isnan(at) & ~np.isnan(drawn).all(0)
    found = [np.nanquantile(drawn[:, n], at[n]) if told[n] else np.nan for n in range(len(at))]
    return np.array(found, np.float64)


def checked(sums: ArrayLike, counts: ArrayLike) -> tuple[Array, Array]:
    """Both as (S, N, L). Raises EvalError where their shapes differ or only some documents have a length."""
    sums, counts = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    if sums.ndim not in (2, 3) or counts.shape not in (sums.shape, sums.shape[1:]):
        raise EvalError(
            f"sums have the shape {sums.shape} and counts {counts.shape}; both must be (documents, lengths) or "
            "(seeds, documents, lengths), with counts alike for all seeds if they have no seeds"
        )
    sums = sums.reshape(-1, *sums.shape[-2:])
    counts = np.broadcast_to(counts, sums.shape)
    lacking = np.isnan(sums)
    for at in np.flatnonzero(lacking.any((0, 1)) & ~lacking.all((0, 1))):
        raise EvalError(
            f"at length number {at} (from 0), {lacking[..., at].sum()} of {lacking[..., at].size} sums are NaN: every "
            "length needs the same documents. Leave those documents out of all lengths, or make this length NaN for all"
        )
    if (np.nan_to_num(counts[:, :, ~lacking.any((0, 1))]).sum(1) <= 0).any():
        raise EvalError(
            "counts: a length has sums but no scored tokens; a length that was not measured has sums of NaN"
        )
    return sums, counts


def ordered(*keys: Array) -> NDArray[np.intp]:
    """An order of the documents by (…, N, L) numbers of theirs: in whichever order they come, one result comes out."""
    columns = [np.moveaxis(key, -2, 0).reshape(key.shape[-2], -1) for key in keys]
    return np.lexsort(np.nan_to_num(np.concatenate(columns, 1)).T[::-1])
