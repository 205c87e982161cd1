"""Settings: a YAML file and its `base:` files, overridden by a.b=c, checked whole before any work begins."""

import copy
import difflib
import re
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lab import LabError

# Both are checked by those who read them, `positional.build` and `tokens`, whose messages say more than a type can.
Spec = Any
"""A positional encoding: `rope`, `{kind: rope-ntk, factor: 8}`, or a list of these."""
Length = Any
"""Tokens: 4096, "4k" (4 × 1024), or "8x" (8 × the training length)."""


class Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-3 is a number, as everyone who writes it means."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class Settings(BaseModel):
    """Frozen and strict: no unknown key, no "3" for a 3, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Data(Settings):
    source: Literal["stdlib", "text", "hub"] = "stdlib"
    path: Annotated[list[str], BeforeValidator(lambda path: [path] if isinstance(path, str) else path)] = []
    name: str | None = None
    config: str | None = None
    split: str = "train"
    column: str = "text"
    streaming: bool = False
    documents: int | None = Field(None, gt=0)
    tokenizer: str = "bytes"
    held_out: float = Field(0.1, gt=0, lt=1)
    packing: Literal["concat", "documents"] = "concat"
    cache: str = "runs/.data"

    @model_validator(mode="after")
    def source_has_what_it_reads(self):
        if self.source == "text" and not self.path:
            raise ValueError("source text needs `path`: a file, a folder, a glob, or a list of these")
        if self.source == "hub" and not self.name:
            raise ValueError("source hub needs `name`: a Hugging Face dataset such as allenai/c4")
        return self


class Model(Settings):
    width: int = Field(128, gt=0)
    layers: int = Field(4, gt=0)
    heads: int = Field(4, gt=0)
    kv_heads: int | None = Field(None, gt=0)
    hidden: int | None = Field(None, gt=0)
    qk_norm: bool = False
    tie: bool = True
    attention: Literal["auto", "flash3", "flash4", "flash2", "sdpa", "varlen", "flex", "eager"] = "auto"
    positional: Spec = "rope"


class Train(Settings):
    length: int = Field(128, gt=1)
    batch: int = Field(32, gt=0)
    accumulate: int = Field(1, gt=0)
    steps: int = Field(1000, gt=0)
    lr: float = Field(3e-3, gt=0)
    schedule: Literal["cosine", "stable"] = "cosine"
    warmup: int = Field(50, ge=0)
    decay: float = Field(0.2, gt=0, le=1)
    floor: float = Field(0.1, ge=0, le=1)
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    log_every: int = Field(10, gt=0)
    eval_every: int = Field(0, ge=0)
    save_every: int = Field(200, gt=0)
    keep: int = Field(2, gt=0)


class Eval(Settings):
    lengths: list[Length] = ["1x", "2x", "4x", "8x", "16x"]
    documents: int = Field(32, gt=0)
    batch_tokens: int = Field(16384, gt=0)
    swap: list[Spec] = []


class Trained(Settings):
    """One line of a comparison: an encoding to train with, and encodings to swap into the trained model."""

    train: Spec = None
    swap: list[Spec] = []


class Compare(Settings):
    seeds: list[Annotated[int, Field(ge=0)]] = [0]
    runs: list[Trained] = []


class Run(Settings):
    """Everything that a run is made of; `configs/base.yaml` says what each setting means."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    folder: str = "runs"
    seed: int = Field(0, ge=0)
    track: Literal["wandb", "tensorboard", "none"] = "wandb"
    project: str = "context-lab"
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    eval: Eval = Eval()
    compare: Compare = Compare()

    @model_validator(mode="after")
    def parts_fit_together(self):
        if problems := cross_checks(self):
            raise ValueError("\n".join(problems))
        return self

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.name


def cross_checks(run: Run) -> list[str]:
    """What no single setting shows: sizes that do not fit each other, encodings that cannot be built at this size."""
    from lab.model import misfits
    from positional import SchemeError, Shape, build

    problems = []
    for i, text in enumerate(run.eval.lengths):
        try:
            tokens(text, run.train.length)
        except ValueError as error:
            problems.append(f"eval.lengths[{i}]: {error}")
    sizes = run.model.width, run.model.heads, run.model.kv_heads
    if wrong := misfits(*sizes):  # no encoding can be tried at a shape that does not exist
        return [*(f"model: {one}" for one in wrong), *problems]
    shape = Shape(sizes[0], sizes[1], sizes[2] or sizes[1], run.model.layers, run.train.length)
    specs = {"model.positional": run.model.positional}
    specs |= {f"eval.swap[{i}]": spec for i, spec in enumerate(run.eval.swap)}
    for i, line in enumerate(run.compare.runs):
        specs |= {f"compare.runs[{i}].train": line.train}
        specs |= {f"compare.runs[{i}].swap[{j}]": spec for j, spec in enumerate(line.swap)}
    for key, spec in specs.items():
        try:
            build(spec, shape)
        except SchemeError as error:
            problems.append(f"{key}: {error}")
    return problems


def tokens(length: Length, train_length: int) -> int:
    """A length as written -> tokens. Raises ValueError, saying how to write one."""
    text, unit = str(length), 1
    if text[-1:].lower() in ("x", "k"):
        text, unit = text[:-1], train_length if text[-1].lower() == "x" else 1024
    try:
        count = int(text) * unit
    except ValueError:
        count = 0
    if count < 2:
        raise ValueError(f"{length!r} is no length: write tokens (4096), thousands (4k) or train lengths (8x)")
    if count % 2:
        raise ValueError(f"{length!r} is odd ({count}): half of each window is context, half is scored")
    return count


def read(path: str | Path, overrides: list[str] = ()) -> Run:
    """The settings of a YAML file, with `base:` files under it and `a.b=c` overrides over it.

    Raises LabError listing every mistake at once.
    """
    return checked(merged(tree(Path(path)), parsed(overrides)), Path(path), overrides)


def of_run(folder: Path, over: list[str] = ()) -> Run:
    """The settings of a run's folder, with YAML files and `a.b=c` overrides over them, to measure the run by.

    Raises LabError where there is no run, or where what is laid over it would change the model.
    """
    folder = folder.expanduser()
    path = folder / "config.yaml"
    if not path.exists():
        raise LabError(f"{folder} is no run: it has no config.yaml. `lab train` makes one", code=2)
    values = tree(path)
    before = values["model"], values["train"]
    for text in over:
        values = merged(values, parsed([text]) if "=" in text else tree(Path(text)))
    if (values["model"], values["train"]) != before:
        raise LabError(
            f"{' '.join(over)} changes `model` or `train`, which {folder} has behind it; only train anew", code=2
        )
    if not folder.name:  # "." and ".."
        folder = folder.resolve()
    from positional.build import moved

    model = {**values["model"], "positional": moved(values["model"]["positional"], folder)}
    return checked({**values, "model": model, "folder": str(folder.parent), "name": folder.name}, path, over)


SIZES = "width", "heads", "kv_heads"


def checked(values: dict, path: Path, overrides: list[str] = ()) -> Run:
    """The values as settings. What is wrong is taken out and the rest checked again, so that all comes at once."""
    found: list[str] = []
    values = copy.deepcopy(values)
    while True:
        try:
            run = Run.model_validate(values)
        except ValidationError as error:
            lines = [line for one in error.errors() for line in explained(one)]
            found += lines
            places = [one["loc"] for one in error.errors()]
            if any(place[0] == "model" and place[-1] in SIZES for place in places if place):
                places += [("model", size) for size in SIZES]  # what is left of them would not fit each other
            if places[0] and any([dropped(values, place) for place in places]):
                continue
        break
    if not found:
        return run
    where = f"{path} with {' '.join(overrides)}" if overrides else str(path)
    raise LabError(f"{where}: {len(found)} to mend\n" + "\n".join(f"  {line}" for line in found), code=2)


def dropped(values: dict, location: tuple) -> bool:
    """Take the value at this place, or the nearest setting around it, out; whether there was one to take."""
    place, found = values, None
    for part in location:
        if isinstance(place, dict) and part in place:
            found = place, part
        if not (isinstance(place, dict) and part in place) and not (isinstance(place, list) and part < len(place)):
            break
        place = place[part]
    if found is not None:
        del found[0][found[1]]
    return found is not None


def tree(path: Path, above: tuple[Path, ...] = ()) -> dict:
    """A YAML file laid over the file that its `base:` names, relative to itself."""
    path = path.expanduser()
    if path.resolve() in above:
        raise LabError(f"{path}: `base:` leads back to itself", code=2)
    try:
        values = yaml.load(path.read_text(), Loader) or {}
    except FileNotFoundError:
        raise LabError(f"no file {path}" + (f" (the base of {above[-1]})" if above else ""), code=2) from None
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        raise LabError(f"{path} is not readable as YAML: {error}", code=2) from None
    if not isinstance(values, dict):
        raise LabError(f"{path} must hold `key: value` lines, found {type(values).__name__}", code=2)
    base = values.pop("base", None)
    if not isinstance(base, str | None):
        raise LabError(f"{path}: `base:` must be the path of another YAML file, got {base!r}", code=2)
    values = {key: value for key, value in values.items() if value is not None}  # a section with nothing left in it
    return values if base is None else merged(tree(path.parent / base, (*above, path.resolve())), values)


def merged(under: dict, over: dict) -> dict:
    """`over` laid on `under`, section by section; an encoding replaces the one below whole, its options with it."""
    result = dict(under)
    for key, value in over.items():
        whole = key == "positional" and isinstance(value, dict) and "kind" in value
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both and not whole else value
    return result


def parsed(overrides: list[str]) -> dict:
    """`["train.lr=1e-3"]` -> {"train": {"lr": 0.001}}."""
    values: dict = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise LabError(f"`{text}` is no override: write section.key=value, for example train.lr=0.001", code=2)
        place = values
        *sections, last = key.split(".")
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise LabError(f"`{text}`: another override made {section} a plain value, which has no {last}", code=2)
        try:
            place[last] = yaml.load(value, Loader)
        except yaml.YAMLError as error:
            raise LabError(f"`{text}`: {value} is not readable as YAML: {error}", code=2) from None
    return values


def explained(error: dict) -> list[str]:
    """One of pydantic's findings as lines that name the key and the fix."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] in ("extra_forbidden", "invalid_key"):
        *sections, last = [part for part in error["loc"] if part != "[key]"]
        known = keys_of(sections)
        near = difflib.get_close_matches(str(last), known, 1)
        return [f"{key}: unknown key" + (f", did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}")]
    if error["type"] == "value_error":
        return [f"{key}: {line}" if key else line for line in str(error["ctx"]["error"]).splitlines()]
    message = (
        error["msg"]
        .replace("Input should be", "must be")
        .replace("a valid ", "a ")
        .replace("a integer", "a whole number")
    )
    return [f"{key}: {message}, got {error['input']!r}"]


def keys_of(sections: list) -> list[str]:
    """The keys that a section of the file may have."""
    model: Any = Run
    for section in sections:
        if isinstance(section, str) and section in model.model_fields:
            annotation = model.model_fields[section].annotation
            inner = typing.get_args(annotation)
            model = inner[0] if inner else annotation
    return list(model.model_fields)


def dump(run: Run) -> str:
    """The settings as YAML; read back, it gives an equal Run."""
    return yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False)
