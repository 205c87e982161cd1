"""Samples with known answers: built as tokens, answered by teacher forcing: one forward tells what decoding would."""

# L tokens

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eval.score import judge
from eval.scorer import Budget, Job, Scorer


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


class Answering(Scorer):
    """A scorer that also tells which tokens are right. What does not fit is asked with less, as losses are made."""

    def run(self, ids: Tensor, first: int, piece: int | None) -> tuple[Tensor, ...]:
        return judge(self.model, ids[:, :-1], ids[:, 1:], first, logits=self.budget.logits, piece=piece)

    def answers(self, samples: Sequence[Sample]) -> list[list[Answered]]:
        """Those of each sample, in order. Samples of one length share a batch; nothing is padded."""
        jobs = [Job(torch.from_numpy(sample.ids), min(first for first, _ in sample.answers) - 1) for sample in samples]
        found: list[list[Answered]] = [[] for _ in samples]
        for n, (nats, right) in self.made(jobs):
            nats, right, begin = nats.double().numpy(), right.numpy(), jobs[n].first + 1
            found[n] = [one(samples[n], k, right, nats, begin) for k in range(len(samples[n].answers))]
        return found


def answered(model: nn.Module, samples: Sequence[Sample], *, batch_tokens: int = 16384) -> Iterator[Answered]:
    """Every answer of every sample, in order."""
    for some in Answering(model, Budget(batch_tokens)).answers(samples):
        yield from some


def one(sample: Sample, answer: int, right: NDArray, nats: NDArray, first: int) -> Answered:
    start, stop = sample.answers[answer]
    part = slice(start - first, stop - first)
    return Answered(sample, answer, bool(right[part].all()), float(nats[part].sum()), tuple(map(bool, right[part])))
