"""Rows of algorithmic problems as a table: exact match by size, and the mean reciprocal rank at the longer ones."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from lab import LabError
from lab.rows import Row, read
from lab.table import label

LONGER = "longer than trained"
"""How the note of a row begins whose size was not trained on: the sizes that encodings are ranked by."""


UNITS = {"exact": "% exact", "answer nats": "nats per token"}


def merged(folders: list[Path]) -> list[Row]:
    """The rows of several comparisons. Raises LabError where one has none, or two have measured the same."""
    found: dict[tuple, Path] = {}
    rows = []
    for folder in folders:
        path = folder / "compare" / "rows.jsonl"
        own = [row for row in read(path) if row.probe.startswith("algorithmic")]
        if not own:
            raise LabError(f"{path} holds no rows of algorithmic problems: run `lab compare` on some first", code=2)
        for row in own:
            key = row.probe, row.metric, row.trained_as, row.scheme, row.seed, row.length
            if found.setdefault(key, folder) != folder:
                raise LabError(f"{found[key]} and {folder} both hold {task_of(row)} of {row.scheme}: give one", code=2)
        rows += own
    return rows


def layout(rows: list[Row], metric: str = "exact") -> tuple[list[str], list[list[str]], list[str]]:
    """Header, lines and footnotes. Encodings are ranked by exact answers alone."""
    own_rows = [row for row in rows if row.metric == metric]
    tasks = list(dict.fromkeys(task_of(row) for row in own_rows))
    trained = max((row.length for row in own_rows if not longer(row)), default=0)
    beyond = sorted({row.length for row in own_rows if longer(row)})
    shown = [size for size in (trained, *quarters(trained, beyond)) if size]
    header = [UNITS[metric], f"1–{trained}", *(f"{n} ({n / max(trained, 1):g}×)" for n in shown), "longer"]
    ranks = ranking(rows) if metric == "exact" else {}
    body = []
    for task in tasks:
        for name in dict.fromkeys(label(row.trained_as, row.scheme) for row in own_rows):
            own = [row for row in own_rows if task_of(row) == task and label(row.trained_as, row.scheme) == name]
            cells = [[row for row in own if not longer(row)], *([row for row in own if row.length == n] for n in shown)]
            line = f"{task}: {name}" if len(tasks) > 1 else name
            line = [line, *(cell(some, metric) for some in [*cells, [row for row in own if longer(row)]])]
            rank = f"{ranks[task][name]:.2f}" if name in ranks.get(task, {}) else "–"
            body.append([*line, rank] if metric == "exact" else line)
    if metric != "exact":
        return header, body, ["Of the right answers to the same problems, their ends counted; means over sizes."]
    return [*header, "MRR"], body, footnotes(own_rows, ranks, tasks)


def quarters(trained: int, beyond: list[int]) -> list[int]:
    """Of the longer sizes those at quarters of the largest trained on; all where these are few."""
    return beyond if len(beyond) < 9 else [n for n in beyond if trained and 4 * n % trained == 0]


def cell(rows: list[Row], metric: str = "exact") -> str:
    """The mean over sizes and seeds, with the extremes of the seeds where there are several."""
    by_seed = defaultdict(list)
    for row in rows:
        if row.value is not None:
            by_seed[row.seed].append(100 * row.value if metric == "exact" else row.value)
    means = [fmean(values) for values in by_seed.values()]
    if not means:
        return "–"
    spread = f" ({written(min(means), metric)}–{written(max(means), metric)})" if len(means) > 1 else ""
    return written(fmean(means), metric) + spread


def written(value: float, metric: str) -> str:
    """A share with as many digits as tell it from 0 and 100."""
    if metric != "exact":
        return f"{value:.3f}"
    return f"{value:.0f}" if 1 <= value <= 99 or value in (0, 100) else f"{value:.1f}"


def task_of(row: Row) -> str:
    return row.probe.partition("/")[2]


def longer(row: Row) -> bool:
    return row.note.startswith(LONGER)


def questions(rows: list[Row]) -> dict[str, dict[tuple[str, int], float | None]]:
    """Encoding -> (task, seed) -> its mean exact match over the longer sizes: what the paper ranks by.

    A size that an encoding cannot read counts as 0. One that nothing was measured of is left out.
    """
    found: dict = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.metric == "exact" and longer(row):
            found[label(row.trained_as, row.scheme)][task_of(row), row.seed].append(row)
    return {
        name: {key: fmean(row.value or 0.0 for row in some) for key, some in line.items()}
        for name, line in found.items()
        if any(row.value is not None or "at most" in row.note for some in line.values() for row in some)
    }


def ranking(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Task -> encoding -> its mean reciprocal rank over the seeds; under "" that over tasks and seeds.

    Only of the questions that every encoding was asked, so that a comparison half done can be shown.
    """
    from eval.algorithmic import reciprocal_ranks

    table = questions(rows)
    asked = set.intersection(*(set(line) for line in table.values())) if table else set()
    found = {}
    for task in ["", *{task for task, _ in asked}]:
        part = {
            name: {key: value for key, value in line.items() if key in asked and task in ("", key[0])}
            for name, line in table.items()
        }
        if asked:
            found[task] = reciprocal_ranks(part)
    return found


def footnotes(exact: list[Row], ranks: dict, tasks: list[str]) -> list[str]:
    seeds, counts = {row.seed for row in exact}, sorted({row.count for row in exact if row.count})
    some = f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else str(*counts)
    notes = [f"{some} test problems a size, none of them trained on, the same for all; {len(seeds)} seed(s)."]
    if "" in ranks:
        whole = ", ".join(f"{name} {value:.2f}" for name, value in sorted(ranks[""].items(), key=lambda x: -x[1]))
        notes.append(
            f"MRR, mean reciprocal rank by the mean over the longer sizes, over {len(tasks)} task(s): {whole}."
        )
    reasons = defaultdict(list)
    for row in exact:
        if row.value is None:
            reasons[f"{label(row.trained_as, row.scheme)}: {row.note.removeprefix(LONGER).lstrip('; ')}"].append(row)
    notes += [
        f"– {reason} (sizes {min(row.length for row in some)}–{max(row.length for row in some)})."
        for reason, some in reasons.items()
    ]
    return notes
