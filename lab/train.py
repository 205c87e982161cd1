"""Training, top to bottom: a run's settings -> a trained model in its folder, the same whether interrupted or not."""

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from eval.jsonl import append, lines, overwrite
from lab import LabError, checkpoint
from lab.claim import claim, record
from lab.data import Corpus
from lab.mix import Call
from lab.optim import optimizer, rate
from lab.progress import progress, quiet
from lab.settings import Training
from lab.subject import Names, Subject
from lab.track import Track, log_with


def accelerator_for(run: Training) -> Accelerator:
    """The processes and devices at hand, set up as this run wants them. One serves training and evaluation of a run."""
    quiet()
    torch.set_flush_denormal(True)  # weights of far keys underflow; on a CPU each would cost a hundred normal ones
    torch.set_float32_matmul_precision("high")  # TF32 where a GPU multiplies fp32 matrices; nothing on a CPU
    precision = run.train.precision
    if precision == "auto":
        precision = "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "fp32"
    return Accelerator(
        cpu=not torch.cuda.is_available(),  # said aloud: without it, two processes on a CPU would not find each other
        mixed_precision="bf16" if precision == "bf16" else "no",
        gradient_accumulation_steps=run.train.accumulate,
        log_with=log_with(run),
        project_dir=str(run.path),
    )


def train(
    run: Training, accelerator: Accelerator | None = None, track: Track | None = None, subject: Subject | None = None
) -> Path:
    """Train, or go on with, the run in `run.path`; returns the folder of the model.

    subject: what is trained; default: what the settings are of.
    Raises LabError for a folder of another run, a batch that cannot be shared out, a loss that is not finite, a full
    disk, or after a signal, when all is saved.
    """
    final = run.path / "model"
    claim(run)
    if final.exists():
        return final
    accelerator = accelerator or accelerator_for(run)
    subject = subject or run.subject
    subject.refuse(run, accelerator.num_processes)
    with accelerator.main_process_first():
        text = subject.text(run)
    model = subject.model(run, text, accelerator)
    record(run, text, accelerator)
    model, adam = accelerator.prepare(model, optimizer(model, run.train))
    step = checkpoint.restore(accelerator, run.path / "checkpoints")
    curves = track or Track(run, accelerator)
    curves.facts |= {"data": text.meta}
    steps(run, accelerator, subject, model, adam, text, curves, step)
    if track is None:
        curves.close()
    subject.save(run, accelerator, model)
    return final


def steps(
    run: Training, accelerator: Accelerator, subject: Subject, model, adam, text: Corpus, track: Track, step: int
) -> None:
    """The loop: from `step` to the last, saving on the way."""
    main, settings = accelerator.is_main_process, run.train
    log, saved = run.path / "train.jsonl", step
    drawn = subject.batches(run, text, accelerator.num_processes * settings.accumulate)
    total, tokens = settings.steps, subject.tokens(run)

    def noted(metrics: dict[str, float]) -> None:
        if main:
            append(log, [{"step": step, **metrics}])
            track.train(step, metrics)

    def held_out() -> dict[str, float]:
        model.eval()
        losses = subject.held_out(run, accelerator, model, text)
        model.train()
        return losses

    if main:
        forget_after(log, step)
    model.train()
    if subject.around and step == 0:
        noted(held_out())
    begun, since = time.perf_counter(), step
    with interruptible() as signalled, progress(run.name, total, done=step, show=main) as bar:
        while step < total:
            lr = rate(step, settings)
            call, names = drawn(step)
            count = int((call[subject.targets] >= 0).sum())
            loss, norm = one_step(run, accelerator, model, adam, call, names, count, step, lr, saved)
            step += 1
            speed = tokens * (step - since) / (time.perf_counter() - begun)
            bar.advance(1, f"loss {loss:.3f} · {speed:,.0f} tokens/s")
            metrics = {"loss": loss, "lr": lr, "grad_norm": norm, "tokens": tokens * step, "tokens_per_s": speed}
            if (settings.eval_every and step % settings.eval_every == 0) or (subject.around and step == total):
                metrics |= held_out()
            if step % settings.log_every == 0 or step == total:
                noted(metrics)
            stop = any_process(accelerator, bool(signalled))
            if stop or step % settings.save_every == 0 or step == total:
                checkpoint.save(accelerator, run.path / "checkpoints", step, settings.keep)
                saved = step
            if stop and step < total:
                raise LabError(
                    f"{run.name}: stopped at step {step} of {total}, saved; the same command goes on from there"
                )


def one_step(
    run, accelerator, model, adam, call: Call, names: Names, targets: int, step: int, lr: float, saved: int
) -> tuple[float, float]:
    """One update; returns the mean loss over all processes and the norm of the gradient before clipping.

    targets: how many tokens of the whole batch are to be predicted.
    """
    settings, world = run.train, accelerator.num_processes
    # Of the whole batch: processes and parts, whose mean is taken below, may have different numbers of targets.
    count = targets / (world * settings.accumulate)
    mine = slice(accelerator.process_index, None, world)
    parts = in_parts({name: x[mine] for name, x in call.items()}, settings.accumulate, accelerator.device)
    for group in adam.param_groups:
        group["lr"] = lr
    total = torch.zeros((), device=accelerator.device)
    # What an encoding draws (see Scheme.place) follows from the step alone, whatever was drawn before it.
    torch.manual_seed(np.random.SeedSequence([run.seed, step, accelerator.process_index]).generate_state(1).item())
    for part in parts:
        with accelerator.accumulate(model):
            loss = model(**part, num_items_in_batch=count).loss
            accelerator.backward(loss)
            total += loss.detach() / len(parts)
            if accelerator.sync_gradients:
                mean = float(accelerator.reduce(total, "mean"))
                norm = float(accelerator.clip_grad_norm_(model.parameters(), settings.clip))
                # Before the update, which would spoil the weights.
                if not (math.isfinite(mean) and math.isfinite(norm)):
                    raise LabError(not_finite(run, step, mean, norm, names(mine), saved))
            adam.step()
            adam.zero_grad()
    return mean, norm


def in_parts(call: dict[str, np.ndarray], parts: int, device: torch.device) -> list[dict[str, Tensor]]:
    """A call's (B, T) arrays as `parts` calls, each with as many rows, on the device."""
    chunks = [torch.from_numpy(x).to(device).chunk(parts) for x in call.values()]
    return [dict(zip(call, chunk, strict=True)) for chunk in zip(*chunks, strict=True)]


def not_finite(run: Training, step: int, loss: float, norm: float, documents: list[str], saved: int) -> str:
    good = f"the checkpoint of step {saved} in {run.path / 'checkpoints'} stands" if saved else "nothing is saved yet"
    shown = ", ".join(documents[:8]) + (" …" if len(documents) > 8 else "")
    norms = ", or set model.qk_norm=true" if hasattr(run.model, "qk_norm") else ""
    return (
        f"{run.name}: step {step + 1} has loss {loss} and gradient norm {norm}; {good}.\n"
        f"  Its batch came from {shown}.\n"
        f"  Under a new name: lower train.lr, raise train.warmup{norms}."
    )


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C are noted in the list, to be acted on between two steps; a second one acts at once."""
    noted: list[int] = []

    def note(number: int, frame) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def any_process(accelerator: Accelerator, mine: bool) -> bool:
    """Whether any process says so: all stop after the same step or none does."""
    if accelerator.num_processes == 1:
        return mine
    flag: Tensor = accelerator.reduce(torch.tensor(float(mine), device=accelerator.device))
    return bool(flag > 0)


def forget_after(log: Path, step: int) -> None:
    """Take out what a lost stretch of training logged after the checkpoint; it will be logged again, the same."""
    kept = [line for line in lines(log) if line["step"] <= step] if step else []
    overwrite(log, "".join(json.dumps(line) + "\n" for line in kept))
