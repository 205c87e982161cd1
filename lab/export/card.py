"""The model card of an exported checkpoint: what was done, what was measured, what loads it, and nothing else."""

import datetime
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from transformers import PreTrainedConfig

import lab
from lab.rope.config import Rotation
from lab.rows import Row
from positional.build import Spec, name_of, parse


def card(config: PreTrainedConfig, wanted: Rotation, target: int, measured: Sequence[Row], why: str) -> str:
    """README.md. measured: losses in nats.   why: transformers cannot say the encoding, or "" where it can."""
    base = base_of(config)
    parts = [
        front(base),
        f"# {base}, extended from {wanted.train_length} to {target} tokens",
        facts(base, wanted, target),
        "## Measured",
        table(measured),
        "## Loading",
        loading(why),
        "## Licence",
        f"That of the base model, {base}; this card changes nothing in it.",
    ]
    return "\n\n".join(parts) + "\n"


def base_of(config: PreTrainedConfig) -> str:
    """The base model's name; of a folder only its own, as where it lay is nobody's business."""
    return Path(config._name_or_path).name if not on_hub(config._name_or_path) else config._name_or_path


def on_hub(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()


def front(base: str) -> str:
    lines = ["library_name: transformers", *([f"base_model: {base}"] if "/" in base else [])]
    return "\n".join(["---", *lines, "---"])


def facts(base: str, wanted: Rotation, target: int) -> str:
    rows = {
        "base model": base or "not named",
        "encoding": f"`{name_of(wanted.spec)}`",
        "options": ", ".join(f"{key} {value}" for key, value in options(wanted.spec)) or "none",
        "trained on": f"{wanted.train_length} tokens",
        "for inputs up to": f"{target} tokens",
        "date": datetime.date.today().isoformat(),
        "made with": f"context-extension-lab {lab_version()}",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def options(spec: Spec) -> list[tuple[str, object]]:
    """Option and value, in the order given; of several encodings all, the kind before the option."""
    if isinstance(spec, list):
        return [(f"{name_of(one)} {key}", value) for one in spec for key, value in options(one)]
    return list(parse(spec)[1].items())


def table(measured: Sequence[Row]) -> str:
    if not measured:
        return "Nothing was measured of this checkpoint when it was written."
    lines = [
        "Loss in nats a token; 95 % intervals.",
        "",
        "| length | encoding | loss | interval |",
        "|---|---|---|---|",
    ]
    for row in sorted(measured, key=lambda row: (row.scheme, row.length)):
        loss = f"{row.value:.4f}" if row.value is not None else f"– ({row.note})" if row.note else "–"
        interval = f"{row.low:.4f} to {row.high:.4f}" if row.low is not None else "–"
        lines.append(f"| {row.length} | {row.scheme} | {loss} | {interval} |")
    return "\n".join(lines)


def loading(why: str) -> str:
    if not why:
        return (
            "`AutoModelForCausalLM.from_pretrained(folder)`: config.json says the encoding, and no code of the lab is "
            "run. It was loaded so in a process of its own, in float32 and bfloat16, and compared with the model that "
            "the lab had: angles, growth of queries and keys, logits. vLLM reads the same fields; that was not tried."
        )
    return (
        f"`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`, with the lab installed: {why}. The "
        "folder's modeling_context_lab.py puts the encoding in with the lab's `adopt`. It was loaded so in a process "
        "of its own, in float32 and bfloat16, and its logits compared with those of the model that the lab had. "
        "Nothing else loads it."
    )


def lab_version() -> str:
    """Version and, where the lab is a git work tree, commit."""
    try:
        number = version("context-extension-lab")
    except PackageNotFoundError:
        number = "not installed"
    root = Path(lab.__file__).parents[1]
    try:
        top, commit = git(root, "rev-parse", "--show-toplevel", "HEAD").split()
        if Path(top) != root.resolve():  # installed inside another project
            return number
        return f"{number}, commit {commit}" + (" and changes to it" if git(root, "status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return number


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout
