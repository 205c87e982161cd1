"""Rows: every measured number is one line of JSON, in long format, the same for every probe."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from eval.jsonl import append, lines, overwrite


@dataclass(frozen=True)
class Row:
    run: str
    scheme: str  # the encoding that was measured
    trained_as: str  # the encoding that the weights were trained with
    seed: int | None  # None: over all seeds
    probe: str
    metric: str
    length: int  # tokens of context
    value: float | None  # None: the scheme cannot take this length; the note says why
    count: int  # tokens that the value is a mean over
    note: str = ""
    low: float | None = None  # the 95 % interval; None where there is none
    high: float | None = None

    @property
    def what(self) -> tuple:
        """What was measured; two rows with the same answer to different values cannot both stand."""
        return self.run, self.scheme, self.seed, self.probe, self.metric, self.length


class Rows:
    """A rows.jsonl: each new row is appended and on disk at once; a row measured anew takes the place of the old."""

    def __init__(self, path: Path):
        self.path = path
        self.rows = {row.what: row for row in read(path)}

    def put(self, row: Row) -> None:
        if self.rows.get(row.what) == row:
            return
        changed = row.what in self.rows
        self.rows[row.what] = row
        if changed:
            write(self.path, list(self.rows.values()))
        else:
            append(self.path, [asdict(row)])


def read(path: Path) -> list[Row]:
    return [Row(**record) for record in lines(path)]


def write(path: Path, rows: list[Row]) -> None:
    """Replace the file in one step."""
    overwrite(path, "".join(json.dumps(asdict(row)) + "\n" for row in rows))
