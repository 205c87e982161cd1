"""weights: whether a model's folder holds weights that may be read, and all of them."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from eval import EvalError

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
WHOLE, SHARDS = "model.safetensors", "model.safetensors.index.json"
"""transformers' names for weights in one file, and for the list of several."""


def refuse_unreadable(folder: Path) -> None:
    """Raise EvalError for weights that are pickled, missing or damaged. A name on the hub is no folder, and passes."""
    if folder.suffix in PICKLED and folder.is_file():
        raise pickled(folder)
    if not folder.is_dir():
        return
    files = shards(folder)
    if not files and (found := sorted(path for path in folder.iterdir() if path.suffix in PICKLED)):
        raise pickled(found[0])
    if not files:
        raise EvalError(f"{folder} holds no weights: neither {WHOLE} nor {SHARDS} is there, download it again")
    for path in files:
        refuse_damaged(path)


def shards(folder: Path) -> list[Path]:
    """The files that transformers reads the weights of this folder from."""
    if (folder / WHOLE).exists():
        return [folder / WHOLE]
    if not (folder / SHARDS).exists():
        return []
    try:
        names = json.loads((folder / SHARDS).read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvalError(f"{folder / SHARDS} is damaged, and names no shards: download it again") from error


def pickled(path: Path) -> EvalError:
    return EvalError(
        f"{path} is pickled, and reading a pickle runs what is in it: only safetensors and GGUF are read. If you trust "
        "it, load it with transformers and write it anew with save_pretrained, which makes safetensors of it",
        code=2,
    )


def refuse_damaged(path: Path) -> None:
    if not path.exists():
        raise EvalError(f"{path} is missing, and {SHARDS} names it: the checkpoint is not whole, download it again")
    try:
        with safe_open(path, "pt"):  # reads the list of tensors, and compares it with the size of the file
            pass
    except SafetensorError as error:
        held = path.stat().st_size
        raise EvalError(f"{path} is damaged or cut off ({held} bytes: {error}): download it again") from error


def refuse_partial(name: str, loading: Mapping) -> None:
    """Raise EvalError for weights that are not there, or of another shape: transformers draws them at random.

    loading: transformers' `output_loading_info`, in which what is tied to others is not missing.
    """
    if missing := sorted(loading["missing_keys"]):
        raise EvalError(
            f"{name} lacks {listed(missing)}, which would be random numbers: "
            "the checkpoint is not whole, or of another kind than a causal language model"
        )
    if wrong := sorted(loading["mismatched_keys"], key=str):
        shapes = [f"{key} (is {'×'.join(map(str, has))}, not {'×'.join(map(str, wants))})" for key, has, wants in wrong]
        raise EvalError(f"{name} has weights of other shapes than its config.json says: {listed(shapes)}")


def listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
