"""Checkpoints: written to the side, checked, renamed; a damaged one is named and the one before it used."""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import LabError


@contextmanager
def replacing(final: Path, *, main: bool = True, meet=lambda: None) -> Iterator[Path]:
    """A folder to write into that takes the place of `final` when all is on disk, and never half-written.

    main: whether this process makes and renames it.   meet: returns when every process has come this far.
    Raises LabError where the disk is full, naming the folder.
    """
    side = final.with_name(final.name + ".tmp")
    try:
        if main:
            shutil.rmtree(side, ignore_errors=True)
            side.mkdir(parents=True)
        meet()
        yield side
        meet()
        if main:
            settle(side, final)
        meet()
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        if main:
            shutil.rmtree(side, ignore_errors=True)
        if not out_of_space(error, final):
            raise
        free = shutil.disk_usage(final.parent).free / 2**20
        raise LabError(
            f"no space left for {final}: {free:.0f} MiB free. What was saved before is intact; make room, or set a "
            "`folder:` on another disk, and run the same command again"
        ) from error


def settle(side: Path, final: Path) -> None:
    """Force a folder to disk and put it in the place of `final`."""
    for path in sorted(side.rglob("*")):
        if path.is_file():
            sync(path)
    if final.exists():
        shutil.rmtree(final)
    os.replace(side, final)
    sync(final.parent)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def out_of_space(error: Exception, place: Path) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return shutil.disk_usage(place.parent).free < 2**20


def save(accelerator, folder: Path, step: int, keep: int) -> None:
    """Everything that the next step depends on, as `folder/step-…`; the newest `keep` of them stay."""
    final = folder / f"step-{step:07d}"
    with replacing(final, main=accelerator.is_main_process, meet=accelerator.wait_for_everyone) as side:
        accelerator.save_state(str(side))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            sums = {str(path.relative_to(side)): digest(path) for path in sorted(side.rglob("*")) if path.is_file()}
            (side / "state.json").write_text(json.dumps({"step": step, "sha256": sums}, indent=1))
    if accelerator.is_main_process:
        for old in found(folder)[keep:]:
            shutil.rmtree(old)


def restore(accelerator, folder: Path) -> int:
    """Load the newest whole checkpoint, naming damaged ones; returns its step, 0 where there is none."""
    for path in found(folder):
        if flaw := damage(path):
            if accelerator.is_main_process:
                print(f"checkpoint {path} is damaged ({flaw}): going back to the one before it", file=sys.stderr)
            continue
        accelerator.load_state(str(path))
        return json.loads((path / "state.json").read_text())["step"]
    return 0


def found(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted((p for p in folder.glob("step-*") if p.suffix != ".tmp"), reverse=True)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        sums = json.loads((path / "state.json").read_text())["sha256"]
    except (OSError, ValueError, KeyError) as error:
        return f"state.json: {type(error).__name__}"
    for name, wanted in sums.items():
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if digest(file) != wanted:
            return f"{name} is truncated or changed"
    return None


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
