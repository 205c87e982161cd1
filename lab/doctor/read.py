"""A model's name -> its configuration as a dictionary. Only the configuration is read: no weights, no code."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.checkpoint import FILES, HUB
from lab import LabError
from lab.doctor.finding import Finding


@dataclass(frozen=True)
class Source:
    name: str  # as asked for
    where: str  # the file
    raw: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)  # what a GGUF file calls the fields of a config.json
    findings: tuple[Finding, ...] = ()  # of the file as such


def read(name: str) -> Source:
    """A folder with a config.json, such a file itself, a .gguf file, or a name on the Hugging Face hub.

    Raises LabError where there is no configuration, or none that is JSON.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return of_json(name, in_folder(path))
    if path.suffix == ".gguf" and path.is_file():
        from lab.doctor.gguf import metadata

        return Source(name, str(path), *metadata(path))
    if path.is_file():
        if path.suffix != ".json":
            raise LabError(
                f"{name} is no configuration: give a config.json, a folder that holds one, or a .gguf file", code=2
            )
        return of_json(name, path)
    if not HUB.fullmatch(name) or path.suffix in FILES:
        raise LabError(f"no file {name}, nor could it be a name on the Hugging Face hub", code=2)
    return of_json(name, downloaded(name))


def in_folder(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder / "config.json"
    if (folder / "model" / "config.json").is_file():  # a run of the lab
        return folder / "model" / "config.json"
    if (folder / "adapter_config.json").is_file():
        raise LabError(f"{folder} holds an adapter: give the model it was made for, which has the config.json", code=2)
    files = sorted(folder.glob("*.gguf"))
    hint = f"give one of its .gguf files, such as {files[0]}" if files else "give the folder or file that does"
    raise LabError(f"{folder} holds no config.json: {hint}", code=2)


def downloaded(name: str) -> Path:
    """config.json alone, through transformers' cache."""
    from transformers.utils.hub import cached_file

    try:
        return Path(cached_file(name, "config.json"))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise LabError(
            f"there is no file or folder {name}, and as a name on the Hugging Face hub it gives no config.json: {first}"
        ) from error


def of_json(name: str, path: Path) -> Source:
    twice: list[str] = []
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=noting(twice))
    except UnicodeDecodeError:
        raise LabError(f"{path} is no text, so no configuration") from None
    except json.JSONDecodeError as error:
        raise LabError(f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise LabError(f"{path} is nested too deep to be a configuration") from None
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(raw, dict):
        raise LabError(f"{path} holds {type(raw).__name__} and no dictionary of settings")
    problem = "stands twice in one dictionary: the last counts"
    return Source(
        name,
        str(path),
        raw,
        findings=tuple(Finding("warning", "twice", key, problem, "remove one") for key in dict.fromkeys(twice)),
    )


def noting(twice: list[str]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)
        return dict(pairs)

    return made
