"""A checkpoint, loaded in a process of its own, against what the model computed that it was made of.

Run as `python -m lab.export.verify FOLDER REFERENCE [--code]`; prints what differs, as a list in JSON. It imports
nothing of the lab that could make up for what the checkpoint lacks; with --code the checkpoint itself may.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor

import lab
from eval.cap import keep_cap
from lab import LabError
from lab.rope.modules import rotary_modules, turns

if TYPE_CHECKING:
    from lab.export.reference import Reference

SAME_ANGLE = 1e-6
"""Relative difference of fp32 angles that are the same."""
SAME_LOGITS = (1e-5, 1e-7)
"""Difference of fp32 logits that are the same, of their own spread: at all, and for each token of the input, as
transformers' angles are fp32 and those of the lab were not until the end."""
ROUNDING = 3
"""How far apart logits may be in half precision, in differences that rounding made to the model itself."""


def differences(folder: Path, reference: "Reference", *, code: bool) -> list[str]:
    """What differs, as a fresh process finds it. Raises LabError where it does not come to an end."""
    root = str(Path(lab.__file__).parents[1])
    with tempfile.TemporaryDirectory() as place:
        written = Path(place, "reference.safetensors")
        reference.write(written)
        # What transformers copies of the checkpoint's code goes with the rest.
        env = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        env |= {"HF_MODULES_CACHE": place, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "lab.export.verify", str(folder), str(written), *["--code"][: int(code)]]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise LabError(f"the exported checkpoint could not be loaded again: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(folder: str, written: str, *code: str) -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    print(json.dumps(compared(Path(folder), Path(written), code=bool(code))))


def compared(folder: Path, written: Path, *, code: bool) -> list[str]:
    """What differs, as this process finds it."""
    with safe_open(written, "pt") as file:
        known = {name: file.get_tensor(name) for name in file.keys()}
        growth = {int(length): value for length, value in json.loads(file.metadata()["growth"]).items()}
    return [line for dtype in ("float32", "bfloat16") for line in of_dtype(folder, dtype, known, growth, code)]


def of_dtype(folder: Path, dtype: str, known: dict[str, Tensor], growth: dict[int, float], code: bool) -> Iterator[str]:
    """What differs when the checkpoint is loaded in this precision."""
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, use_safetensors=True, trust_remote_code=code, output_loading_info=True
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading[what]:
            yield f"{dtype}: {what.replace('_', ' ')}: {', '.join(sorted(map(str, loading[what])))}"
    yield from of_logits(keep_cap(model).eval(), dtype, known)
    yield from of_angles(model, dtype, known, growth)


@torch.no_grad()
def of_logits(model, dtype: str, known: dict[str, Tensor]) -> Iterator[str]:
    for name in ("short", "long"):  # in this order: transformers' dynamic NTK remembers the longest
        ids, exact, wanted = known[f"ids {name}"], known[f"logits float32 {name}"], known[f"logits {dtype} {name}"]
        got = model(input_ids=ids, use_cache=False, logits_to_keep=len(wanted)).logits[0].float()
        spread, away = exact.std().item(), rms(got - wanted)
        at_all, a_token = SAME_LOGITS
        allowed = (at_all + a_token * ids.shape[1]) * spread + ROUNDING * rms(wanted - exact)  # the latter is 0 in fp32
        if not away <= allowed:
            yield (
                f"{dtype}: logits of {ids.shape[1]} tokens are {away / spread:.2g} of their spread away, "
                f"and {allowed / spread:.2g} would be the same model"
            )


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def of_angles(model, dtype: str, known: dict[str, Tensor], growth: dict[int, float]) -> Iterator[str]:
    """Of the modules that turn the layers which see the whole input."""
    for name, module, types in rotary_modules(model) if growth else ():
        main = "full_attention" if "full_attention" in types else types[0]
        for length, grown in sorted(growth.items()):  # upwards, for the same reason
            angles, scaling = turns(module, main, length)
            wanted = known[f"angles {length}"].to(torch.float64)
            if angles.dtype != torch.float32:
                yield f"{dtype}: {name} holds its angles in {angles.dtype}, which rounds them"
            if angles.shape != wanted.shape:
                yield f"{dtype}: {name} turns {len(angles)} lanes, and {len(wanted)} were measured"
            elif not torch.allclose(angles.double(), wanted, rtol=SAME_ANGLE, atol=0):
                worst = ((angles - wanted).abs() / wanted.abs().clamp(min=1e-30)).max()
                yield f"{dtype}: {name} turns by other angles at {length} tokens, by up to {worst:.2g} of them"
            if abs(scaling / grown - 1) > SAME_ANGLE:
                yield f"{dtype}: {name} grows queries and keys by {scaling:.6g} at {length} tokens, not by {grown:.6g}"


if __name__ == "__main__":
    main(*sys.argv[1:])
