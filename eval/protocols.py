"""protocols: which tokens are scored at a context length, each in which window, and how a mean is made of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eval import EvalError


@dataclass(frozen=True)
class Window:
    """Run tokens start … start+length-1; score what the places from `first` on predict (place p: token start+p+1).

    hidden: instead, places whose tokens the model is not shown, and has to tell from those around them.
    """

    start: int
    length: int
    first: int = 0
    hidden: range | None = None

    @property
    def scored(self) -> int:
        return self.length - self.first if self.hidden is None else len(self.hidden)

    @property
    def targets(self) -> NDArray[np.int64]:
        """(scored,) which token of the document each loss is of."""
        if self.hidden is None:
            return self.start + np.arange(self.first, self.length) + 1
        return self.start + np.array(self.hidden)

    @property
    def seen(self) -> NDArray[np.int64]:
        """(scored,) how many tokens each loss is told from."""
        if self.hidden is None:
            return np.arange(self.first, self.length) + 1
        return np.full(self.scored, self.length - self.scored)

    @property
    def said(self) -> tuple:
        """All that its losses depend on, but for the tokens."""
        return self.start, self.length, self.first if self.hidden is None else list(self.hidden)


@dataclass(frozen=True)
class Protocol:
    name: str
    windows: Callable[[int, int, int, int], list[Window]]
    """(tokens read of the document, context length, longest context length, stride) -> windows, by their targets."""
    mean: Literal["tokens", "documents", "windows"] = "tokens"
    """tokens: every scored token weighs the same; documents, windows: the mean of their means."""
    needs: Callable[[int, int], int] = lambda length, stride: length + 1
    """(context length, stride) -> tokens that a document must have."""
    whole: bool = False
    """Whether documents are read to their end; else no further than the longest length needs."""
    bos: bool = True
    """Whether every window begins with the token that begins a text, where there is one; else only the first does."""
    hides: bool = False
    """Whether it hides tokens from a model that reads both ways, instead of asking for the next one."""


def tiled(done: int, end: int, length: int) -> list[Window]:
    """Windows whose far halves tile the targets done+1 … end: each is scored once, from a place in [length/2, length).

    length is even.
    """
    windows = []
    while done < end:
        last = min(done + length // 2, end)
        windows.append(Window(last - length, length, done - last + length))
        done = last
    return windows


def equal_token(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """The same targets at every length, tokens longest/2 + 1 … tokens - 1: all that `longest` can have context for.

    Cost: at each length two tokens run for one scored. Of lengths that halve each other every second short window
    starts where a longer one does, and where windows are shared is read off it.
    """
    return tiled(longest // 2, tokens - 1, length)


def suffix(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """The same targets at every length, but only the last `stride` of those of equal_token: fewer, and cheaper."""
    return tiled(tokens - 1 - min(stride, longest // 2), tokens - 1, length)


def position(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """One window from the start of the document: a loss for each place."""
    return [Window(0, length, 0)]


def yarn_prefix(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """The first `length` tokens, all but the first scored (the YaRN repository's script with --truncate)."""
    return [Window(0, length - 1, 0)]


def hf_stride(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """Windows `stride` apart over the whole document, each scoring what the one before left (transformers' guide).

    Where stride is length, nothing precedes the first token of a window: it is not scored, as there.
    Raises EvalError where tokens between two windows would be in neither.
    """
    if stride > length:
        raise EvalError(
            f"hf-stride: windows of {length} tokens, {stride} apart, leave tokens out: take at most {length}"
        )
    windows, done = [], 1  # `done`: tokens scored or unscorable so far; the first has nothing before it
    for begin in range(0, tokens, stride):
        end = min(begin + length, tokens)
        windows.append(Window(begin, end - begin - 1, max(begin, done - 1) - begin))
        done = end
        if end == tokens:
            break
    return [window for window in windows if window.scored]


def disjoint(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """Windows end to end, all of each scored; the last is filled up with context (lm-eval's rolling likelihood)."""
    windows = [Window(start, length, 0) for start in range(0, tokens - length, length)]
    left = tokens - 1 - len(windows) * length  # targets
    if left:
        size = min(length, tokens - 1)
        windows.append(Window(tokens - 1 - size, size, size - left))
    return windows


def second_half(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """Windows end to end, the second half of each scored, a last shorter one dropped (llama.cpp's perplexity)."""
    return [Window(start, length - 1, length // 2) for start in range(0, tokens - length + 1, length)]


def all_of_each(tokens: int, length: int, longest: int, stride: int) -> list[Window]:
    """Overlapping windows, all of each scored again, the last dropped (LongLoRA's script, and its descendants)."""
    return [Window(start, length - 1, 0) for start in range(0, tokens - length, stride)][:-1]


PROTOCOLS = {
    one.name: one
    for one in (
        Protocol("equal", equal_token),
        Protocol("position", position),
        Protocol("suffix", suffix),
        Protocol("yarn-prefix", yarn_prefix, "documents", needs=lambda length, stride: length),
        Protocol("hf-stride", hf_stride, needs=lambda length, stride: 2, whole=True, bos=False),
        Protocol("lm-eval-disjoint", disjoint, needs=lambda length, stride: 2, whole=True, bos=False),
        Protocol("llama.cpp-half", second_half, needs=lambda length, stride: 2 * length, whole=True),
        Protocol(
            "longlora-all",
            all_of_each,
            "windows",
            needs=lambda length, stride: length + stride + 1,
            whole=True,
            bos=False,
        ),
    )
}
"""equal, position and suffix are the lab's own; the others are those of published scripts, under their names."""
