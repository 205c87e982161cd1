"""Evaluation of a run: the model as trained, then with each other scheme swapped in, at each length -> rows."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import Tensor

from eval.perplexity import Point, measure, scored
from eval.store import Store
from lab import LabError
from lab.checkpoint import digest
from lab.data import Corpus, corpus, long_documents
from lab.model import LabConfig, LabModel, swap
from lab.progress import Progress, progress
from lab.rows import Row, Rows
from lab.settings import Run, tokens
from positional.build import moved, names_of, sources, with_options

Documents = list[tuple[str, Tensor]]


def evaluate(run: Run, accelerator: Accelerator, trained_as: str | None = None) -> Iterator[Row]:
    """Rows of a trained run, as they come; each is in the run's rows.jsonl before it is yielded.

    The run's own scheme comes first, then those of `run.eval.swap`, all on the same scored tokens.
    trained_as: what to call the run's own scheme, where its kind would not tell it from another's.
    Raises LabError where the run is not trained, or too few held-out documents are long enough.
    """
    model = trained_model(run).to(accelerator.device)
    own, trained = model.config.positional, model.scheme
    with accelerator.main_process_first():
        text = corpus(run.data)
    lengths = [tokens(length, run.train.length) for length in run.eval.lengths]
    documents = held_out_documents(text, max(lengths), run.eval.documents)
    if text.meta["vocab_size"] != model.config.vocab_size:
        raise LabError(
            f"the data has a vocabulary of {text.meta['vocab_size']} and {run.path} one of {model.config.vocab_size}: "
            f"measure it with the tokenizer that it was trained with",
            code=2,
        )
    weights, rows = digest(run.path / "model" / "model.safetensors"), Rows(run.path / "rows.jsonl")
    specs = [own, *run.eval.swap]
    names = names_of(specs)
    names[0] = trained_as or names[0]
    total = len(specs) * len(lengths) * max(lengths) * len(documents)
    with progress(f"{run.name}: measure", total, show=accelerator.is_main_process) as bar:
        for spec, name in zip(specs, names, strict=True):
            model.model.scheme = trained  # a swap keeps what the trained scheme learned, not what another swap left
            blank = Row(run.name, name, names[0], run.seed, "perplexity", "nats", 0, None, 0)
            for row in rows_of(blank, run, spec, model, weights, documents, lengths, accelerator, bar):
                if accelerator.is_main_process:
                    rows.put(row)
                yield row


def trained_model(run: Run) -> LabModel:
    """The model of a run, with its encoding's source as it was trained and not what became of it. Raises LabError."""
    folder = run.path / "model"
    if not (folder / "model.safetensors").exists():
        raise LabError(f"{run.path} holds no trained model: run `lab train` with its configuration first")
    config = LabConfig.from_pretrained(folder)
    config.positional = moved(config.positional, run.path)
    return LabModel.from_pretrained(folder, config=config, trust_remote_code=True).eval()


def rows_of(
    blank: Row, run, spec, model, weights: str, documents, lengths, accelerator, bar: Progress
) -> Iterator[Row]:
    """The rows of one scheme: `blank`, filled in."""
    if blank.scheme != blank.trained_as and (untrained := swap(model, spec)):
        note = f"needs training: {', '.join(untrained)}"
        yield from (replace(blank, length=length, note=note) for length in lengths)
        return
    code = [digest(path) for path in sources(spec)]
    said = json.dumps([weights, with_options(spec), code, precision(accelerator)])
    identity = hashlib.sha256(said.encode()).hexdigest()
    points = measure(
        model,
        documents,
        lengths,
        store=Store(run.path / "losses", accelerator.process_index),
        identity=identity,
        limit=model.scheme.limit,
        batch_tokens=run.eval.batch_tokens,
        mine=slice(accelerator.process_index, None, accelerator.num_processes),
        meet=accelerator.wait_for_everyone,
        advance=lambda count: bar.advance(count, blank.scheme),
    )
    for point in in_precision(points, accelerator):
        yield replace(
            blank, probe=point.probe, length=point.length, value=point.value, count=point.count, note=point.note
        )


def in_precision(points: Iterator[Point], accelerator: Accelerator) -> Iterator[Point]:
    """Each point made as training ran: under bf16 autocast or in fp32; what happens between two is left alone."""
    while True:
        with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=precision(accelerator) == "bf16"):
            point = next(points, None)
        if point is None:
            return
        yield point


def held_out_documents(text: Corpus, longest: int, count: int) -> Documents:
    """The first `count` held-out documents that have longest + 1 tokens, cut to those."""
    found = long_documents(text.held_out, length=longest + 1, count=count)
    return [(name, torch.from_numpy(ids)) for name, ids in found]


def held_out(
    model: LabModel, text: Corpus, train_length: int, accelerator: Accelerator, count: int = 8
) -> dict[str, float]:
    """The mean loss at 1, 2 and 4 training lengths, as far as the scheme reads, on the same held-out tokens."""
    lengths = [train_length, 2 * train_length, 4 * train_length]
    longest = max(lengths)
    mine = held_out_documents(text, longest, count)[accelerator.process_index :: accelerator.num_processes]
    losses = {}
    for length in lengths:
        if model.scheme.limit is None or length <= model.scheme.limit:
            sums = scored(model, [ids for _, ids in mine], length, longest, 8 * longest, whole=False)
            both = (
                torch.tensor([[one["total"], one["count"]] for one in sums], dtype=torch.float64).reshape(-1, 2).sum(0)
            )
            total, tokens_ = accelerator.reduce(both.to(accelerator.device)).tolist()
            losses[f"held_out_{length}"] = total / tokens_
    return losses


def precision(accelerator: Accelerator) -> str:
    return "bf16" if accelerator.mixed_precision == "bf16" else "fp32"
