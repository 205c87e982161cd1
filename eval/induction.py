"""Induction: a random segment comes twice; how much less the second time costs is what position lets a model find."""

import numpy as np

from eval import EvalError
from eval.layout import check_count
from eval.sample import Sample
from eval.voice import Voice


def induction(
    random: np.random.Generator, length: int, voice: Voice, *, size: int = 16, distance: int | None = None
) -> Sample:
    """Random tokens that end in a segment which was there before, `distance` tokens back (Olsson et al. 2022,
    2209.11895). Needs no training.

    size: 16 tokens a segment.   distance: from one occurrence to the other, at least `size`; None: all that fits.
    The answers are both occurrences, each without its first token, which nothing foretells: compare their nats.
    """
    check_count(2, size=size)
    if distance is not None:
        check_count(distance=distance)
    begun = len(voice.start)
    distance = length - begun - size if distance is None else distance
    if distance < size:
        raise EvalError(f"a segment of {size} tokens comes again at a distance of {size} or more, not of {distance}")
    if begun + distance + size > length:
        raise EvalError(
            f"{length} tokens are too few: distance {distance} + segment {size}"
            f"{f' + a start of {begun}' if begun else ''} = {begun + distance + size}. Ask for at least as many"
        )
    ids = random.choice(voice.alphabet, length)
    ids[:begun] = voice.start
    ids[length - size :] = ids[length - size - distance : length - distance]
    ends = (length - distance, length)
    return Sample(
        ids,
        tuple((end - size + 1, end) for end in ends),
        {"distance": distance},
        each=({"occurrence": "first"}, {"occurrence": "second"}),
    )
