"""MQAR: many keys, each with a value, then each asked for once, at all distances (Arora et al. 2023, 2312.04927)."""

import numpy as np

from eval import EvalError
from eval.layout import check_count
from eval.sample import Sample
from eval.voice import Voice


def mqar(random: np.random.Generator, length: int, voice: Voice, *, pairs: int = 8, power: float = 0.01) -> Sample:
    """Keys are from one half of the alphabet, values from the other. First all pairs, then, among blanks, each key once
    more, in an order of its own, with its value for an answer.

    pairs: 8, up to half the alphabet.   power: how the gap g from the pairs to a question is drawn, as g^(power-1); the
    paper's 0.01 has most questions soon, 1 has them anywhere alike.
    """
    check_count(pairs=pairs)
    half, begun = len(voice.alphabet) // 2, len(voice.start)
    slots = (length - begun) // 2 - pairs  # where a question may stand
    if pairs > half:
        raise EvalError(f"{pairs} pairs need as many keys, and half the alphabet has {half}")
    if not isinstance(power, int | float) or not 0 < power <= 1:
        raise EvalError(f"power {power!r} must be above 0 (questions soon; the paper has 0.01), up to 1 (anywhere)")
    if slots < pairs:
        raise EvalError(
            f"{length} tokens are too few: pairs of {2 * pairs} + questions and answers of {2 * pairs}"
            f"{f' + a start of {begun}' if begun else ''} = {4 * pairs + begun}. Ask for at least as many"
        )
    keys = voice.alphabet[random.choice(half, pairs, replace=False)]
    values = voice.alphabet[half + random.integers(len(voice.alphabet) - half, size=pairs)]
    gaps = soonest(random, np.arange(1, slots + 1.0) ** (power - 1), pairs)
    told, asked = begun + 2 * np.arange(pairs), begun + 2 * (pairs + gaps)  # (pairs,) places of keys
    ids = np.full(length, voice.blank)
    ids[:begun] = voice.start
    ids[told] = ids[asked] = keys
    ids[told + 1] = ids[asked + 1] = values
    order = np.argsort(asked)
    answers = tuple((int(place) + 1, int(place) + 2) for place in asked[order])
    return Sample(ids, answers, each=tuple({"distance": int(d)} for d in (asked - told)[order]))


def soonest(random: np.random.Generator, weights: np.ndarray, count: int) -> np.ndarray:
    """`count` different places, drawn one after the other in proportion to their weights."""
    return np.argsort(random.standard_exponential(len(weights)) / weights)[:count]
