"""Makers for the end-to-end tests: a corpus of a few kilobytes, runs that train in a second, and `lab` as a process."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch
import yaml
from safetensors.torch import load_file

from lab.config import read
from lab.settings import Run

ROOT = Path(__file__).parents[1]


def corpus(folder: Path, documents: int = 36) -> Path:
    """Documents of 60 to 900 letters over a dozen words: enough is held out, and enough of that is long."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    words = "the of and a model reads on past its length where positions end then far near".split()
    for n in range(documents):
        text = " ".join(draw.choice(words) for _ in range(draw.randrange(12, 180)))
        (folder / f"{n:02}.txt").write_text(f"{n} {text}.\n")
    return folder


def config(folder: Path) -> Path:
    """A YAML file whose run reads `corpus`, trains 12 steps of 4 × 16 bytes and writes below `folder` alone."""
    settings = {
        "name": "tiny",
        "folder": str(folder / "runs"),
        "track": "none",
        "data": {
            "source": "text",
            "path": str(corpus(folder / "text")),
            "held_out": 0.4,
            "cache": str(folder / "cache"),
        },
        "model": {"width": 32, "layers": 2, "heads": 2},
        "train": {"length": 16, "batch": 4, "steps": 12, "warmup": 2, "log_every": 1, "save_every": 4},
        "eval": {"lengths": ["1x", "2x", "4x"], "documents": 3, "batch_tokens": 128},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def tiny(folder: Path, *overrides: str) -> Run:
    """The run of `config`, made where it is not there yet."""
    path = folder / "tiny.yaml"
    return read(path if path.exists() else config(folder), overrides)


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model" / "model.safetensors")


def equal(a: Run, b: Run) -> bool:
    """Whether two runs have the same weights, bit for bit."""
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def logged(run: Run) -> list[dict]:
    """What train.jsonl says but for the speed, which differs from day to day."""
    lines = [json.loads(line) for line in (run.path / "train.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_s"} for line in lines]


def environment(**changes: str | None) -> dict[str, str]:
    """For a process: this one's environment with one thread; None takes a variable out."""
    wanted = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120", **changes}
    return {name: value for name, value in wanted.items() if value is not None}


def command(*words, processes: int = 1) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return [sys.executable, *(launcher if processes > 1 else []), "-m", "lab", *map(str, words)]


def launch(*words, processes: int = 1, **env: str | None) -> subprocess.CompletedProcess:
    """`lab …` to its end, as a shell would run it."""
    return subprocess.run(
        command(*words, processes=processes), cwd=ROOT, env=environment(**env), capture_output=True, text=True
    )


def start(*words, processes: int = 1) -> subprocess.Popen:
    return subprocess.Popen(
        command(*words, processes=processes),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_lines(process: subprocess.Popen, path: Path, lines: int) -> None:
    """Until a growing file has so many lines."""
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, f"ended before {path.name} had {lines} lines: {process.stderr.read()}"
        time.sleep(0.002)


def kill(process: subprocess.Popen) -> None:
    """Kill -9 to a process and all below it; torchrun's workers are in sessions that its own group does not reach."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        member.send_signal(signal.SIGKILL)
    psutil.wait_procs(family[1:])
    process.communicate()
