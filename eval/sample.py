"""Samples with known answers: built as tokens, answered by teacher forcing: one forward tells what decoding would."""

# N samples · L tokens · V vocabulary

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from eval.score import logits_by_chunk, vocabulary


@dataclass(frozen=True)
class Sample:
    """Tokens of which some are answers. Greedy decoding would give an answer exactly if each of its tokens, with the
    right ones before it, is the likeliest: teacher forcing tells so without a decoding loop."""

    ids: NDArray[np.int64]  # (L,)
    answers: tuple[tuple[int, int], ...]  # (first, past the last) token of each answer
    about: dict = field(default_factory=dict)  # what the sample varies: depth, distance, task …; keys of the results
    group: int = 0  # samples that share a haystack share this number: they are resampled together
    each: tuple[dict, ...] = ()  # what an answer has of its own, one for each answer: its distance …


@dataclass(frozen=True)
class Answered:
    """One answer: whether every token of it is the likeliest, its nats, and which tokens are right."""

    sample: Sample
    answer: int  # which of the sample's answers
    exact: bool
    nats: float  # of the whole answer
    right: tuple[bool, ...]  # token by token

    @property
    def about(self) -> dict:
        """What the sample and this answer of it vary."""
        return self.sample.about | (self.sample.each[self.answer] if self.sample.each else {})


@torch.no_grad()
def answered(model: nn.Module, samples: Sequence[Sample], *, batch_tokens: int = 16384) -> Iterator[Answered]:
    """Every answer of every sample, in order. Samples of one length share a batch; nothing is padded."""
    order = sorted(
        range(len(samples)), key=lambda n: -len(samples[n].ids)
    )  # the longest first: what does not fit shows
    found: dict[int, list[Answered]] = {}
    at = 0
    while at < len(order):
        length = len(samples[order[at]].ids)
        count = max(1, batch_tokens // length)
        part = [n for n in order[at : at + count] if len(samples[n].ids) == length]
        found |= dict(zip(part, forced(model, [samples[n] for n in part]), strict=True))
        at += len(part)
    for n in range(len(samples)):
        yield from found[n]


def forced(model: nn.Module, samples: Sequence[Sample]) -> list[list[Answered]]:
    """The answers of samples of one length, from one forward."""
    device = next(model.parameters()).device
    ids = torch.from_numpy(np.stack([sample.ids for sample in samples])).to(device)
    first = min(start for sample in samples for start, _ in sample.answers) - 1
    rows = max(1, 2**24 // (len(samples) * vocabulary(model)))
    right, nats = [], []
    for start, logits in logits_by_chunk(model, ids[:, :-1], first, rows):
        wanted = ids[:, start + 1 : start + 1 + logits.shape[1]]
        right.append(logits.argmax(-1) == wanted)
        nats.append(F.cross_entropy(logits.float().transpose(1, 2), wanted, reduction="none"))
    right, nats = torch.cat(right, 1).cpu().numpy(), torch.cat(nats, 1).cpu().double().numpy()
    return [
        [one(sample, n, right[at], nats[at], first + 1) for n in range(len(sample.answers))]
        for at, sample in enumerate(samples)
    ]


def one(sample: Sample, answer: int, right: NDArray, nats: NDArray, first: int) -> Answered:
    start, stop = sample.answers[answer]
    part = slice(start - first, stop - first)
    return Answered(sample, answer, bool(right[part].all()), float(nats[part].sum()), tuple(map(bool, right[part])))
