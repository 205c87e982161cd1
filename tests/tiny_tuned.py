"""Makers for the tests of fine-tuning: a tiny Llama on disk, a text it knows the words of, runs of a second."""

from pathlib import Path

import tiny_llm
import torch
from safetensors.torch import load_file

from lab.config import checked, merged, parsed
from lab.finetune.settings import Finetuning

READS = 64
"""Tokens that the Llama was made for."""


def made(folder: Path) -> Path:
    """The folder with `llama` and `text` in it: 24 documents of 400 words."""
    tiny_llm.llama(folder / "llama", max_position_embeddings=READS)
    (folder / "text").mkdir()
    for n in range(24):
        (folder / "text" / f"{n:02}.txt").write_text(f"{n} {tiny_llm.text(400, seed=n)}")
    return folder


def tuning(folder: Path, *overrides: str) -> Finetuning:
    """6 steps of 2 × 64 tokens on all weights, with the model's own encoding, but for the overrides."""
    values = {
        "folder": str(folder / "runs"),
        "track": "none",
        "data": {
            "source": "text",
            "path": str(folder / "text"),
            "held_out": 0.4,
            "cache": str(folder / "cache"),
        },
        "model": {"name": str(folder / "llama")},
        "train": {"batch": 2, "steps": 6, "warmup": 2, "lr": 1e-3, "log_every": 1, "save_every": 2, "length": READS},
        "eval": {"documents": 3},
    }
    return checked(merged(values, parsed(list(overrides))), Path("tuned.yaml"), kind=Finetuning)


def weights(run: Finetuning) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model" / "model.safetensors")


def equal(a: Finetuning, b: Finetuning) -> bool:
    """Whether two runs have the same weights, bit for bit."""
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
