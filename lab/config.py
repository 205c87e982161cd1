"""Reading settings: a YAML file and its `base:` files, overridden by a.b=c, every mistake told at once."""

import copy
import difflib
import re
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lab import LabError
from lab.settings import Run, Settings, Training

Kind = typing.TypeVar("Kind", bound=Settings)


class Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-3 is a number, as everyone who writes it means."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read(path: str | Path, overrides: list[str] = ()) -> Run:
    """The settings of a YAML file, with `base:` files under it and `a.b=c` overrides over it.

    Raises LabError listing every mistake at once.
    """
    values = merged(tree(Path(path)), parsed(overrides))
    return checked(values, Path(path), overrides, kind_of(values))


def kind_of(values: dict) -> type[Training]:
    """Whose settings these are: a masked language model, or one with an encoder and a decoder, has others."""
    from lab.masked.settings import MaskedRun
    from lab.seq2seq.settings import Translation

    model = values.get("model")
    if isinstance(model, dict) and {"encoder", "decoder", "recurrent"} & model.keys():
        return Translation
    return MaskedRun if "mask" in values else Run


def of_run(folder: Path, over: list[str] = ()) -> Run:
    """The settings of a run's folder, with YAML files and `a.b=c` overrides over them, to measure the run by.

    Raises LabError where there is no run, or where what is laid over it would change the model.
    """
    folder = folder.expanduser()
    path = folder / "config.yaml"
    if not path.exists():
        raise LabError(f"{folder} is no run: it has no config.yaml. `lab train` makes one", code=2)
    values = tree(path)
    if "name" in values["model"]:
        raise LabError(f"{folder} is a pretrained model's: measure it with python -m eval {folder / 'model'}", code=2)
    before = [values.get(section) for section in LASTING]
    for text in over:
        values = merged(values, parsed([text]) if "=" in text else tree(Path(text)))
    if [values.get(section) for section in LASTING] != before:
        sections = " or ".join(f"`{section}`" for section in LASTING if section in values)
        raise LabError(f"{' '.join(over)} changes {sections}, which {folder} has behind it; only train anew", code=2)
    if not folder.name:  # "." and ".."
        folder = folder.resolve()
    values = {**values, "model": with_own_code(values["model"], folder)}
    return checked({**values, "folder": str(folder.parent), "name": folder.name}, path, over, kind_of(values))


def with_own_code(model: dict, folder: Path) -> dict:
    """A model's settings with the source of each encoding looked for in the run's folder first."""
    from positional.build import moved

    found = {key: with_own_code(value, folder) for key, value in model.items() if isinstance(value, dict)}
    return model | found | {key: moved(model[key], folder) for key in {"positional"} & model.keys()}


LASTING = "model", "train", "mask"
"""Sections that decide the weights."""
SIZES = "width", "heads", "kv_heads"


def checked(values: dict, path: Path, overrides: list[str] = (), kind: type[Kind] = Run) -> Kind:
    """The values as settings. What is wrong is taken out and the rest checked again, so that all comes at once."""
    found: list[str] = []
    out: set[tuple] = set()
    values = copy.deepcopy(values)
    while True:
        try:
            run = kind.model_validate(values)
        except ValidationError as error:
            errors = [one for one in error.errors() if one["type"] != "missing" or one["loc"] not in out]
            found += [line for one in errors for line in explained(one, kind)]
            places = [one["loc"] for one in errors]
            out |= set(places)
            if any(place[0] == "model" and place[-1] in SIZES for place in places if place):
                places += [("model", size) for size in SIZES]  # what is left of them would not fit each other
            if places and places[0] and any([dropped(values, place) for place in places]):
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
    """`over` laid on `under`, section by section; an encoding or mixer replaces the one below whole."""
    result = dict(under)
    for key, value in over.items():
        whole = key in ("positional", "mixer") and isinstance(value, dict) and "kind" in value
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


def spec_of(text: str, options: list[str] = (), *, where: str = "--scheme") -> Any:
    """An encoding's description: `rope-ntk factor=auto`, or YAML: `[rope, {kind: window, window: 512}]`.

    options: more `option=value` to lay over it.   where: what to call the place in an error.
    """
    try:
        spec = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise LabError(f"{where}: `{text}` is not readable as YAML: {error}", code=2) from None
    kind, *within = spec.split() if isinstance(spec, str) and spec else [spec]
    given = parsed([*within, *options])
    if isinstance(kind, dict):
        return kind | given
    if given and isinstance(kind, list):
        raise LabError(f"{where}: {' '.join(options)} stands beside a list: write options inside it", code=2)
    return {"kind": kind, **given} if given else kind


def explained(error: dict, kind: type[Settings] = Run) -> list[str]:
    """One of pydantic's findings as lines that name the key and the fix."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] in ("extra_forbidden", "invalid_key"):
        *sections, last = [part for part in error["loc"] if part != "[key]"]
        known = keys_of(sections, kind)
        near = difflib.get_close_matches(str(last), known, 1)
        return [f"{key}: unknown key" + (f", did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}")]
    if error["type"] == "value_error":
        return [f"{key}: {line}" if key else line for line in str(error["ctx"]["error"]).splitlines()]
    if error["type"] == "missing" and isinstance(error["input"], dict):
        return [f"{key}: is missing, and has no default: write it"]
    message = (
        error["msg"]
        .replace("Input should be", "must be")
        .replace("a valid ", "a ")
        .replace("a integer", "a whole number")
    )
    return [f"{key}: {message}, got {error['input']!r}"]


def keys_of(sections: list, kind: type[Settings] = Run) -> list[str]:
    """The keys that a section of the file may have."""
    model: Any = kind
    for section in sections:
        if isinstance(section, str) and section in model.model_fields:
            annotation = model.model_fields[section].annotation
            inner = typing.get_args(annotation)
            model = inner[0] if inner else annotation
    return list(model.model_fields)


def dump(run: Run) -> str:
    """The settings as YAML; read back, it gives an equal Run."""
    return yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False)
