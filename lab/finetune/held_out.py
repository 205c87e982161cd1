"""Held-out losses of a pretrained model on its way, made by the calls that train it, wherever its weights are."""

from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import nn

from eval.jsonl import lines
from eval.plan import Document, Plan, Record
from lab.data import Corpus
from lab.evaluate import of_documents
from lab.extend.run import RAW
from lab.finetune.settings import Finetuning
from lab.finetune.settled import length_of
from lab.rows import Row


def plan_of(run: Finetuning, text: Corpus, limit: int | None) -> Plan:
    """The same tokens at each of eval.lengths.   limit: the longest input that the model takes."""
    return replace(of_documents(text, lengths_of(run), run.eval.documents), limit=limit)


def lengths_of(run: Finetuning) -> list[int]:
    return sorted({length_of("eval.lengths", one, run.train.length) for one in run.eval.lengths})


@torch.no_grad()
def held_out(model: nn.Module, plan: Plan, accelerator: Accelerator) -> dict[str, float]:
    """The mean loss at each length, by what metrics call it.   model: as accelerate prepared it, around a Learner."""
    # Each process makes as many passes: of a model that is shared out, all make each together.
    rank, world, count = accelerator.process_index, accelerator.num_processes, len(plan.documents)
    mine = [(plan.documents[n % count], n < count) for n in range(rank, count + -count % world, world)]
    losses = {}
    for record in plan.records():
        sums = torch.zeros(2, dtype=torch.float64)
        for document, counts in mine:
            sums += counts * torch.tensor(loss_sum(model, plan, document, record), dtype=torch.float64)
        nats, targets = accelerator.reduce(sums.to(accelerator.device)).tolist()
        losses[f"held_out_{record[1]}"] = nats / targets
    return losses


def loss_sum(model: nn.Module, plan: Plan, document: Document, record: Record) -> tuple[float, int]:
    """Sum and number of one document's losses at one length."""
    total, count, device = 0.0, 0, next(model.parameters()).device
    for run in plan.runs(document, [record]):
        ids = document.ids[run.start : run.start + run.length + 1].to(device)
        targets = torch.full_like(ids[1:], -100)
        for piece in run.pieces:
            targets[piece.first : piece.stop] = ids[1 + piece.first : 1 + piece.stop]
        total += float(model(input_ids=ids[None, :-1], shift_labels=targets[None], num_items_in_batch=1).loss)
        count += int((targets >= 0).sum())
    return total, count


def rows_of(run: Finetuning, limit: int | None) -> list[Row]:
    """The losses before the first step, of the model as it was loaded, and after the last. Only sums are kept of them,
    so they have no intervals."""
    rows, states = [], {0: (RAW, None), run.train.steps: (run.encoding, run.seed)}
    scored = run.eval.documents * lengths_of(run)[-1] // 2  # tokens M/2+1 … M of each document, at every length
    for line in lines(run.path / "train.jsonl"):
        for length in lengths_of(run) if line["step"] in states else []:
            value, beyond = line.get(f"held_out_{length}"), limit is not None and length > limit
            note = f"takes at most {limit} tokens" if beyond else ""
            of = (run.name, run.encoding, *states[line["step"]], "perplexity", "nats")
            rows.append(Row(*of, length, value, 0 if value is None else scored, note))
    return rows
