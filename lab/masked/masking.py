"""Masked language modelling: some tokens of each sequence are hidden, and told from those around them."""

# B sequences · T tokens

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from eval.tasks import seed_of
from lab.data import Corpus
from lab.masked.model import LabMaskedModel, MaskedConfig
from lab.masked.settings import Mask, MaskedRun
from lab.mix import Call
from lab.outcome import Outcome
from lab.subject import Batch, Subject, sizes_of
from lab.tokenizer import tokenizer_of


@dataclass(frozen=True)
class Words:
    """The tokens of a masked language model: those of its texts, and one that stands for what is hidden."""

    count: int  # all of them
    mask: int
    end: int  # what ends a document

    @classmethod
    def of(cls, run: MaskedRun, text: Corpus) -> "Words":
        """The tokenizer's own mask where it has one, else one word more than the texts have."""
        mask, count = tokenizer_of(run.data.tokenizer).mask, text.meta["vocab_size"]
        return cls(count + (mask is None), count if mask is None else mask, text.meta["eos"])


class Masking(Subject):
    """A new masked language model."""

    def model(self, run: MaskedRun, text: Corpus, accelerator: Accelerator) -> nn.Module:
        words = Words.of(run, text)
        torch.manual_seed(run.seed)
        return LabMaskedModel(
            MaskedConfig(**sizes_of(run), vocab_size=words.count, eos_token_id=words.end, mask_token_id=words.mask)
        )

    def batches(self, run: MaskedRun, text: Corpus, share: int) -> Callable[[int], Batch]:
        drawn, words = super().batches(run, text, share), Words.of(run, text)

        def at(step: int) -> Batch:
            call, names = drawn(step)
            return masked(call, words, run.mask, seed=run.seed, step=step), names

        return at

    def held_out(self, run: MaskedRun, accelerator: Accelerator, model: nn.Module, text: Corpus) -> dict[str, float]:
        """The mean loss of hidden tokens at 1, 2 and 4 training lengths, on the same tokens of held-out documents."""
        from lab.masked.evaluate import held_out

        return held_out(run, accelerator.unwrap_model(model), text, accelerator)

    def outcomes(
        self, run: MaskedRun, accelerator: Accelerator, trained_as: str | None = None, **how: Any
    ) -> Iterator[Outcome]:
        from lab.masked.evaluate import outcomes

        return outcomes(run, accelerator, trained_as, **how)


def masked(call: Call, words: Words, mask: Mask, *, seed: int, step: int) -> Call:
    """A batch's call, (B, T) each, with `mask.share` of every row's tokens to be told, one at least (1810.04805, 3.1).

    Of these `mask.hidden` become the mask, `mask.random` any other token, and the rest stay; the targets are what stood
    there. End tokens are neither hidden nor drawn. A function of its arguments, of the whole batch: however many
    processes share it, and wherever training was interrupted, the same tokens are hidden.
    """
    ids = call["input_ids"]
    draw = np.random.default_rng(seed_of("mask", seed, step))
    free = ids != words.end
    rank = np.where(free, draw.random(ids.shape), 1.0).argsort(1).argsort(1)
    told = free & (rank < np.maximum(1, np.rint(mask.share * free.sum(1, keepdims=True))))
    fate = draw.random(ids.shape)
    others = np.setdiff1d(np.arange(words.count), [words.mask, words.end])
    shown = np.where(told & (fate < mask.hidden), words.mask, ids)
    replaced = told & (fate >= mask.hidden) & (fate < mask.hidden + mask.random)
    shown = np.where(replaced, draw.choice(others, ids.shape), shown)
    return call | {"input_ids": shown, "shift_labels": np.where(told, ids, -100)}
