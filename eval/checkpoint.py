"""checkpoint: whether a name can be a model's, said before anything is read; and in one line why a model is none."""

import difflib
import json
import re
from pathlib import Path

from eval import EvalError
from eval.weights import PICKLED

HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
FILES = (".json", ".gguf", ".safetensors", ".yaml", *PICKLED)
"""What no name on the hub ends in."""


def refuse_nothing(name: str) -> None:
    """Raise EvalError for a path at which there is no model. What may be a name on the hub passes."""
    path = Path(name).expanduser()
    if path.is_dir():
        refuse_broken(path)
    elif path.is_file():
        if path.suffix not in (".gguf", *PICKLED):
            raise EvalError(
                f"{name} is a file and no model: give the folder with config.json and weights, or a .gguf file", code=2
            )
    elif not HUB.fullmatch(name) or path.suffix in FILES:
        raise EvalError(f"no file or folder {name}, nor could it be a name on the Hugging Face hub", code=2)


def refuse_broken(folder: Path) -> None:
    """Raise EvalError for a folder without a config.json that says which model it is."""
    path = folder / "config.json"
    if not path.is_file():
        raise EvalError(f"{folder} holds no config.json: {instead(folder)}", code=2)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvalError(f"{path} is not JSON ({error}): download it again") from None
    if not isinstance(raw, dict):
        raise EvalError(f"{path} holds {type(raw).__name__} and no dictionary of settings: download it again")


def instead(folder: Path) -> str:
    """What to give where a folder was given that is no model's."""
    if (folder / "model" / "config.json").is_file():
        return f"give {folder / 'model'}"
    if (folder / "adapter_config.json").is_file():
        return "it is an adapter's. Merge it into the model that it was made for, and give what comes of that"
    files = sorted(folder.glob("*.gguf"))
    return f"give one of its .gguf files, such as {files[0]}" if files else "give the folder of a model"


def why_not(name: str, error: Exception) -> EvalError:
    """One line for whatever a checkpoint made transformers raise."""
    said = str(error).strip() or "nothing more is known"
    if "trust_remote_code" in said:
        return EvalError(
            f"{name} brings code of its own, which is run only where you say so: read it, then pass "
            "--trust-remote-code to python -m eval, trust_remote_code=true to lab extend, or in Python load(…, "
            "remote_code=True); lab finetune runs none",
            code=2,
        )
    if found := re.search(r"Unrecognized configuration class <class '[\w.]*?(\w+)'>", said):
        return not_causal(name, found[1])
    if found := re.search(r"has model type `(.+?)` but", said):
        return EvalError(unknown(name, found[1]))
    if "Should have a `model_type` key" in said:
        return EvalError(
            f"{name}/config.json has no model_type, so that nothing knows which model it is: download it again"
        )
    kind = "" if isinstance(error, OSError | ImportError) else f"{type(error).__name__}: "
    first = kind + said.splitlines()[0]
    if not Path(name).expanduser().exists():
        return EvalError(
            f"there is no file or folder {name}, and as a name on the Hugging Face hub it fails: {first.rstrip('.')}. "
            "Check its spelling, or download it where there is a network"
        )
    return EvalError(f"{name} does not load as a causal language model: {first}")


def not_causal(name: str, configuration: str) -> EvalError:
    return EvalError(
        f"{name} is no causal language model: transformers has none for {configuration}. Give a model "
        "that tells the next token",
        code=2,
    )


def unknown(name: str, family: str) -> str:
    from transformers import CONFIG_MAPPING, __version__

    near = difflib.get_close_matches(family, list(CONFIG_MAPPING.keys()), 1)
    hint = f"did you mean {near[0]}?" if near else "a newer one may"
    return f"{name}/config.json has the model_type {family}, which transformers {__version__} does not know: {hint}"


def no_tokenizer(name: str, error: Exception) -> EvalError:
    """One line for a tokenizer that does not load."""
    folder = Path(name).expanduser()
    if folder.is_dir() and not any(folder.glob("*tok*")) and not any(folder.glob("vocab*")):
        return EvalError(
            f"{name} holds no tokenizer: put the one there that the model was made with, by "
            f"AutoTokenizer.from_pretrained(…).save_pretrained({name!r})",
            code=2,
        )
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return EvalError(f"the tokenizer of {name} does not load: {first}: download its files again")
