"""`lab complexity`: rows as they are measured, then the table and the figure of them."""

from pathlib import Path

from eval.jsonl import append
from lab import LabError
from lab.bench.attention import read_lengths
from lab.complexity.layers import Sizes
from lab.complexity.measure import complexity
from lab.complexity.report import figure, markdown
from lab.model.config import misfits


def run(lengths: str, sizes: Sizes, rounds: int, out: Path) -> list[dict]:
    """Rows of all lengths; leaves `out`/rows.jsonl, table.md, complexity.png. Raises LabError for sizes that misfit."""
    if wrong := misfits(sizes.width, sizes.heads, None):
        raise LabError(f"complexity: {wrong[0]}", code=2)
    try:
        wanted = sorted(set(read_lengths(lengths)))
    except ValueError as error:
        raise LabError(f"complexity: --lengths: {error}", code=2) from None
    out.mkdir(parents=True, exist_ok=True)
    (out / "rows.jsonl").unlink(missing_ok=True)  # another day's figures are no part of these
    rows = []
    for row in complexity(wanted, sizes, rounds):
        append(out / "rows.jsonl", [row])
        rows.append(row)
    (out / "table.md").write_text(markdown(rows))
    figure(rows, out / "complexity.png")
    return rows
