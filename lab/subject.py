"""What the training loop trains: a new model of the lab, and all in which another kind of model differs from it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from lab import LabError, algorithmic, checkpoint
from lab.data import Corpus, corpus
from lab.data.batches import batch, packed
from lab.mix import Call, Mix
from lab.model import LabConfig, LabModel
from lab.settings import Run

Names = Callable[[slice], list[str]]
"""Rows of a batch -> the documents that they came from."""
Batch = tuple[Call, Names]


def model_for(run: Run, text: Corpus) -> LabModel:
    """A new model with this run's first weights: a function of the seed, and the same for every encoding."""
    torch.manual_seed(run.seed)
    return LabModel(LabConfig(**sizes_of(run), vocab_size=text.meta["vocab_size"], eos_token_id=text.meta["eos"]))


def sizes_of(run: Run) -> dict[str, Any]:
    """What a model's configuration takes from the settings."""
    m = run.model
    return {
        "width": m.width,
        "layers": m.layers,
        "heads": m.heads,
        "kv_heads": m.kv_heads,
        "hidden": m.hidden,
        "qk_norm": m.qk_norm,
        "tie_word_embeddings": m.tie,
        "attention": m.attention,
        "positional": m.positional,
        "mixer": m.mixer,
        "train_length": run.train.length,
    }


class Subject:
    """What is trained, and all in which one differs from another. This one is a new model of the lab."""

    around = False
    """Whether its held-out losses are taken before the first step and after the last."""
    targets = "shift_labels"
    """Which of the model's arguments holds the tokens to predict, negative for none."""

    def refuse(self, run: Run, processes: int) -> None:
        """Raise LabError for a batch that cannot be shared out."""
        share = processes * run.train.accumulate
        if run.train.batch % share:
            raise LabError(
                f"train.batch {run.train.batch} cannot be shared by {processes} processes × "
                f"{run.train.accumulate} accumulated parts: make it a multiple of {share}",
                code=2,
            )

    def text(self, run: Run) -> Corpus:
        """What it is trained on."""
        return corpus(run.data)

    def tokens(self, run: Run) -> int:
        """How many a step reads."""
        return run.train.batch * run.train.length

    def batches(self, run: Run, text: Corpus, share: int) -> Callable[[int], Batch]:
        """What makes the batch of a step, over all processes, from nothing but the step.

        share: processes × accumulated parts, of which each gets as many rows.
        """
        mix = Mix(run, text.train)
        draw = algorithmic.batch if run.data.source == "algorithmic" else batch

        def at(step: int) -> Batch:
            ids, offsets = draw(text.train, length=run.train.length, size=run.train.batch, seed=run.seed, step=step)
            call = {"input_ids": ids[:, :-1], "shift_labels": ids[:, 1:]}
            if run.data.source == "algorithmic":
                call["shift_labels"] = algorithmic.answers(ids)
            elif run.data.packing == "documents":
                call |= packed(text.train, ids, offsets)
            return mix.into(call, step), lambda rows: text.train.at(offsets[rows], run.train.length)

        return at

    def model(self, run: Run, text: Corpus, accelerator: Accelerator) -> nn.Module:
        """What the loop calls: model(**arrays of the batch, num_items_in_batch=count).loss."""
        return model_for(run, text)

    def held_out(self, run: Run, accelerator: Accelerator, model: nn.Module, text: Corpus) -> dict[str, float]:
        """The mean loss at 1, 2 and 4 training lengths on the same tokens of a few held-out documents.

        Where problems are trained on: the share of a few test problems that is answered, at 1 and 2 times the largest
        size.
        """
        from lab.evaluate import held_out

        inner = accelerator.unwrap_model(model)
        if run.data.source == "algorithmic":
            return algorithmic.progress(inner, run)
        return held_out(inner, text, run.train.length, accelerator)

    def outcomes(self, run: Run, accelerator: Accelerator, trained_as: str | None = None, **how: Any) -> Iterator[Any]:
        """What is measured of it once it is trained; see `lab.evaluate.outcomes`."""
        from lab.evaluate import outcomes

        return outcomes(run, accelerator, trained_as, **how)

    def save(self, run: Run, accelerator: Accelerator, model: nn.Module) -> None:
        """Make `run.path / "model"`, whole or not at all."""
        state, final = accelerator.get_state_dict(model), run.path / "model"
        with checkpoint.replacing(final, main=accelerator.is_main_process, meet=accelerator.wait_for_everyone) as side:
            inner = accelerator.unwrap_model(model)
            inner.save_pretrained(side, is_main_process=accelerator.is_main_process, state_dict=state)
