"""The end of `lab extend --out`: the model with the method that was measured, as a checkpoint that others load."""

from pathlib import Path

from lab.adopt import adopt, release
from lab.export.write import export
from lab.extend.measure import Bench
from lab.extend.run import Tried
from lab.rows import Row


def write(bench: Bench, one: Tried, rows: list[Row], folder: Path) -> str:
    """What was written, in words. Raises LabError where what loads is not what was measured."""
    adopt(bench.model, one.spec, train_length=bench.train_length)
    try:
        made = export(
            bench.model,
            bench.tokenizer,
            one.spec,
            folder,
            target=bench.to,
            train_length=bench.train_length,
            measured=[row for row in rows if row.probe == "suffix"],
        )
    finally:
        release(bench.model)
    return made.message
