"""layout: facts among haystack, then questions and answers, in exactly so many tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eval import EvalError
from eval.voice import Voice

Span = tuple[int, int]


def lay_out(
    voice: Voice,
    random: np.random.Generator,
    length: int,
    facts: Sequence[tuple[float, str]],
    parts: Sequence[tuple[str, str]],
) -> tuple[NDArray[np.int64], list[int], list[Span]]:
    """(`length` ids, where each fact starts, where each answer lies).

    facts: (depth, text). Depth is the share of the haystack that comes before: 0 begins the sample, 1 touches the
    question. Facts of one depth stand in the order given.   parts: (what is asked, the answer), in turn.
    Raises EvalError where it cannot fit.
    """
    tail, spans = voice.dialogue(parts)
    ids, starts = bury(voice, random, length - len(tail), facts, len(tail))
    return np.concatenate([ids, tail]), starts, [(len(ids) + a, len(ids) + z) for a, z in spans]


def bury(
    voice: Voice, random: np.random.Generator, length: int, facts: Sequence[tuple[float, str]], after: int
) -> tuple[NDArray[np.int64], list[int]]:
    """(`length` ids of haystack with the facts in it, where each starts).   after: tokens that will follow them."""
    buried = [voice.ids(text) for _, text in facts]
    begun, needed = len(voice.start), sum(map(len, buried))
    room = length - begun - needed
    if room < 0:
        raise EvalError(
            f"{length + after} tokens are too few: facts of {needed} + questions and answers of {after}"
            f"{f' + a start of {begun}' if begun else ''} = {needed + after + begun}. Ask for at least as many"
        )
    filler = voice.filler(random, room)
    cuts = [round(depth * room) for depth, _ in facts]
    pieces, starts, at, done = [np.array(voice.start, np.int64)], [0] * len(facts), begun, 0
    for n in sorted(range(len(facts)), key=lambda n: cuts[n]):
        pieces += [filler[done : cuts[n]], buried[n]]
        starts[n] = at = at + cuts[n] - done
        at, done = at + len(buried[n]), cuts[n]
    ids = np.concatenate([*pieces, filler[done:]])
    assert all((ids[a : a + len(fact)] == fact).all() for a, fact in zip(starts, buried, strict=True))
    return ids, starts


def contains(ids: NDArray, part: NDArray) -> bool:
    """Whether `part` stands somewhere in `ids`, in one piece."""
    if len(part) > len(ids):
        return False
    return bool((np.lib.stride_tricks.sliding_window_view(ids, len(part)) == part).all(1).any())


def check_depth(depth: float | None) -> None:
    if depth is not None and not (isinstance(depth, int | float) and 0 <= depth <= 1):
        raise EvalError(f"depth {depth!r} is no share of the haystack: from 0, the beginning, to 1, the end")


def check_count(least: int = 1, **counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise EvalError(f"{name} {count!r} is no number of things: {least} or more")
