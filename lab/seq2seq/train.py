"""An encoder–decoder as the training loop sees it: its batches, its first weights, its held-out figures, its folder."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from lab import checkpoint
from lab.seq2seq.config import Seq2SeqConfig
from lab.seq2seq.model import Seq2Seq
from lab.seq2seq.pairs import PairCorpus, Rows, batches, order, padded, pair_corpus
from lab.seq2seq.rnn import RNNSeq2Seq, RNNSeq2SeqConfig
from lab.seq2seq.settings import Translation
from lab.seq2seq.tasks import Tasks, drawn, tasks_of
from lab.subject import Batch, Subject


class Translating(Subject):
    """A new encoder–decoder, the paper's or a recurrent one, of sequence tasks or of parallel text."""

    targets = "labels"

    def refuse(self, run: Translation, processes: int) -> None:
        """Batches are filled up to a multiple of what shares them."""

    def text(self, run: Translation) -> Tasks | PairCorpus:
        return tasks_of(run) if run.data.source == "algorithmic" else pair_corpus(run.data)

    def tokens(self, run: Translation) -> int:
        return run.train.batch

    def batches(self, run: Translation, text: Tasks | PairCorpus, share: int) -> Callable[[int], Batch]:
        numbered = problems_of if run.data.source == "algorithmic" else pairs_of
        rows_at = numbered(run, text)

        def at(step: int) -> Batch:
            names, rows = rows_at(step)
            return padded(rows, text.meta["pad"], share), lambda mine: names[mine]

        return at

    def model(self, run: Translation, text: Tasks | PairCorpus, accelerator: Accelerator) -> nn.Module:
        torch.manual_seed(run.seed)
        kind = Seq2Seq if run.model.recurrent is None else RNNSeq2Seq
        return kind(config_of(run, text.tokenizer))

    def held_out(self, run: Translation, accelerator: Accelerator, model: nn.Module, text: Any) -> dict[str, float]:
        """Of tasks: the share of 32 test problems that is answered, at 1 and 2 times the largest size trained on.

        Of text: the mean loss of the first held-out pairs, unsmoothed.
        """
        from lab.seq2seq.evaluate import answered, loss_of

        inner = accelerator.unwrap_model(model)
        if run.data.source == "algorithmic":
            return answered(inner, run, problems=32)
        return {"held_out": loss_of(inner, run, text, pairs=256)}

    def outcomes(self, run: Translation, accelerator: Accelerator, trained_as=None, **how: Any) -> Iterator[Any]:
        from lab.seq2seq.evaluate import outcomes

        return outcomes(run, accelerator, trained_as, **how)

    def save(self, run: Translation, accelerator: Accelerator, model: nn.Module) -> None:
        """The model and its tokenizer, as a folder that transformers loads."""
        state, final = accelerator.get_state_dict(model), run.path / "model"
        with checkpoint.replacing(final, main=accelerator.is_main_process, meet=accelerator.wait_for_everyone) as side:
            inner = accelerator.unwrap_model(model)
            inner.save_pretrained(side, is_main_process=accelerator.is_main_process, state_dict=state)
            if accelerator.is_main_process:
                self.text(run).tokenizer.save_pretrained(side)


def problems_of(run: Translation, text: Tasks) -> Callable[[int], tuple[list[str], Rows]]:
    """As many problems a step as fit at the training length."""
    count = max(1, run.train.batch // run.train.length)

    def at(step: int) -> tuple[list[str], Rows]:
        rows = drawn(text.train, rows=count, seed=run.seed, step=step)
        return [f"problem {step * count + n}" for n in range(count)], rows

    return at


def pairs_of(run: Translation, text: PairCorpus) -> Callable[[int], tuple[list[str], Rows]]:
    """Batches of pairs of about one length; each epoch visits all, in an order of its own."""
    cut = batches(text.train, longest=run.train.length, tokens=run.train.batch, seed=run.seed)

    def at(step: int) -> tuple[list[str], Rows]:
        epoch, place = divmod(step, len(cut))
        numbers = cut[order(len(cut), run.seed, epoch)[place]]
        return [f"pair {number}" for number in numbers.tolist()], text.train.rows(numbers)

    return at


def config_of(run: Translation, tokenizer) -> Seq2SeqConfig | RNNSeq2SeqConfig:
    """The configuration of a run's model; a target begins with the tokenizer's start token, or else its padding."""
    m, start = run.model, tokenizer.bos_token_id
    common = {
        "vocab_size": len(tokenizer),
        "width": m.width,
        "dropout": m.dropout,
        "label_smoothing": m.label_smoothing,
        "tie_word_embeddings": m.tie,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": start,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id if start is None else start,
    }
    if m.recurrent is not None:
        return RNNSeq2SeqConfig(**common, cell=m.recurrent.cell, attention=m.recurrent.attention)
    return Seq2SeqConfig(
        **common,
        hidden=m.hidden,
        heads=m.heads,
        key_size=m.key_size,
        value_size=m.value_size,
        encoder_layers=m.encoder.layers,
        decoder_layers=m.decoder.layers,
        encoder_positional=m.encoder.positional,
        decoder_positional=m.decoder.positional,
        norm=m.norm,
        attention=m.attention,
        train_length=run.train.length,
    )
