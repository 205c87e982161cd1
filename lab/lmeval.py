"""lm-eval: the tasks of EleutherAI's harness, asked of a run or of any model of transformers -> rows."""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from lab import LabError
from lab.rows import Row, Rows
from lab.sources import first_line

EXTRA = 'lm-eval is not installed: pip install -e ".[lm-eval]"'


def ask(
    which: str,
    tasks: list[str],
    *,
    limit: int | None = None,
    scheme: str | None = None,
    length: int | None = None,
    batch: int = 8,
    own: list[Path] | None = None,
    out: Path | None = None,
) -> list[Row]:
    """The rows of these tasks, which are also in the run's rows.jsonl, or in that of the folder `out`.

    which: the folder of a run, or a model of transformers by folder or name.   limit: documents of each task.
    scheme: an encoding to put into a run's model, as in `spec_of`.
    length: the longest input in tokens, of which longer ones keep the end; None: as the model's configuration says.
    own: folders with tasks of one's own, as YAML.   out: of a model that is no run; default: runs/lm-eval.
    Raises LabError where lm-eval is not installed, a task is unknown, or its data cannot be had.
    """
    if find_spec("lm_eval") is None:
        raise LabError(EXTRA, code=2)
    blank, folder, model, tokenizer = loaded(which, scheme)
    if not steady(model):
        batch = 1  # padding would change what such an encoding makes of shorter inputs
    found = results(model, tokenizer, tasks, limit, length, batch, own or [])
    made = list(rows_of(found, blank))
    there = Rows((folder or out or Path("runs/lm-eval")) / "rows.jsonl")
    there.path.parent.mkdir(parents=True, exist_ok=True)
    for row in made:
        there.put(row)
    return made


def loaded(which: str, scheme: str | None) -> tuple[Row, Path | None, object, object]:
    """A row to fill in, the folder of the run where it is one, model and tokenizer."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not (Path(which) / "config.yaml").exists():
        from eval.load import load

        if scheme is not None:
            raise LabError(f"{which} is no run of the lab: only a run's encoding can be changed by --scheme", code=2)
        model, tokenizer = load(which, "auto", device)
        name = Path(which).name
        return Row(name, name, name, None, "", "", 0, None, 0), None, model, tokenizer
    from lab.config import of_run, spec_of
    from lab.evaluate import trained_model
    from lab.generate import put_in
    from lab.tokenizer import for_transformers
    from positional.build import name_of

    run = of_run(Path(which))
    model = trained_model(run).to(device)
    trained = name_of(model.config.positional)
    if scheme is not None:
        put_in(model, spec_of(scheme))
    blank = Row(run.name, scheme or trained, trained, run.seed, "", "", 0, None, 0)
    return blank, run.path, model, for_transformers(run.data.tokenizer)


def steady(model) -> bool:
    """Whether what follows a token changes nothing that is made of it; of a model of transformers it is taken to be."""
    return getattr(getattr(model, "scheme", None), "prefix_consistent", True)


def results(model, tokenizer, tasks: list[str], limit, length, batch: int, own: list[Path]) -> dict:
    """What lm-eval says of them, with the longest input that it gave to the model."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, max_length=length, truncation=True)
    folders = [str(folder) for folder in own]
    manager = TaskManager(include_path=folders, include_defaults=False)
    if unknown_to(manager, tasks):  # to read what is known of all of lm-eval's takes long
        manager = TaskManager(include_path=folders)
    if unknown := unknown_to(manager, tasks):
        raise LabError(
            f"lm-eval knows no task {', '.join(unknown)}; `lm-eval ls tasks` lists those that it has", code=2
        )
    try:
        found = simple_evaluate(lm, tasks=manager.match_tasks(tasks), limit=limit, task_manager=manager)
    except Exception as error:  # datasets, huggingface_hub, httpx and the tasks themselves raise errors of their own
        raise LabError(f"lm-eval {', '.join(tasks)}: {first_line(error)}") from error
    return found | {"length": lm.max_length}


def unknown_to(manager, tasks: list[str]) -> list[str]:
    return [task for task in tasks if not manager.match_tasks([task])]


def rows_of(found: dict, blank: Row) -> Iterator[Row]:
    """A row for each metric of each task; the interval is ±1.96 of lm-eval's standard errors."""
    for task, numbers in found["results"].items():
        count = found.get("n-samples", {}).get(task, {}).get("effective", 0)
        note = f"lm-eval {version('lm-eval')}, version {found['versions'].get(task, 'none')} of the task"
        for name, value in numbers.items():
            metric, _, chosen = name.partition(",")
            if not chosen or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = numbers.get(f"{metric}_stderr,{chosen}")
            reach = 1.96 * error if isinstance(error, int | float) else None
            yield replace(
                blank,
                probe=f"lm-eval/{task}",
                metric=metric if chosen == "none" else f"{metric}, {chosen}",
                length=found["length"],
                value=float(value),
                low=None if reach is None else value - reach,
                high=None if reach is None else value + reach,
                count=count,
                note=note,
            )


def show(rows: list[Row]) -> None:
    """A line for each number."""
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "metric", "value", "95 % interval", "documents", "up to, in tokens")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        between = "–" if row.low is None else f"{row.low:.3f} – {row.high:.3f}"
        name = row.probe.removeprefix("lm-eval/")
        table.add_row(name, row.metric, f"{row.value:.3f}", between, f"{row.count}", f"{row.length}")
    console = Console()
    console.print(table)
    for note in dict.fromkeys(row.note for row in rows):
        console.print(note, highlight=False)
