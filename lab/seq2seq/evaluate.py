"""What a trained encoder–decoder writes, and how right it is: exact match of tasks, BLEU and chrF of translations."""

# B sources of a batch · S tokens of the longest

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from lab import LabError
from lab.algorithmic import row_of, sizes_of
from lab.config import with_own_code
from lab.outcome import Outcome, blank_row
from lab.rows import Row
from lab.seq2seq.base import Translator
from lab.seq2seq.config import Seq2SeqConfig
from lab.seq2seq.decode import limit_of, of_length, room_of, written
from lab.seq2seq.model import Seq2Seq, swap
from lab.seq2seq.pairs import PairCorpus, Rows, padded
from lab.seq2seq.rnn import RNNSeq2Seq
from lab.seq2seq.settings import Translation, sides_of
from lab.seq2seq.tasks import ids_of, tested, text_of
from lab.tasks import Answers


def exact(model: Translator, run: Translation, size: int, problems: int, beams: int | None = None) -> tuple[float, int]:
    """The share of test problems of a size whose answer is right to its end, and how many were asked."""
    asked = list(tested(run.data.task[0], size, problems))
    longest = max(len(answer) for _, answer in asked) + 1
    said = written(model, [ids_of(problem) for problem, _ in asked], run, lambda _: longest, beams)
    ends = model.config.eos_token_id
    right = [ends in ids and text_of(ids) == answer for ids, (_, answer) in zip(said, asked, strict=True)]
    return fmean(right), len(asked)


def answered(model: Translator, run: Translation, problems: int) -> dict[str, float]:
    """Greedy, at the largest size trained on and at twice that, as far as the encodings reach."""
    found, largest = {}, run.data.sizes[1]
    for size in (largest, 2 * largest):
        if not too_long(model, run, size):
            found[f"exact_{run.data.task[0]}_{size}"] = exact(model, run, size, problems, beams=1)[0]
    return found


@torch.no_grad()
def surprise(model: Translator, run: Translation, size: int, problems: int) -> tuple[float, int]:
    """Nats a token of the right answers and their ends to the same test problems, and how many tokens these are."""
    asked = [(ids_of(problem), ids_of(answer)) for problem, answer in tested(run.data.task[0], size, problems)]
    return nats(model, run, asked, model.config.pad_token_id)


def nats(model: Translator, run: Translation, pairs: Rows, pad: int) -> tuple[float, int]:
    """Nats a target token of pairs of ids, unsmoothed, and how many tokens these are."""
    total, count = 0.0, 0
    for some in of_length([source for source, _ in pairs], run.eval.batch_tokens):
        call = padded([pairs[n] for n in some], pad)
        tensors: dict[str, Tensor] = {name: torch.from_numpy(x).to(model.device) for name, x in call.items()}
        total += float(model(**tensors, num_items_in_batch=1).loss)
        count += int((call["labels"] >= 0).sum())
    return total / max(1, count), count


def too_long(model: Translator, run: Translation, size: int) -> str:
    """Why a size cannot be asked; empty where it can."""
    from eval import EvalError

    try:
        asked = list(tested(run.data.task[0], size, 32))
    except EvalError as error:
        return str(error)
    if not asked:
        return "too few problems to hold any out"
    longest = [max(map(len, column)) + 1 for column in zip(*asked, strict=True)]
    for limit, tokens in zip(model.limits, longest, strict=True):
        if limit is not None and tokens > limit:
            return f"takes at most {limit} tokens"
    return ""


@torch.no_grad()
def loss_of(model: Translator, run: Translation, text: PairCorpus, pairs: int) -> float:
    """Nats a target token of the first held-out pairs that are no longer than training ones."""
    s, t = text.held_out.sources.lengths, text.held_out.targets.lengths
    kept = np.flatnonzero(np.maximum(s, t) <= run.train.length)[:pairs]
    return nats(model, run, text.held_out.rows(kept), text.meta["pad"])[0]


@dataclass(frozen=True)
class Told(Outcome):
    """Of translations, whose rows are all there is."""

    def rows(self, run: Translation) -> Iterator[Row]:
        return iter(self.answers.rows)


def outcomes(
    run: Translation, accelerator: Accelerator, trained_as: str | None = None, say=None, dry: bool = False
) -> Iterator[Outcome]:
    """What comes of the run's own model, then of the encodings of `run.eval.swap`, asked the same. See lab.evaluate."""
    model = trained_model(run).to(accelerator.device)
    own = {side: getattr(model, side).scheme for side in run.sides}
    specs = [run.sides, *map(sides_of, run.eval.swap)]
    names = run.names(specs) if own else [run.encoding]
    names[0] = trained_as or names[0]
    kind = Outcome if run.data.source == "algorithmic" else Told
    for spec, name in zip(specs, names, strict=True):
        for side, scheme in own.items():
            getattr(model, side).scheme = scheme  # a swap keeps what the trained scheme learned
        untrained = swap(model, spec) if spec is not specs[0] else []
        note = f"needs training: {', '.join(untrained)}" if untrained else ""
        if say is not None:
            say(f"{name}: {note or described(run)}")
        if not dry:
            blank = blank_row(run, name, names[0], note)
            rows = of_tasks(model, run, blank) if kind is Outcome else of_text(model, run, blank)
            yield kind(name, names[0], run.seed, None, note, Answers(tuple(rows)))


def described(run: Translation) -> str:
    how = f"{run.eval.beams} beams" if run.eval.beams > 1 else "greedy"
    if run.data.source == "algorithmic":
        return f"up to {run.eval.problems} test problems of each of {len(sizes_of(run))} sizes, {how}"
    return f"the held-out pairs, {how}"


def of_tasks(model: Translator, run: Translation, blank: Row) -> Iterator[Row]:
    """By size, of the same problems: the share of exact answers, and what the right ones cost a token."""
    for size in sizes_of(run):
        note = blank.note or too_long(model, run, size)
        for metric, measure in {"exact": exact, "answer nats": surprise}.items():
            row = replace(row_of(blank, run, run.data.task[0], size, note), metric=metric)
            if not note:
                value, count = measure(model, run, size, run.eval.problems)
                row = replace(row, value=value, count=count)
            yield row


def of_text(model: Translator, run: Translation, blank: Row) -> Iterator[Row]:
    """BLEU and chrF of all held-out pairs, and the loss of those no longer than training ones."""
    if blank.note:
        yield replace(blank, probe="translation", metric="bleu", length=run.train.length)
        return
    metrics()  # before the work, which would be in vain without them
    text = run.subject.text(run)
    if len(text.tokenizer) != model.config.vocab_size:
        raise LabError(
            f"the data has a vocabulary of {len(text.tokenizer)} and {run.path} one of {model.config.vocab_size}: "
            f"measure it with the tokenizer that it was trained with, data.tokenizer={run.path / 'model'}",
            code=2,
        )
    loss = loss_of(model, run, text, len(text.texts))
    tokens = int(text.held_out.targets.lengths.sum())
    yield replace(blank, probe="translation", metric="nats", length=run.train.length, value=loss, count=tokens)
    fitting = [n for n in range(len(text.texts)) if len(text.held_out.sources[n]) <= limit_of(model)]
    said = written(model, [text.held_out.sources[n] for n in fitting], run, lambda s: room_of(model, s))
    lines = text.tokenizer.batch_decode(said, skip_special_tokens=True)
    for metric, value in scored(lines, [text.texts[n][1] for n in fitting]).items():
        yield replace(
            blank, probe="translation", metric=metric, length=run.train.length, value=value, count=len(fitting)
        )


def scored(said: list[str], wanted: list[str]) -> dict[str, float]:
    """Corpus BLEU and chrF, from 0 to 100."""
    return {name: float(kind().corpus_score(said, [wanted]).score) for name, kind in metrics().items()}


def metrics() -> dict[str, type]:
    """Those of sacrebleu (Post 2018, arXiv:1804.08771). Raises LabError where it is missing."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise LabError("BLEU and chrF need sacrebleu: pip install 'context-extension-lab[translation]'") from None
    return {"bleu": BLEU, "chrf": CHRF}


def trained_model(run: Translation) -> Translator:
    """The model of a run, with its encodings' source as it was trained and not what became of it. Raises LabError."""
    folder = run.path / "model"
    if not (folder / "model.safetensors").exists():
        raise LabError(f"{run.path} holds no trained model: run `lab train` with its configuration first")
    if run.model.recurrent is not None:
        return RNNSeq2Seq.from_pretrained(folder).eval()
    config = Seq2SeqConfig.from_pretrained(folder)
    for side in ("encoder", "decoder"):
        key = f"{side}_positional"
        setattr(config, key, with_own_code({"positional": getattr(config, key)}, run.path)["positional"])
    return Seq2Seq.from_pretrained(folder, config=config, trust_remote_code=True).eval()
