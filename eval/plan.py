"""Which windows to run: the same targets at every length, each predicted from the far half of its window."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Run tokens start … start+length-1; score what the places from `first` on predict (place p: token start+p+1)."""

    start: int
    length: int
    first: int


def equal_token(length: int, longest: int) -> list[Window]:
    """The windows of one document at one length. The targets are tokens longest/2 + 1 … longest, whatever the length.

    Every target is scored once, from a place in [length/2, length) of its window. Both lengths are even, in tokens; the
    document must have longest + 1. Cost: `longest` tokens, one window of `longest` or many short ones.
    """
    windows, done, end = [], longest // 2, longest  # `done`: the last target that is scored already
    while done < end:
        last = min(done + length // 2, end)
        start = last - length
        windows.append(Window(start, length, done - start))
        done = last
    return windows
