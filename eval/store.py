"""store: an append-only file of measurements; what was once written is never lost and never measured again."""

import json
import os
from pathlib import Path


class Store:
    """JSON lines, each under a key that says all that the measurement depends on.

    A process appends to a file of its own and reads those of all, so that the number of processes does not matter.
    A line cut short by a crash is left out; what else is there stays.
    """

    def __init__(self, folder: Path, process: int = 0):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.own = folder, folder / f"{process}.jsonl"
        self.found: dict[str, dict] = {}
        self.read()

    def read(self) -> None:
        """Take in what all processes have written by now."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for record in lines(path):
                self.found[record.pop("key")] = record

    def get(self, key: str) -> dict | None:
        return self.found.get(key)

    def put(self, records: dict[str, dict]) -> None:
        """Append these, on disk before it returns."""
        append(self.own, [{"key": key, **record} for key, record in records.items()])
        self.found |= records


def lines(path: Path) -> list[dict]:
    """The records of a JSON-lines file; a last line that a crash cut short is not one."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def append(path: Path, records: list[dict]) -> None:
    """Add records to a JSON-lines file and wait until they are on disk."""
    with open(path, "ab+") as file:
        if file.tell() and not ends_whole(file):
            file.write(b"\n")  # a crash left half a line: ours must not continue it
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())
        file.flush()
        os.fsync(file.fileno())


def overwrite(path: Path, text: str) -> None:
    """Put `text` in the place of a file in one step: a crash leaves the old one or the new one, whole."""
    side = path.with_name(path.name + ".tmp")
    with open(side, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(side, path)


def ends_whole(file) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
