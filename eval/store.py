"""store: token losses, append-only, each array under a key that says all that it depends on."""

import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval import EvalError
from eval.jsonl import append, records

VERSION = 2
"""Of the layout below; 1 kept sums of losses and no losses."""


class Store:
    """Arrays of fp32 losses in `N.f32`, found through the lines of `N.jsonl`: key, first number, count, checksum.

    A process appends to files of its own and reads those of all, so the number of processes does not matter. The
    numbers are on disk before the line that names them: what a crash cuts off is measured again, the rest stays.
    Nothing is written before there is something to keep.
    Raises EvalError where the folder was written by another version.
    """

    def __init__(self, folder: Path, process: int = 0):
        self.folder, self.index, self.data = folder, folder / f"{process}.jsonl", folder / f"{process}.f32"
        self.names: dict[str, str] = {}
        self.places: dict[str, list[tuple[Path, dict]]] = {}  # one that is damaged has a later one beside it
        self.whole: dict[str, NDArray[np.float32]] = {}
        self.seen: dict[Path, int] = {}  # how many bytes of each index are read
        self.mapped: dict[Path, NDArray[np.float32]] = {}
        self.read()

    def read(self) -> None:
        """Take in what all processes have written by now."""
        for path in sorted(self.folder.glob("*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self.seen.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1  # another process may be in the middle of a line
            self.seen[path] = self.seen.get(path, 0) + whole
            for one in records(text[:whole]):
                self.check(one)
                if "key" in one:
                    self.places.setdefault(one["key"], []).append((path.with_suffix(".f32"), one))
                elif "name" in one:
                    self.names[one["name"]] = one["is"]

    def check(self, one: dict) -> None:
        version = one.get("store", VERSION if "at" in one or "name" in one else 1)
        if version != VERSION:
            raise EvalError(
                f"{self.folder} was written by another version of the lab ({version}, this one writes {VERSION}): "
                "delete or rename the folder, and its losses are measured again"
            )

    def get(self, key: str) -> NDArray[np.float32] | None:
        """The losses under this key; None where there are none, or where they are damaged."""
        if key not in self.whole:
            for path, one in self.places.get(key, ()):
                losses = self.numbers(path, one["at"], one["at"] + one["count"])
                if losses is not None and zlib.crc32(losses) == one["crc"]:
                    self.whole[key] = losses
                    break
        return self.whole.get(key)

    def numbers(self, path: Path, start: int, stop: int) -> NDArray[np.float32] | None:
        """Read as they are needed: a store may be larger than memory. None where the file is too short."""
        if path not in self.mapped or len(self.mapped[path]) < stop:
            if not path.exists() or path.stat().st_size < 4 * stop:
                return None
            self.mapped[path] = np.asarray(np.memmap(path, np.float32, "r", shape=(path.stat().st_size // 4,)))
        return self.mapped[path][start:stop]

    def put(self, losses: dict[str, NDArray[np.float32]]) -> None:
        """Append these, on disk before it returns."""
        found = []
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.data, "ab") as file:
            file.write(b"\0" * (-file.tell() % 4))  # a crash may have left part of a number
            at = file.tell() // 4
            for key, array in losses.items():
                array = np.ascontiguousarray(array, np.float32)
                file.write(array)
                found.append({"key": key, "at": at, "count": len(array), "crc": zlib.crc32(array)})
                at += len(array)
            file.flush()
            os.fsync(file.fileno())
        self.write(found)

    def name(self, name: str, identity: str) -> None:
        """Note that from now on this name stands for this; `names` says what it stood for."""
        if self.names.get(name) != identity:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.write([{"name": name, "is": identity}])

    def write(self, found: list[dict]) -> None:
        append(self.index, found if self.index.exists() else [{"store": VERSION}, *found])
        self.read()
