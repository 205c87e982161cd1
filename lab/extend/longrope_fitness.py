"""LongRoPE's fitness: what the values of needles cost a model whose lanes slow down by given factors (LongRoPE2)."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from eval.asked import runs_of
from eval.cost import Size, seconds
from eval.grid import grid, haystacks
from eval.report import duration
from eval.scorer import Budget
from eval.store import Store
from eval.tasks import seed_of
from eval.voice import Voice
from lab.adopt import adopt, base_of, release
from lab.extend.longrope import Evaluated, Found, check, done, search
from lab.extend.longrope_factors import Space
from lab.progress import progress
from lab.rope.config import described
from positional import Shape, build
from positional.build import Spec


@dataclass(frozen=True)
class Effort:
    """How much is searched: so many lists of factors, each by `needles` questions in each of so many haystacks."""

    budget: int = 200
    haystacks: int = 3
    needles: int = 5
    seed: int = 0


class Needles:
    """Factors -> mean nats a token of the values of needles, asked for at the end of haystacks of `to` tokens.

    Only these tokens need what is far away: the loss of a text as a whole hardly tells good factors from bad ones.
    The haystacks depend on the seed alone, and are none of those that models are measured by. A list of factors that
    the store knows is not measured again.
    identity: what names model and weights.   train_length, to: tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        identity: str,
        train_length: int,
        to: int,
        voice: Voice,
        store: Store,
        effort: Effort,
        batch_tokens: int = 16384,
    ):
        self.model, self.train_length, self.to = model, train_length, to
        self.store, self.batch_tokens = store, batch_tokens
        depths = np.linspace(0, 1, effort.needles).tolist()
        mine = seed_of("longrope", effort.seed)
        self.stacks = haystacks([to], depths, voice=voice, count=effort.haystacks, seed=mine)
        said = hashlib.sha256(json.dumps([identity, train_length]).encode())
        for sample in (sample for stack in self.stacks for sample in stack.samples):
            said.update(sample.ids.tobytes() + json.dumps(sample.answers).encode())
        self.digest = said.hexdigest()

    def spec(self, factors: list[float]) -> Spec:
        """LongRoPE with these factors at every length; what it grows queries and keys by is the paper's."""
        short = [1.0] * len(factors)
        factor = self.to / self.train_length
        return {"kind": "rope-longrope", "short": short, "long": factors, "factor": factor, "switch": "target"}

    def __call__(self, factors: list[float]) -> float:
        spec = self.spec(factors)
        key = hashlib.sha256(json.dumps([self.digest, spec], sort_keys=True).encode()).hexdigest()[:32]
        kept = self.store.get(key)
        if kept is None:
            self.store.put({key: self.measured(spec)})
            kept = self.store.get(key)
        nats, tokens = kept.reshape(-1, 2).sum(0, dtype=np.float64)
        return float(nats / tokens)

    def measured(self, spec: Spec) -> np.ndarray:
        """Of each answer, its nats and its tokens, one after the other."""
        adopt(self.model, spec, train_length=self.train_length)
        try:
            found = grid(self.model, self.stacks, batch_tokens=self.batch_tokens)
            return np.array([[one.nats, len(one.right)] for one in found], np.float32).ravel()
        finally:
            release(self.model)

    def told(self, effort: Effort, before: int) -> str:
        """What is still to come.   before: how many lists are measured already."""
        runs = [run for stack in self.stacks for run in runs_of(stack, prefix_consistent=True)]
        left, tokens = effort.budget - before, sum(run.length for run in runs)
        said = (
            f"longrope: {effort.budget} lists of factors, each by {effort.needles} needles in each of "
            f"{effort.haystacks} haystacks of {self.to} tokens"
        )
        if left <= 0:
            return f"{said}: all are measured"
        took = left * seconds(self.model, Size.of(self.model), runs, Budget(self.batch_tokens))
        known = f", {before} of them measured before" if before else ""
        return f"{said}{known}: {left * tokens:,} tokens run, about {duration(took)} (an estimate)"


def searched(
    model: PreTrainedModel,
    voice: Voice,
    *,
    identity: str,
    train_length: int,
    to: int,
    folder: Path,
    effort: Effort,
    say: Callable[[str], None],
    batch_tokens: int = 16384,
    dry: bool = False,
) -> tuple[Spec, Found] | None:
    """The encoding with the fittest factors that were found, and all that were tried; the model is as it was loaded.

    Afterwards `folder` holds longrope-TO.jsonl, every list in order, by which the same call continues after a crash;
    and what each costs in longrope/, by which other searches are spared what was measured.
    dry: nothing is run, and None returned, once `say` is told the plan.
    Raises LabError where `to` is within the train length, the budget is too small, or the file is of another search.
    """
    release(model)
    own = described(model.config)
    rotation = own.rotations[own.main]
    base, shape = base_of(rotation, model), replace(rotation.shape, train_length=train_length)
    space = space_of(shape, base, to / train_length)
    start = started(space, shape, base, to)
    check(effort.budget, start)
    store, path = Store(folder / "longrope"), folder / f"longrope-{to}.jsonl"
    fitness = Needles(model, identity, train_length, to, voice, store, effort, batch_tokens)
    before = min(done(path), effort.budget)
    say(fitness.told(effort, before))
    if dry:
        return None
    with told_of(effort.budget, before) as advance:
        found = search(
            space,
            start,
            fitness,
            budget=effort.budget,
            path=path,
            seed=effort.seed,
            about={"model": identity, "train length": train_length, "haystacks": fitness.digest},
            advance=advance,
        )
    return fitness.spec(found.best.factors), found


def space_of(shape: Shape, base: float, factor: float) -> Space:
    """Lane i turns once in 2π · base^(2i/D) tokens: the critical one is the first that takes more than L0."""
    lanes = shape.head_dim // 2
    whole = lanes * math.log(shape.train_length / (2 * math.pi)) / math.log(base)
    return Space(lanes, factor, math.floor(whole) + 1)


def started(space: Space, shape: Shape, base: float, to: int) -> dict[str, list[float]]:
    """By how much the published methods slow each lane down, and where LongRoPE2 begins. All are tried with LongRoPE's
    growth of queries and keys, which linear and NTK do without and YaRN has a larger one for."""
    plain = build({"kind": "rope", "base": base}, shape).frequencies(to)
    kinds = {"linear": "rope-linear", "ntk": "rope-ntk", "yarn": "rope-yarn"}
    specs = {name: {"kind": kind, "factor": space.factor, "base": base} for name, kind in kinds.items()}
    published = {name: (plain / build(spec, shape).frequencies(to)).tolist() for name, spec in specs.items()}
    return published | {"critical": list(space.plain().factors)}


@contextmanager
def told_of(budget: int, before: int) -> Iterator[Callable[[Evaluated, float], None]]:
    """A bar of so many evaluations."""
    with progress("longrope: search", budget, done=before) as bar:
        yield lambda one, least: bar.advance(1, f"{one.cost:.3f} nats, least {least:.3f}")
