"""What theory says of each layer: the paper's words, and FLOPs counted from what is multiplied."""

import math

from scipy.optimize import brentq

from lab.complexity.layers import Sizes

WORDS = {
    "attention": ("n²·d", "1", "1"),
    "window": ("r·n·d", "1", "n/r"),
    "lstm": ("n·d²", "n", "n"),
    "gru": ("n·d²", "n", "n"),
    "convolution": ("k·n·d²", "1", "log_k n"),
}
"""Complexity per layer, sequential operations and maximum path length, as in Table 1 of the paper, without the O."""


def words(name: str) -> tuple[str, str, str]:
    return WORDS[name.partition(" ")[0]]


def pairs(name: str, n: float, sizes: Sizes) -> float:
    """How many scores attention makes of n tokens. `eager` makes all and hides half, the others make what is seen."""
    kind, _, backend = name.partition(" ")
    if backend == "eager":
        return n * n
    reach = min(n, sizes.window) if kind == "window" else n
    return n * reach - reach * (reach - 1) / 2


def flops(name: str, n: float, sizes: Sizes) -> float:
    """Of n tokens forward through one layer, a multiplication and an addition being two.

    Attention: four projections; scores and weighted values, 2·d each a pair. LSTM: four gates of token and state, GRU:
    three, each with the way back to the width. Convolution: values and gates from k tokens, and the way back.
    """
    kind, square = name.partition(" ")[0], n * sizes.width**2
    if kind in ("attention", "window"):
        return 8 * square + 4 * sizes.width * pairs(name, n, sizes)
    return {"lstm": 18 * square, "gru": 14 * square, "convolution": (4 * sizes.kernel + 2) * square}[kind]


def crossing(one: str, other: str, sizes: Sizes, farthest: float = 2.0**40) -> float | None:
    """The n from which on `one` takes more FLOPs than `other`. None: at no length, or at every."""

    def ahead(log_n: float) -> float:
        n = math.exp(log_n)
        return flops(one, n, sizes) / n - flops(other, n, sizes) / n

    if not ahead(0) < 0 < ahead(math.log(farthest)):
        return None
    return math.exp(brentq(ahead, 0, math.log(farthest)))
