"""Rows as a table: a line an encoding, a column a length, a dash and the reason where there is no value."""

from collections import defaultdict
from statistics import fmean

from lab.rows import Row

Cells = dict[tuple[str, str], dict[int, list[Row]]]


def cells(rows: list[Row], probe: str = "perplexity") -> Cells:
    """(trained_as, scheme) -> length -> the rows of all seeds."""
    table: Cells = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.probe == probe:
            table[row.trained_as, row.scheme][row.length].append(row)
    return table


def label(trained_as: str, scheme: str) -> str:
    return scheme if scheme == trained_as else f"{trained_as} → {scheme}"


def cell(rows: list[Row]) -> str:
    """The mean over seeds, with its extremes where there are several."""
    values = [row.value for row in rows if row.value is not None]
    if not values:
        return "–"
    spread = f" ({min(values):.3f}–{max(values):.3f})" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{spread}"


def layout(rows: list[Row], train_length: int) -> tuple[list[str], list[list[str]], list[str]]:
    """Header, lines and footnotes."""
    table = cells(rows)
    lengths = sorted({length for line in table.values() for length in line})
    header = ["nats per token", *(f"{n} ({n / train_length:g}×)" for n in lengths)]
    body = [[label(*key), *(cell(line[n]) for n in lengths)] for key, line in table.items()]
    return header, body, footnotes(rows)


def footnotes(rows: list[Row]) -> list[str]:
    scored = sorted({row.count for row in rows if row.probe == "perplexity" and row.value is not None})
    same = "the same at every length" if len(scored) < 2 else "NOT the same everywhere: measure again with one setting"
    notes = [f"{', '.join(map(str, scored))} scored tokens, {same}; {len({row.seed for row in rows})} seed(s)."]
    reasons = dict.fromkeys(f"– {label(row.trained_as, row.scheme)}: {row.note}." for row in rows if row.note)
    return notes + list(reasons)


def markdown(rows: list[Row], train_length: int) -> str:
    header, body, notes = layout(rows, train_length)
    rule = ["---", *("---:" for _ in header[1:])]
    lines = ["| " + " | ".join(line) + " |" for line in [header, rule, *body]]
    return "\n".join([*lines, "", *(f"{note}  " for note in notes)]) + "\n"


def show(rows: list[Row], train_length: int) -> None:
    """The same in the terminal."""
    from rich.console import Console
    from rich.table import Table

    header, body, notes = layout(rows, train_length)
    table = Table(*header)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in body:
        table.add_row(*line)
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)
