"""Speed and memory of training on this machine: our decoder beside transformers' Llama of the same size."""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import date
from statistics import median

import torch
from torch import nn

CASES = ("llama", "rope", "alibi", "relative")
"""The first is the one that the others are compared with."""
WIDTH, LAYERS, HEADS, HIDDEN, VOCABULARY = 256, 4, 4, 704, 256


def train_speed(*, batch: int = 8, length: int = 256, rounds: int = 9, steps: int = 3) -> dict:
    """Tokens a second of whole training steps. The cases take turns: a change of the machine's pace hits all.

    batch: sequences.   length: tokens a sequence.   rounds: turns of each case.   steps: in a turn, after one more.
    Returns medians of speeds and of ratios within a round, and each case's peak memory in its own process.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    ids = torch.randint(VOCABULARY, (batch, length), device=device)
    steppers = {case: stepper(case, ids, length) for case in CASES}
    speeds: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case, step in steppers.items():
            step()
            speeds[case].append(steps * ids.numel() / seconds(step, steps))
    memory = {case: peak_memory(case, batch, length) for case in CASES}
    base = CASES[0]
    return {
        "date": date.today().isoformat(),
        "machine": machine(),
        "batch": batch,
        "length": length,
        "cases": {
            case: {
                "tokens_per_s": median(speeds[case]),
                "speed_ratio": median(a / b for a, b in zip(speeds[case], speeds[base], strict=True)),
                "to_rope": median(a / b for a, b in zip(speeds[case], speeds["rope"], strict=True)),
                "peak_mib": memory[case] / 2**20,
                "memory_ratio": memory[case] / memory[base],
            }
            for case in CASES
        },
    }


def model_of(case: str, length: int) -> nn.Module:
    """`llama`, or our decoder with the encoding of that name."""
    if case == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=WIDTH,
                intermediate_size=HIDDEN,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                max_position_embeddings=length,
                tie_word_embeddings=True,
                use_cache=False,
                attn_implementation="sdpa",
            )
        )
    from lab.model import LabConfig, LabModel

    sizes = {"width": WIDTH, "hidden": HIDDEN, "layers": LAYERS, "heads": HEADS}
    return LabModel(LabConfig(vocab_size=VOCABULARY, train_length=length, positional=case, **sizes))


def stepper(case: str, ids: torch.Tensor, length: int):
    """One training step of a case, as a call."""
    model = model_of(case, length).to(ids.device).train()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        adam.step()
        adam.zero_grad()

    return step


def seconds(step, times: int) -> float:
    synchronise()
    begun = time.perf_counter()
    for _ in range(times):
        step()
    synchronise()
    return time.perf_counter() - begun


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory(case: str, batch: int, length: int) -> int:
    """The most bytes held by a process that runs three steps: on the GPU where there is one, else resident."""
    code = f"from lab.bench.train import hold; hold({case!r}, {batch}, {length})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=allocator())
    return int(done.stdout.split()[-1])


def allocator() -> dict[str, str]:
    """An environment in which glibc gives back at once what is freed: figures are then of tensors alone."""
    return {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def hold(case: str, batch: int, length: int) -> None:
    """What `peak_memory` runs. Both models' modules are loaded in every case: the steps alone differ."""
    from transformers import LlamaForCausalLM  # noqa: F401

    import lab.model  # noqa: F401

    device = "cuda" if torch.cuda.is_available() else "cpu"
    step = stepper(case, torch.randint(VOCABULARY, (batch, length), device=device), length)
    for _ in range(3):
        step()
    print(torch.cuda.max_memory_allocated() if device == "cuda" else resident_peak())


def resident_peak() -> int:
    """Bytes. On Linux not from getrusage, whose figure starts with that of the process which started this one."""
    try:
        with open("/proc/self/status") as file:
            return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{cpu()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def show(result: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("training step", "tokens/s", "× llama", "× rope", "peak MiB", "memory × llama")
    for case, one in result["cases"].items():
        numbers = f"{one['tokens_per_s']:,.0f}", f"{one['speed_ratio']:.2f}", f"{one['to_rope']:.2f}"
        table.add_row(case, *numbers, f"{one['peak_mib']:.0f}", f"{one['memory_ratio']:.3f}")
    console = Console()
    console.print(table)
    console.print(f"width {WIDTH}, {LAYERS} layers, batch {result['batch']} × {result['length']}, {result['machine']}")


def write(result: dict | list, path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
