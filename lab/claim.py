"""Whose a run's folder is: the settings that decide its weights stand there, and no others are trained into it."""

import json
import shutil
from pathlib import Path

from accelerate import Accelerator

from eval.jsonl import overwrite
from lab import LabError
from lab.config import checked, dump, tree
from lab.data import Corpus
from lab.settings import Training
from lab.track import flat

FREE = {"folder", "name", "track", "project", "eval", "compare"}
FREE_IN_TRAIN = {"log_every", "eval_every", "save_every", "keep", "checkpointing"}
"""Settings that may change between two commands on one run: they leave its weights as they are."""


def claim(run: Training) -> None:
    """Raise LabError where the run's folder holds a run with other settings."""
    path = run.path / "config.yaml"
    if not path.exists():
        return
    for source in run.sources:
        copy = run.path / source.name
        if copy.exists() and copy.read_bytes() != source.read_bytes():
            raise LabError(
                f"{source} has changed since {run.path}, which has a copy, began to train with it: choose another name "
                f"(name={run.name}-2), or put the copy back",
                code=2,
            )
    values = tree(path)
    fields = type(run).model_fields.keys()
    if not values["model"].keys() <= type(run.model).model_fields.keys() or "mask" in values.keys() ^ fields:
        raise LabError(
            f"{run.path} holds a run of another kind, a new model or a pretrained one: choose another name "
            f"(name={run.name}-2)",
            code=2,
        )
    there = flat(lasting(checked(values, path, kind=type(run))))
    wanted = flat(lasting(run))
    if different := sorted(key for key in there.keys() | wanted.keys() if there.get(key) != wanted.get(key)):
        differing = "".join(f"\n  {key}: {there.get(key)!r} there, {wanted.get(key)!r} asked for" for key in different)
        raise LabError(
            f"{run.path} holds a run with other settings:{differing}\n"
            f"Choose another name (name={run.name}-2), or delete {run.path} to train it anew",
            code=2,
        )


def lasting(run: Training) -> dict:
    """The settings that decide the weights."""
    return run.model_dump(mode="json", exclude={**dict.fromkeys(FREE, True), "data": {"cache"}, "train": FREE_IN_TRAIN})


def record(run: Training, text: Corpus, accelerator: Accelerator) -> None:
    """Write down what the run is made of: its settings, its data, and the source of an encoding of the user's own."""
    if not accelerator.is_main_process:
        return
    made(run.path)
    overwrite(run.path / "data.json", json.dumps(text.meta, indent=1))
    overwrite(run.path / "config.yaml", dump(run))
    for source in run.sources:
        shutil.copy(source, run.path / source.name)


def made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{folder} cannot be made ({error.strerror}): set folder= to one that can") from None
