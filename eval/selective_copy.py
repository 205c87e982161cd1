"""Selective copy: a few tokens among blanks, to be said again at the end, in order (Gu & Dao 2023, 2312.00752)."""

import numpy as np

from eval import EvalError
from eval.layout import check_count
from eval.sample import Sample
from eval.voice import Voice


def selective_copy(random: np.random.Generator, length: int, voice: Voice, *, tokens: int = 16) -> Sample:
    """`tokens` tokens at random places among blanks, a mark, then the tokens, each of which is an answer."""
    check_count(tokens=tokens)
    begun = len(voice.start)
    room = length - begun - tokens - 1
    if room < tokens:
        raise EvalError(
            f"{length} tokens are too few: {tokens} to copy + a mark + {tokens} answers"
            f"{f' + a start of {begun}' if begun else ''} = {2 * tokens + 1 + begun}. Ask for at least as many"
        )
    places = begun + np.sort(random.choice(room, tokens, replace=False))
    ids = np.full(length, voice.blank)
    ids[:begun] = voice.start
    ids[places] = ids[length - tokens :] = random.choice(voice.alphabet, tokens)
    ids[length - tokens - 1] = voice.mark
    answers = range(length - tokens, length)
    each = tuple({"order": n, "distance": at - int(places[n])} for n, at in enumerate(answers))
    return Sample(ids, tuple((at, at + 1) for at in answers), each=each)
