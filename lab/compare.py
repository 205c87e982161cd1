"""Comparison: encodings trained on the same batches, measured on the same tokens, in one table and figure."""

import re
from pathlib import Path

from accelerate import Accelerator

from lab import LabError
from lab.config import Run
from lab.evaluate import evaluate
from lab.figure import curve
from lab.rows import read, write
from lab.table import markdown
from lab.track import Track, publish
from lab.train import accelerator_for, train
from positional.build import names_of


def compare(run: Run) -> Path:
    """Train and measure every line of `run.compare`; returns the folder with rows.jsonl, table.md and curve.png.

    Each line has a run of its own in `runs/<name>/`, so a rerun of the same command goes on where it was.
    """
    if not run.compare.runs:
        raise LabError(f"{run.name} compares nothing: write compare: {{runs: [{{train: rope, swap: [rope-ntk]}}, …]}}")
    parts, out, changed = parts_of(run), run.path / "compare", False
    for part in parts:
        accelerator = accelerator_for(part)
        changed |= train_and_measure(part, accelerator, run.name)
        if accelerator.is_main_process:
            out.mkdir(parents=True, exist_ok=True)
            write(out / "rows.jsonl", [row for one in parts for row in read(one.path / "rows.jsonl")])
    if accelerator.is_main_process:
        rows = read(out / "rows.jsonl")
        (out / "table.md").write_text(markdown(rows, run.train.length))
        curve(rows, out / "curve.png", run.train.length)
    if changed:
        summary = Track(
            run.model_copy(update={"name": "compare", "folder": str(run.path)}), accelerator, group=run.name
        )
        summary.figure(out / "curve.png")
        summary.table(read(out / "rows.jsonl"))
        summary.close()
    return out


def train_and_measure(part: Run, accelerator: Accelerator, group: str) -> bool:
    """Train and measure one line, and track it and each encoding swapped in. Returns whether any row changed."""
    before = read(part.path / "rows.jsonl")
    track = Track(part, accelerator, group=group)
    train(part, accelerator, track)
    rows = list(evaluate(part, accelerator))
    if rows != before:
        publish(rows, part, accelerator, group=group, track=track)
    return rows != before


def parts_of(run: Run) -> list[Run]:
    """Each line of the comparison with each seed, as a run of its own."""
    lines = run.compare.runs
    return [
        run.model_copy(
            update={
                "name": f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', name)}-seed{seed}",
                "folder": str(run.path),
                "seed": seed,
                "model": run.model.model_copy(update={"positional": line.train}),
                "eval": run.eval.model_copy(update={"swap": [*run.eval.swap, *line.swap]}),
            }
        )
        for seed in run.compare.seeds
        for line, name in zip(lines, names_of([line.train for line in lines]), strict=True)
    ]
