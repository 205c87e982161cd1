"""Rows as a table: a line an encoding, a column a length, a dash and the reason where there is no value."""

from collections import defaultdict
from statistics import fmean

from lab.rows import Row

Cells = dict[tuple[str, str], dict[int, list[Row]]]
METRICS = {
    "nats": "nats per token",
    "exact": "share of exact answers",
    "answer nats": "nats per token of the answers",
    "bleu": "BLEU",
    "chrf": "chrF",
}


def cells(rows: list[Row], probe: str = "perplexity", metric: str = "nats") -> Cells:
    """(trained_as, scheme) -> length -> the row over all seeds where there is one, else the rows of each."""
    table: Cells = defaultdict(lambda: defaultdict(list))
    rows = [row for row in rows if (row.probe, row.metric) == (probe, metric)]
    joint = {(row.trained_as, row.scheme) for row in rows if row.seed is None}
    for row in rows:
        key = row.trained_as, row.scheme
        if row.seed is None or key not in joint:
            table[key][row.length].append(row)
    return table


def label(trained_as: str, scheme: str) -> str:
    return scheme if scheme == trained_as else f"{trained_as} → {scheme}"


def mean(rows: list[Row]) -> tuple[float, float | None, float | None]:
    """Value and interval; of several rows, which then are of one seed each, the mean, and no interval."""
    if len(rows) == 1:
        return rows[0].value, rows[0].low, rows[0].high
    return fmean(row.value for row in rows), None, None


def cell(rows: list[Row]) -> str:
    """A value, and how far its interval reaches on the wider side."""
    rows = [row for row in rows if row.value is not None]
    if not rows:
        return "–"
    value, low, high = mean(rows)
    return f"{value:.3f}" + ("" if low is None else f" ±{max(value - low, high - value):.3f}")


def tables(rows: list[Row]) -> list[tuple[str, str]]:
    """Probe and metric of each table: perplexity, what else has a loss for each context length, and tasks."""
    if any(row.probe.startswith("algorithmic") for row in rows):
        return [("algorithmic", one) for one in ("exact", "answer nats") if any(row.metric == one for row in rows)]
    found = dict.fromkeys((row.probe, row.metric) for row in rows if row.metric in METRICS)
    reach = [("reach", "")] if any(row.probe == "reach" for row in rows) else []
    return [one for one in found if one[0] not in ("position", "gain", "copyable")] + reach


def layout(rows: list[Row], train_length: int, probe: str, metric: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Header, lines and footnotes."""
    if probe == "algorithmic":
        from lab.ranking import layout as of_sizes

        return of_sizes(rows, metric)
    if probe == "reach":
        return of_reach(rows)
    table = cells(rows, probe, metric)
    lengths = sorted({length for line in table.values() for length in line})
    what = METRICS[metric]
    what = what if probe == "perplexity" else f"{probe}, {what}"
    header = [what, *(f"{n} ({n / train_length:g}×)" for n in lengths)]
    body = [[label(*key), *(cell(line[n]) for n in lengths)] for key, line in table.items()]
    return header, body, notes_of(rows, probe, metric)


def notes_of(rows: list[Row], probe: str, metric: str) -> list[str]:
    if metric == "nats":
        return footnotes(rows, probe)
    if metric in ("exact", "answer nats"):
        return of_answers(rows, probe, metric)
    counts = {row.count for row in rows if (row.probe, row.metric) == (probe, metric) and row.value is not None}
    return [f"{', '.join(map(str, sorted(counts)))} sentences, whole, by sacrebleu."]


def of_reach(rows: list[Row]) -> tuple[list[str], list[list[str]], list[str]]:
    """How far each encoding reads, by each rule: a line for each, of its longest measurement."""
    from eval.report import READS_ON, SEEN, between, meanings

    found: dict[tuple, Row] = {}
    for row in sorted((row for row in rows if row.probe == "reach"), key=lambda row: row.length):
        found[row.trained_as, row.scheme, row.seed, row.metric] = row
    seeds, body = {seed for _, _, seed, _ in found}, []
    for (trained_as, scheme, seed, metric), row in found.items():
        if metric.endswith(SEEN):
            continue
        name = label(trained_as, scheme) + (f", seed {seed}" if len(seeds) > 1 and seed is not None else "")
        seen = found[trained_as, scheme, seed, metric + SEEN]
        body.append([f"{name}, {metric}", f"{row.value:g}", f"{seen.value:g}", between(row.low, row.high)])
    return READS_ON, body, meanings(row.metric for row in found.values())


def of_answers(rows: list[Row], probe: str, metric: str) -> list[str]:
    rows = [row for row in rows if (row.probe, row.metric) == (probe, metric)]
    asked = ", ".join(map(str, sorted({row.count for row in rows if row.value is not None})))
    spread = " ± is a 95 % interval." if any(row.low is not None for row in rows) else ""
    return [f"{asked} answers at each length, by teacher forcing.{spread}"]


def footnotes(rows: list[Row], probe: str) -> list[str]:
    rows = [row for row in rows if (row.probe, row.metric) == (probe, "nats")]
    scored = sorted({row.count for row in rows if row.seed is not None and row.value is not None})
    same = "the same at every length" if len(scored) < 2 else "NOT the same everywhere: measure again with one setting"
    if not probe.startswith(("perplexity", "suffix", "pseudo-perplexity")):  # the only ones that promise it
        same = "not the same ones at every length"
    seeds = len({row.seed for row in rows} - {None})
    spread = " ± is a 95 % interval of each by itself." if any(row.low is not None for row in rows) else ""
    notes = [f"{', '.join(map(str, scored))} scored tokens, {same}; {seeds} seed(s).{spread}"]
    reasons = dict.fromkeys(f"– {label(row.trained_as, row.scheme)}: {row.note}." for row in rows if row.note)
    return notes + list(reasons)


def markdown(rows: list[Row], train_length: int) -> str:
    """A table for each protocol and task."""
    parts = []
    for one in tables(rows):
        header, body, notes = layout(rows, train_length, *one)
        rule = ["---", *("---:" for _ in header[1:])]
        lines = ["| " + " | ".join(line) + " |" for line in [header, rule, *body]]
        parts.append("\n".join([*lines, "", *(f"{note}  " for note in notes)]) + "\n")
    return "\n".join(parts)


def show(rows: list[Row], train_length: int) -> None:
    """The same in the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for one in tables(rows):
        header, body, notes = layout(rows, train_length, *one)
        table = Table(*header)
        for column in table.columns[1:]:
            column.justify = "right"
        for line in body:
            table.add_row(*line)
        console.print(table)
        for note in notes:
            console.print(note, highlight=False)
