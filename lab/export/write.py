"""export: an extended model as a folder that others load, checked in a process of its own before it gets its name."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lab import LabError
from lab.checkpoint import replacing
from lab.export.card import card
from lab.export.code import code_of, fields_of_code
from lab.export.reference import Reference, reference_of
from lab.export.verify import differences
from lab.rope.config import Rotation, described
from lab.rope.fields import from_length, older, renewed, written
from lab.rope.left_out import resolved
from lab.rows import Row
from positional.build import Spec, name_of, sources


@dataclass(frozen=True)
class Exported:
    folder: Path
    code: bool  # whether the folder runs code of the lab when it is loaded
    message: str  # what it is and what loads it, for a person


def export(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spec: Spec,
    folder: Path,
    *,
    target: int,
    train_length: int | None = None,
    measured: Sequence[Row] = (),
) -> Exported:
    """Write a model that has the encoding in it as a checkpoint, and make sure that what loads is what was measured.

    model: as it was measured, with its configuration as it came.   spec: the encoding of the layers that see the whole
    input; what it leaves out is the model's own.   target: the longest input, in tokens.   train_length: the L0 of the
    formulas; None: what the configuration says.   measured: losses in nats, which the model card tells; nothing else is
    claimed there.
    Where a configuration of transformers can say the encoding, transformers loads the folder, and what reads its
    configurations; where none can, it holds code that needs the lab. Raises LabError, naming what differs, where the
    folder loads as something else; no folder is left then.
    """
    config = model.config
    if config.get_text_config() is not config:
        raise LabError(f"{config.model_type} is more than a text model: only a model of text alone is exported")
    if folder.exists():
        raise LabError(f"{folder} is there already: export to another folder, or remove it first")
    own = from_length(whole_view(config), train_length)
    fields, why = written(spec, config, target=target, train_length=train_length)
    wanted = Rotation(resolved(spec, own, target), own.size, own.shape, own.head)
    if fields is None and (learned := [name for name, _ in wanted.scheme().named_parameters()]):
        raise LabError(
            f"{name_of(spec)} learns numbers of its own ({', '.join(learned)}), and {why}: neither a checkpoint of "
            "transformers nor its code has a place for them"
        )
    if fields is None and (files := sources(wanted.spec)):
        raise LabError(
            f"{name_of(spec)} is code of your own ({files[0].name}), and {why}: a checkpoint that others load cannot "
            "hold it; make it an encoding of the lab, or publish it beside the weights"
        )
    reference = reference_of(model, target, own.train_length, None if fields is None else wanted)
    try:
        with replacing(folder) as side:
            save(model, tokenizer, side, changes_of(config, fields, wanted, target), target)
            if fields is None:
                (side / "modeling_context_lab.py").write_text(code_of(config))
            (side / "README.md").write_text(card(config, wanted, target, measured, why))
            check(side, reference, code=fields is None)
    except LabError:
        shutil.rmtree(folder.with_name(folder.name + ".tmp"), ignore_errors=True)
        raise
    needs = "transformers with trust_remote_code=True and the lab installed" if why else "transformers"
    message = f"{folder}: {name_of(spec)}, {own.train_length} → {target} tokens; load it with {needs}"
    return Exported(folder, fields is None, message + (f" ({why})" if why else ""))


def whole_view(config) -> Rotation:
    """How the layers that see the whole input turn."""
    said = described(config)
    return said.rotations[said.main]


def changes_of(config, fields: dict[str, Any] | None, wanted: Rotation, target: int) -> dict[str, Any]:
    """What config.json says otherwise than the model's configuration: the rope fields of transformers 5 and 4, or the
    code to run."""
    if fields is None:
        return fields_of_code(config, wanted, target)
    return fields | (older(renewed(config, fields)) or {})


def save(model, tokenizer, folder: Path, changes: dict[str, Any], target: int) -> None:
    """Weights in safetensors, tokenizer, generation settings, and the configuration with its changes."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    change(folder / "config.json", changes)
    # A tokenizer that says it reads less is believed, by vLLM too.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if settings.get("model_max_length", target) < target:
        change(folder / "tokenizer_config.json", {"model_max_length": target})


def change(path: Path, changes: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2, sort_keys=True) + "\n")


def check(folder: Path, reference: Reference, *, code: bool) -> None:
    """Raise LabError where the folder, loaded in a fresh process, is not the model that was measured."""
    if found := differences(folder, reference, code=code):
        more = [f"… and {len(found) - 8} more"] if len(found) > 8 else []
        raise LabError(
            "\n  ".join(["the exported checkpoint does not load as the model that was measured:", *found[:8], *more])
            + "\nnothing was written; the model given must have this encoding in it, and its configuration as it came"
        )
