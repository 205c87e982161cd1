"""The batch of a step: stretches of the token ids, from nothing but the step, documents kept apart where asked to."""

import functools

import numpy as np

from lab import LabError
from lab.data.stored import Side


def batch(side: Side, *, length: int, size: int, seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The whole batch of a step, over all ranks: ids (size, length + 1) int64 and their offsets (size,) int64.

    A row's first `length` ids are the inputs, its last `length` the targets. A pure function of its arguments: an epoch
    cuts the ids into stretches at a phase of its own and visits each once, in an order of its own; batches run across
    epochs. Raises LabError if the side is shorter than one row.
    """
    if len(side.ids) <= length:
        raise LabError(
            f"data: {len(side.names)} training documents hold {len(side.ids)} tokens, but one sequence of train.length "
            f"{length} needs {length + 1}: add text, lower train.length, or lower data.held_out"
        )
    epochs, places = np.divmod(step * size + np.arange(size), stretches(len(side.ids), length))
    orders = {epoch: order(len(side.ids), length, seed, epoch) for epoch in np.unique(epochs).tolist()}
    offsets = np.array([orders[epoch][place] for epoch, place in zip(epochs.tolist(), places, strict=True)])
    return np.array(side.ids[offsets[:, None] + np.arange(length + 1)], np.int64), offsets


def packed(side: Side, ids: np.ndarray, offsets: np.ndarray) -> dict[str, np.ndarray]:
    """What keeps the documents of a batch apart: each of them (size, length) int64, under its name in the model's call.

    segments: the number of the document that each input belongs to, its end token included.
    position_ids: counted from 0 at the document's first token; where its beginning is cut off, at the row's first.
    shift_labels: the targets, -100 at an end token: what follows there is another document, of which nothing is known.
    """
    # From the starts, not from the end token among the ids: a tokenizer may read an end token in a text.
    places = offsets[:, None] + np.arange(ids.shape[1])
    document = np.searchsorted(side.starts, places, side="right") - 1  # (size, length + 1)
    begun = np.maximum(side.starts[document], offsets[:, None])
    return {
        "segments": document[:, :-1],
        "position_ids": (places - begun)[:, :-1],
        "shift_labels": np.where(document[:, 1:] == document[:, :-1], ids[:, 1:], -100),
    }


def stretches(tokens: int, length: int) -> int:
    """How many an epoch has: one fewer than fit, so that every phase has as many and leaves out only ends."""
    return max(1, (tokens - 1) // length - 1)


@functools.lru_cache(2)
def order(tokens: int, length: int, seed: int, epoch: int) -> np.ndarray:
    """The offsets of an epoch's stretches, in the order of its visits."""
    count, random = stretches(tokens, length), np.random.default_rng([seed, epoch])
    phase = random.integers(tokens - count * length)
    return phase + length * random.permutation(count)
