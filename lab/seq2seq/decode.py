"""Decoding: what an encoder–decoder writes for many sources, greedy or by beams, in batches of about one length."""

# S tokens of the longest source of a batch

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from lab.seq2seq.base import Translator
from lab.seq2seq.pairs import padded
from lab.seq2seq.settings import Translation

ROOM = 50
"""Tokens that a translation may be longer than its source, as in the paper's section 6.1."""


@torch.no_grad()
def written(
    model: Translator,
    sources: Sequence[np.ndarray],
    run: Translation,
    room: Callable[[int], int],
    beams: int | None = None,
) -> list[list[int]]:
    """What the model writes for each source, without the start token.

    room: tokens of the longest source of a batch -> the most that are written.   beams: default: run.eval.beams.
    """
    beams = run.eval.beams if beams is None else beams
    found: list[list[int]] = [[] for _ in sources]
    for some in of_length(sources, max(1, run.eval.batch_tokens // beams)):
        call = padded([(sources[n], np.zeros(0, np.int64)) for n in some], model.config.pad_token_id)
        ids, mask = (torch.from_numpy(call[name]).to(model.device) for name in ("input_ids", "attention_mask"))
        out = model.generate(ids, attention_mask=mask, do_sample=False, **decoding(run, beams, room(ids.shape[1])))
        for n, line in zip(some, out[:, 1:].tolist(), strict=True):
            found[n] = line
    return found


def decoding(run: Translation, beams: int, tokens: int) -> dict:
    """Greedy, or by beams under the length penalty: the sum of logs is divided by its length to that power."""
    searched = {"num_beams": beams, "length_penalty": run.eval.length_penalty} if beams > 1 else {}
    return {"max_new_tokens": tokens, **searched}


def of_length(sources: Sequence[np.ndarray], tokens: int) -> Iterator[list[int]]:
    """The numbers of sources of about one length, at most so many tokens at once."""
    some: list[int] = []
    for n in sorted(range(len(sources)), key=lambda n: len(sources[n])):
        if some and len(sources[n]) * (len(some) + 1) > tokens:
            yield some
            some = []
        some.append(n)
    if some:
        yield some


def limit_of(model: Translator) -> float:
    return model.limits[0] or float("inf")


def room_of(model: Translator, source: int) -> int:
    """Tokens that may be written for a source of so many."""
    limit = model.limits[1]
    return source + ROOM if limit is None else min(source + ROOM, limit)
