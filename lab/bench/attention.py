"""Speed, memory and error of attention on this machine: each scheme on each backend that runs it, by length."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from statistics import median

import torch
from torch import Tensor, nn

from lab.attention import attend_parts, obstacle, order
from lab.bench.train import allocator, machine, resident_peak, synchronise
from positional import Positions, Scheme, Scores, Shape, build

SCHEMES = {
    "causal": "nope",
    "alibi": "alibi",
    "relative": "relative",
    "window": {"kind": "window", "window": 512},
    "window + sinks": {"kind": "window", "window": 512, "sinks": 4},
    "self-extend": {"kind": "self-extend", "group": 8, "window": 256},
}
"""The first, on the first backend that runs it, is what the others are compared with."""

DENSE = 4096
"""Tokens from which on eager is left out: it would be measured by its T×T matrix alone."""


def attention_speed(lengths: list[int], *, heads: int = 4, size: int = 64, rounds: int = 5) -> Iterator[dict]:
    """A row for each length, scheme and backend, as it is measured.

    Medians over `rounds` of milliseconds forward and forward + backward, and of their ratios to plain causal attention
    in the same round; MiB that a process of its own takes above the tensors; the largest error against fp64.
    """
    torch.set_flush_denormal(True)
    for length in lengths:
        cases = {(name, backend): case for name, backend, case in runnable(length, heads, size)}
        plain = next(iter(cases))
        times = in_turns({key: case.calls for key, case in cases.items()}, rounds)
        for key, case in cases.items():
            row = {"date": date.today().isoformat(), "machine": machine(), "length": length, "scheme": key[0]}
            row |= {"backend": key[1], "heads": heads, "head_size": size, "error": case.error()}
            for kind in case.calls:
                row[f"{kind}_ms"] = median(times[key][kind]) * 1e3
                ratios = zip(times[key][kind], times[plain][kind], strict=True)
                row[f"{kind}_ratio"] = median(mine / its for mine, its in ratios)
            yield row | memory(*key, length, heads, size, case.gradient)


class Case:
    """One scheme on one backend: the call, alone and with its gradient."""

    def __init__(self, scheme: Scheme, backend: str, length: int, heads: int, size: int, gradient: bool = True):
        torch.manual_seed(0)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        draw = [
            torch.randn(1, heads, length, size, device=device, dtype=dtype, requires_grad=gradient) for _ in range(3)
        ]
        self.q, self.k, self.v = draw
        self.scheme = scheme.to(device).requires_grad_(gradient)
        self.backend, self.length, self.gradient = backend, length, gradient
        self.hidden = torch.randn(1, length, scheme.shape.width, device=device, dtype=dtype) if scheme.notes else None

    def positions(self, queries: int | None = None) -> Positions:
        """With what the scheme notes of the tokens, all of which a layer would have read by now."""
        pos = Positions.first(self.length, queries=queries, device=self.q.device)
        return replace(pos, notes=self.scheme.note(self.hidden, pos)) if self.scheme.notes else pos

    def call(self) -> Tensor:
        pos = self.positions()
        return attend_parts(self.scheme.parts(self.q, self.k, pos), self.v, pos, self.backend)

    @torch.no_grad()
    def forward(self) -> None:
        self.call()

    def backward(self) -> None:
        self.call().sum().backward()

    @property
    def calls(self) -> dict[str, Callable[[], None]]:
        return {"forward": self.forward, "both": self.backward} if self.gradient else {"forward": self.forward}

    def hindered(self) -> bool:
        """Whether the backend cannot run some part of this."""
        pos = self.positions()
        parts = self.scheme.parts(self.q, self.k, pos)
        return any(obstacle(self.backend, scores, q, k, pos, len(parts) > 1) for q, k, scores in parts)

    @torch.no_grad()
    def error(self, queries: int = 32) -> float:
        """The largest difference from the definition in fp64, over the last queries."""
        pos = self.positions(queries)
        q, k, v = (x.double() for x in (self.q[:, :, -queries:], self.k, self.v))
        exact = attend_parts(self.scheme.parts(q, k, pos), v, pos, "eager")
        return (self.call()[:, :, -queries:].double() - exact).abs().max().item()


def scheme_of(name: str, length: int, heads: int, size: int) -> Scheme:
    scheme = build(SCHEMES[name], Shape(heads * size, heads, heads, 1, max(length // 4, 256)))
    for parameter in scheme.parameters():
        nn.init.normal_(parameter, std=0.5)
    return scheme


def runnable(length: int, heads: int, size: int) -> Iterator[tuple[str, str, Case]]:
    """The pairs of scheme and backend that run here, with a gradient if they can; backends as `auto` would try them."""
    here = Case(scheme_of("causal", 64, heads, size), "eager", 64, heads, size)
    for name in SCHEMES:
        for backend in order(Scores(), here.q, Positions.first(64)):
            if backend == "eager" and length >= DENSE:
                continue
            for gradient in (True, False):
                case = Case(scheme_of(name, length, heads, size), backend, length, heads, size, gradient)
                if not case.hindered():
                    yield name, backend, case
                    break


def in_turns(cases: dict, rounds: int) -> dict:
    """Seconds of each call of each case, a round of all after the other: a change of the machine's pace hits all."""
    times = {key: {kind: [] for kind in calls} for key, calls in cases.items()}
    for turn in range(rounds + 1):
        for key, calls in cases.items():
            for kind, call in calls.items():
                synchronise()
                begun = time.perf_counter()
                call()
                synchronise()
                if turn:  # the first is to warm up
                    times[key][kind].append(time.perf_counter() - begun)
    return times


def memory(name: str, backend: str, length: int, heads: int, size: int, gradient: bool) -> dict[str, float]:
    """MiB above the tensors, forward and forward + backward, in a process that does nothing else."""
    code = f"from lab.bench.attention import hold; hold({name!r}, {backend!r}, {length}, {heads}, {size}, {gradient})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=allocator())
    kinds = ("forward_mib", "both_mib") if gradient else ("forward_mib",)
    return {kind: int(held) / 2**20 for kind, held in zip(kinds, done.stdout.split()[-2:], strict=False)}


def hold(name: str, backend: str, length: int, heads: int, size: int, gradient: bool) -> None:
    """What `memory` runs: prints the bytes above those of the inputs, forward and, if there is one, backward."""
    torch.set_flush_denormal(True)
    few = Case(scheme_of(name, 64, heads, size), backend, 64, heads, size, gradient)
    list(call() for call in few.calls.values())  # threads, kernels and libraries are there before anything is counted
    case = Case(scheme_of(name, length, heads, size), backend, length, heads, size, gradient)
    before, held = peak(), []
    for call in case.calls.values():
        call()
        held.append(peak() - before)
    print(*held)


def peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident_peak()


FORMS = {"ms": ".1f", "ratio": ".2f", "mib": ".0f"}


def show(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("tokens", "scheme", "backend", "forward", "×", "MiB", "+ back", "×", "MiB", "error", padding=0)
    for row in rows:
        kinds = [(kind, unit, form) for kind in ("forward", "both") for unit, form in FORMS.items()]
        cells = [format(row[f"{kind}_{unit}"], form) if f"{kind}_{unit}" in row else "–" for kind, unit, form in kinds]
        table.add_row(str(row["length"]), row["scheme"], row["backend"], *cells, f"{row['error']:.0e}")
    console = Console()
    console.print(table)
    if rows:
        console.print("milliseconds, × plain causal attention at this length, MiB above the tensors")
        console.print(f"{rows[0]['heads']} heads of {rows[0]['head_size']}, batch 1, {rows[0]['machine']}")


def read_lengths(text: str) -> list[int]:
    from lab.settings import tokens

    return [tokens(one.strip(), 1) for one in text.split(",")]
