"""What is measured of a masked language model: pseudo-perplexity at longer and longer contexts."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator

from eval.plan import Document, Plan
from eval.pseudo import pseudo
from lab.data import Corpus, corpus, long_documents
from lab.evaluate import by_scheme, means, refuse_other_words, trained_model
from lab.masked.masking import Words
from lab.masked.model import LabMaskedModel
from lab.masked.settings import MaskedRun
from lab.outcome import Outcome, lengths_of
from lab.tasks import Tasks

TARGETS = 256
"""Tokens of each held-out document that training's held-out losses are of."""


def outcomes(
    run: MaskedRun,
    accelerator: Accelerator,
    trained_as: str | None = None,
    say: Callable[[str], None] | None = None,
    dry: bool = False,
) -> Iterator[Outcome]:
    """As of `lab.evaluate.outcomes`: the run's own scheme, then those of `run.eval.swap`, on the same tokens."""
    model = trained_model(run, LabMaskedModel)
    with accelerator.main_process_first():
        text = corpus(run.data)
    words, asked = Words.of(run, text), run.eval
    refuse_other_words(run, model, words.count)
    plan = plan_of(text, lengths_of(run), asked.documents, asked.together, asked.targets, words.mask)
    yield from by_scheme(run, accelerator, model, plan, Tasks(run, text, accelerator), trained_as, say, dry)


def plan_of(text: Corpus, lengths: list[int], count: int, together: Sequence[int], targets: int, mask: int) -> Plan:
    """A plan for the first `count` held-out documents that are long enough; see `eval.pseudo.pseudo`."""
    found = long_documents(text.held_out, length=max(lengths), count=count)
    documents = [Document(name, torch.from_numpy(ids), sizes) for name, ids, sizes in found]
    return Plan(documents, lengths, [pseudo(one) for one in together], stride=targets, mask=mask)


def held_out(
    run: MaskedRun, model: LabMaskedModel, text: Corpus, accelerator: Accelerator, count: int = 8
) -> dict[str, float]:
    """The mean loss of hidden tokens at 1, 2 and 4 training lengths, as far as the scheme reads.

    All of the same targets are hidden, as far apart as the share of tokens that training hides would put them.
    """
    lengths = [run.train.length, 2 * run.train.length, 4 * run.train.length]
    targets = min(TARGETS, lengths[-1] // 2)
    together = math.ceil(targets * run.mask.share)
    plan = plan_of(text, lengths, count, [together], targets, Words.of(run, text).mask)
    return means(model, replace(plan, limit=model.scheme.limit), accelerator)
