"""JSON lines: a file of records that only grows; whatever a crash cuts, whole lines stay and new ones are whole."""

import json
import os
from pathlib import Path


def lines(path: Path) -> list[dict]:
    """The records of a JSON-lines file; a last line that a crash cut short is not one."""
    return records(path.read_bytes()) if path.exists() else []


def records(text: bytes) -> list[dict]:
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


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
