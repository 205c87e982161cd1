"""Comparison: encodings trained on the same batches, measured on the same tokens, in one table and figure."""

import json
import math
import re
from pathlib import Path

from accelerate import Accelerator
from safetensors import safe_open

from eval.jsonl import lines as lines_in
from lab import LabError
from lab.evaluate import kept
from lab.figure import by_size, figures
from lab.joint import joint_rows, lines_of, reach_rows, verdicts
from lab.joint import notes as cautions_of
from lab.outcome import Outcome
from lab.rows import Row, read, write
from lab.settings import Run
from lab.table import markdown
from lab.track import Track, publish
from lab.train import accelerator_for, train


def compare(run: Run) -> Path:
    """Train and measure every line of `run.compare`; returns the folder: rows.jsonl, table.md, a figure of each probe.

    Each line has a run of its own in `runs/<name>/`, so a rerun of the same command goes on where it was.
    """
    if not run.compare.runs:
        wanted = "compare: {runs: [{train: alibi}, {train: rope, swap: [{kind: rope-ntk, factor: auto}]}]}"
        raise LabError(f"{run.name} compares nothing: write {wanted}", code=2)
    out, measured, came = run.path / "compare", {}, []
    before = read(out / "rows.jsonl")
    parts = parts_of(run)
    for name, part in parts:
        accelerator = accelerator_for(part)
        old = [row for row in before if row.run == part.name]
        measured[part.name], found = train_and_measure(part, name, accelerator, run.name, old)
        came += found
        if accelerator.is_main_process:
            out.mkdir(parents=True, exist_ok=True)
            # Lines that are still to come keep the rows of an earlier call: nothing measured is out of sight meanwhile.
            waiting = {one.name for _, one in parts} - measured.keys()
            rows = [row for lines in measured.values() for row in lines]
            write(out / "rows.jsonl", [*rows, *(row for row in before if row.run in waiting)])
    if accelerator.is_main_process:
        lines = lines_of(came)
        rows += [*joint_rows(run.name, lines), *reach_rows(run.name, came, run.train.length)]
        write(out / "rows.jsonl", rows)
        said = [*costs(parts), *verdicts(lines), *cautions_of(lines)]
        (out / "table.md").write_text(markdown(rows, run.train.length) + "".join(f"\n{line}  " for line in said) + "\n")
        if run.data.source == "algorithmic":
            drawn = [by_size(rows, out / "sizes.png", run.train.length)]
        else:
            drawn = figures(rows, out, run.train.length)
        if rows != before:
            summary = Track(
                run.model_copy(update={"name": "compare", "folder": str(run.path)}), accelerator, group=run.name
            )
            for path in drawn:
                summary.figure(path)
            summary.table(rows)
            summary.close()
    return out


def train_and_measure(
    part: Run, name: str, accelerator: Accelerator, group: str, before: list[Row]
) -> tuple[list[Row], list[Outcome]]:
    """Train and measure one line, and show the tracker what differs from `before`."""
    track = Track(part, accelerator, group=group)
    train(part, accelerator, track)
    came = list(part.subject.outcomes(part, accelerator, name))
    rows = [row for outcome in came for row in kept(outcome.rows(part), part, accelerator)]
    if rows != before:
        publish(rows, part, accelerator, group=group, track=track)
    return rows, came


def parts_of(run: Run) -> list[tuple[str, Run]]:
    """Each line of the comparison with each seed: what tables call its encoding, and a run of its own."""
    lines = run.compare.runs
    return [
        (
            name,
            run.model_copy(
                update={
                    "name": f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', name)}-seed{seed}",
                    "folder": str(run.path),
                    "seed": seed,
                    "model": run.with_line(line),
                    "eval": run.eval.model_copy(update={"swap": [*run.eval.swap, *line.swap]}),
                    "compare": type(run.compare)(),  # the other lines are of no model that this one is
                }
            ),
        )
        for seed in run.compare.seeds
        for line, name in zip(lines, run.names_of_lines(lines), strict=True)
    ]


def costs(parts: list[tuple[str, Run]]) -> list[str]:
    """Sizes and speeds of training, where more than encodings differ. No rows: a speed is of one day on one machine."""
    if len({json.dumps(beside_encodings(part.model.model_dump(mode="json"))) for _, part in parts}) < 2:
        return []
    said = []
    for name, part in parts:
        speed = lines_in(part.path / "train.jsonl")[-1]["tokens_per_s"]
        with safe_open(part.path / "model/model.safetensors", "pt") as file:
            count = sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())
        said.append(f"{name}, seed {part.seed}: {count:,} parameters, trained at {speed:,.0f} tokens/s.")
    return said


def beside_encodings(model: dict) -> dict:
    """What a model's settings say of anything else."""
    return {
        key: beside_encodings(value) if key in ("encoder", "decoder") else value
        for key, value in model.items()
        if key != "positional"
    }
