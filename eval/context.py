"""Context use: losses of the tokens that only a long context can help with, from the losses that are there already."""

# D documents · N tokens

import numpy as np
from numpy.typing import NDArray

from eval.perplexity import Measured

GRAM = 8
"""Tokens before a token that must have occurred before, in the same order, for it to be copy-able."""


def back(ids: NDArray[np.int64], gram: int = GRAM) -> NDArray[np.int64]:
    """(N,) how many tokens back the `gram` tokens before each token stood last; 0 where they never did."""
    found = np.zeros(len(ids), np.int64)
    if len(ids) <= gram:
        return found
    kind = kinds(ids, gram)[:-1]  # the n-th gram lies before token n + gram
    order = np.argsort(kind, kind="stable")
    again = np.flatnonzero(np.diff(kind[order]) == 0) + 1  # those whose predecessor in order is of the same kind
    found[order[again] + gram] = order[again] - order[again - 1]
    return found


def kinds(ids: NDArray[np.int64], gram: int) -> NDArray[np.int64]:
    """(N - gram + 1,) numbers, the same where the same `gram` tokens begin: by two halves, which may overlap."""
    kind, size = np.unique(ids, return_inverse=True)[1], 1
    while size < gram:
        step = min(size, gram - size)
        both = kind[:-step] * len(ids) + kind[step:]
        kind, size = np.unique(both, return_inverse=True)[1], size + step
    return kind


def copyable(measured: Measured, gram: int = GRAM) -> dict[int, tuple[NDArray, NDArray, NDArray]]:
    """length -> (D,) summed nats with that context, with half of it, and how many tokens.

    The tokens are those whose preceding `gram` tokens stood last more than length/2 back and within the context: what
    could be copied is in sight at this length and out of sight at half of it.
    """
    plan = measured.plan
    lengths = [length for length in plan.reachable if length // 2 in plan.reachable]
    found = {length: np.zeros((3, len(plan.documents))) for length in lengths}
    for n, document in enumerate(plan.documents):
        last = measured.targets(("equal", plan.longest), n)[0][-1]
        distance = back(document.ids[: last + 1].numpy(), gram)
        for length in lengths:
            target, seen = measured.targets(("equal", length), n)
            seen = seen - (plan.bos is not None)  # the first of these may have given way to the one that begins a text
            far = (distance[target] > length // 2) & (distance[target] + gram <= seen)
            here, half = (measured.losses(("equal", one), n)[far] for one in (length, length // 2))
            found[length][:, n] = here.sum(dtype=np.float64), half.sum(dtype=np.float64), len(here)
    return {length: tuple(sums) for length, sums in found.items()}


def key_tokens(short: NDArray, long: NDArray, gain: float = 2.0, loss: float = 2.0) -> NDArray[np.bool_]:
    """Which tokens a long context helps, by one model's losses in nats with a short and with a long one.

    More than `gain` better with the long one, and then below `loss` (LongPPL, Fang et al. 2024, arXiv:2410.23771). To
    compare models, take the mask of one fixed model for all: none may choose its own.
    """
    return (short - long > gain) & (long < loss)


def by_key_tokens(measured: Measured, reference: Measured) -> tuple[NDArray, NDArray]:
    """(D, lengths) summed nats and how many tokens, of those that a long context helps the reference with; NaN where a
    length cannot be taken.

    Long and short are the longest and the shortest length of the reference's plan. Both plans are of the same
    documents, read as far, and have the same longest length, so that `equal` scores the same tokens in all of them.
    """
    plan, ends = measured.plan, reference.plan.lengths
    sums = np.full((len(plan.documents), len(plan.lengths)), np.nan)
    counts = np.zeros(sums.shape)
    for n in range(len(plan.documents)):
        short, long = (reference.losses(("equal", length), n) for length in (ends[0], ends[-1]))
        key = key_tokens(short, long)
        counts[n] = key.sum()
        for length in plan.reachable:
            sums[n, plan.lengths.index(length)] = measured.losses(("equal", length), n)[key].sum(dtype=np.float64)
    return sums, counts
