"""pseudo: pseudo-perplexity, tokens hidden in turn from a model that reads both ways, at longer and longer contexts."""

import math
from functools import partial

import numpy as np

from eval import EvalError
from eval.protocols import Protocol, Window


def pseudo(together: int = 1) -> Protocol:
    """Every scored token is hidden in turn and told from all others (Salazar et al. 2020, arXiv:1910.14659).

    together: how many are hidden in one forward pass at most, far apart. With 1 this is the paper's measure. With more
    it is another one, under a name of its own, cheaper by up to that factor: a token is told without those that are
    hidden with it. Raises EvalError for less than 1.
    """
    if together < 1:
        raise EvalError(f"pseudo-perplexity with {together} tokens hidden at once: 1 or more")
    name = "pseudo-perplexity" if together == 1 else f"pseudo-perplexity, {together} at once"
    windows = partial(hiding, together)
    return Protocol(name, windows, needs=lambda length, stride: length, bos=False, hides=True)


def hiding(together: int, tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """The same targets at every length: the middle `stride` tokens of the first `longest`, half of these at most.

    Each is told from a place that has at least length/4 of the window's tokens on either side, rounded down. Tokens
    that are hidden together are as far apart in a short window as in a long one: else that would have more holes.
    """
    count = min(stride, longest // 2)
    first, apart = (longest - count) // 2, math.ceil(count / together)
    windows = []
    for block in np.array_split(np.arange(first, first + count), math.ceil(count / (length // 2))):
        begin, size = int(block[0]), len(block)
        start = min(max(0, begin - (length - size) // 2), longest - length)
        place = begin - start
        windows += [
            Window(start, length, hidden=range(place + n, place + size, apart)) for n in range(min(apart, size))
        ]
    return windows
