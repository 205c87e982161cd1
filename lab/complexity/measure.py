"""Time and memory of one layer, forward and with its gradient, at longer and longer inputs; a row for each."""

# B batch, here 1 · n tokens · C width

import copy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from statistics import median

import torch

from lab import LabError
from lab.bench.attention import in_turns
from lab.bench.train import allocator, machine, resident_peak
from lab.complexity.counts import flops
from lab.complexity.layers import Mixing, Sizes, here, names
from lab.complexity.path import between
from lab.fits import GIB, free_bytes

KINDS = "forward", "both"
PATH_TOKENS = 256


class Case:
    """One layer on one input."""

    def __init__(self, name: str, length: int, sizes: Sizes):
        torch.manual_seed(0)
        device, dtype = here()
        self.layer = Mixing(name, sizes).to(device, dtype)
        self.x = torch.randn(1, length, sizes.width, device=device, dtype=dtype, requires_grad=True)

    @torch.no_grad()
    def forward(self) -> None:
        self.layer(self.x)

    def both(self) -> None:
        self.layer(self.x).sum().backward()

    @property
    def calls(self) -> dict:
        return {kind: getattr(self, kind) for kind in KINDS}

    @torch.no_grad()
    def error(self) -> float:
        """The largest difference from the same layer in fp64, attention then on the backend that runs everywhere."""
        exact = copy.deepcopy(self.layer).double()
        if exact.mixer is None:
            exact.layer.attention.backend = "sdpa"
        return (self.layer(self.x).double() - exact(self.x.double())).abs().max().item()


def complexity(lengths: list[int], sizes: Sizes, rounds: int) -> Iterator[dict]:
    """A row for each length and layer, as it is measured.

    Medians of milliseconds over rounds in which the layers take turns; MiB above the weights, in a process of its own;
    FLOPs forward; the largest error against fp64; the path from the first of `PATH_TOKENS` tokens to the last. Where
    there is no value, `note` says why.
    """
    torch.set_flush_denormal(True)
    layers, device = names(sizes), here()[0]
    path = {name: between(name, PATH_TOKENS, sizes) for name in layers}
    unfit = {(name, n): why for name in layers for n in lengths if (why := too_large(name, n, sizes))}
    memory = {name: held(name, [n for n in lengths if (name, n) not in unfit], sizes) for name in layers}
    for n in lengths:
        cases = {name: Case(name, n, sizes) for name in layers if (name, n) not in unfit}
        for name in list(cases):
            if why := fails(cases[name]):
                unfit[name, n] = why
                del cases[name]
        times = in_turns({name: case.calls for name, case in cases.items()}, rounds)
        for name in layers:
            row = {"date": date.today().isoformat(), "machine": machine(), "device": device, "layer": name, "length": n}
            row |= {**asdict(sizes), "flops": flops(name, n, sizes), **path[name]}
            row["note"] = unfit.get((name, n), "")
            if name in cases:
                row |= {f"{kind}_ms": median(times[name][kind]) * 1e3 for kind in KINDS}
                row |= {f"{kind}_mib": of_kind[n] / 2**20 for kind, of_kind in memory[name].items() if n in of_kind}
                row["error"] = cases[name].error()
            yield row


def bytes_for(name: str, n: int, sizes: Sizes) -> float:
    """What a layer holds, roughly and rather too much: some tens of hidden states, and scores where it has all."""
    size = here()[1].itemsize
    scores = 6 * sizes.heads * n * n if name == "attention eager" else 0
    return (scores + 40 * n * sizes.width) * size


def too_large(name: str, n: int, sizes: Sizes) -> str | None:
    """Why a length is not tried: a system that promises more memory than it has would kill the process that asks."""
    needed, free = bytes_for(name, n, sizes), free_bytes(here()[0])
    return None if needed < 0.8 * free else f"takes about {needed / GIB:.1f} GiB, and {free / GIB:.1f} are free"


def fails(case: Case) -> str | None:
    """Why a layer does not run; the first call also warms it up."""
    try:
        case.both()
    except (LabError, RuntimeError) as error:  # CUDA's want of memory is a RuntimeError
        if "memory" not in str(error):
            raise
        return str(error).splitlines()[0]
    return None


def held(name: str, lengths: list[int], sizes: Sizes) -> dict[str, dict[int, int]]:
    """Bytes above the weights by kind and length. A process for each kind: one's peak would hide the other's."""
    found = {}
    for kind in KINDS:
        given = f"{name!r}, {kind!r}, {lengths}, {tuple(asdict(sizes).values())}"
        code = f"from lab.complexity.measure import hold; hold({given})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=allocator())
        if done.returncode > 0:  # below zero: the system took its memory back, and what is printed stands
            raise LabError(f"the memory of {name} could not be measured: {done.stderr.strip().splitlines()[-1]}")
        found[kind] = dict(tuple(map(int, line.split())) for line in done.stdout.splitlines())
    return found


def hold(name: str, kind: str, lengths: list[int], sizes: tuple[int, ...]) -> None:
    """What `held` runs: prints each length, which must grow, and the most bytes held by then."""
    torch.set_flush_denormal(True)
    Case(name, 64, Sizes(*sizes)).calls[kind]()  # threads, kernels and libraries are there before anything is counted
    before = peak()
    for n in lengths:
        Case(name, n, Sizes(*sizes)).calls[kind]()
        print(n, peak() - before, flush=True)


def peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident_peak()
