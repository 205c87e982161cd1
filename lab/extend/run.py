"""Extend a pretrained model without training it: every method measured on the same tokens and questions."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from eval.asked import Questions, Session
from eval.cost import Size, cost, seconds
from eval.entries import Asked
from eval.perplexity import Measured, measure, missing
from eval.plan import Plan
from eval.points import points
from eval.protocols import PROTOCOLS
from eval.report import asking, described
from eval.scorer import Budget
from eval.stats import cautions
from eval.store import Store
from lab import LabError
from lab.adopt import adopt, adopted, release
from lab.extend.longrope_fitness import Effort, searched
from lab.extend.measure import Bench, CutQuestions, bench_of
from lab.extend.methods import SEARCHED, method, reach
from lab.extend.needles import by_depth
from lab.extend.recommend import Curve, judged, said
from lab.extend.settings import Extending
from lab.figure import figures
from lab.progress import progress
from lab.rows import Row, Rows
from lab.settings import tokens
from lab.table import markdown
from positional.build import Spec, with_options

RAW = "raw"
"""What tables call the model as it was loaded."""
CUT = "text cut to {}"
"""What they call it where it sees the last tokens alone, as many as it was trained on."""


@dataclass(frozen=True)
class Tried:
    """One method, and the lengths at which it is measured."""

    name: str
    spec: Spec | None  # None: the model as it is
    lengths: list[int]
    sees: int | None = None  # the last tokens alone; None: all


def tried(asked: Extending, bench: Bench, find: Callable[[], Spec]) -> Iterator[Tried]:
    """The two baselines, then each method at the lengths asked for and the one to reach.

    The model as it is comes first, and is measured at the train length as well.   find: searches longrope's factors.
    """
    L0, to = bench.train_length, bench.to
    lengths = {tokens(one, L0) for one in asked.lengths} or {L0 // 4, L0, *doublings(L0, to)}
    raw = sorted({*lengths, *(tokens(one, L0) for one in asked.raw_lengths), L0, to})
    yield Tried(RAW, None, raw)
    yield Tried(CUT.format(L0), None, [length for length in raw if length > L0], sees=L0)
    for one in asked.methods:
        named = one if isinstance(one, dict) else {one: find() if one == SEARCHED else method(one, L0, to)}
        for name, spec in named.items():
            if (far := reach(spec, L0)) < to:
                raise LabError(f"{name} ({with_options(spec)}) is for {far:g} tokens, and {to} are asked for", code=2)
            yield Tried(name, spec, sorted({*lengths, to}))


def doublings(train_length: int, to: int) -> Iterator[int]:
    length = 2 * train_length
    while length < to:
        yield length
        length *= 2


def extend(asked: Extending, say: Callable[[str], None], dry: bool = False) -> tuple[Bench, list[Tried], list[Row]]:
    """Measure every method that is not measured yet; report.md, rows.jsonl and the figures lie in the bench's folder.

    say: told the plan of each method before it runs.   dry: nothing is run after that.
    Killed at any time, the same call goes on where it was.
    """
    bench = bench_of(asked, say)
    store, rows = Store(bench.folder / "losses"), []
    methods = list(tried(asked, bench, lambda: found(asked, bench, say, dry)))
    for one in methods:  # what cannot be put in is told before anything is measured
        put_in(bench, one)
    total = sum(plan_of(asked, bench, one).tokens(text) for one in methods for text in bench.texts)
    with progress(f"{asked.name}: measure", total, show=not dry) as bar:
        for one in methods:
            put_in(bench, one)
            plan, session = plan_of(asked, bench, one), session_of(asked, bench, one, store)
            say(told(asked, bench, one, plan, session))
            if dry:
                continue
            how = {"store": store, "identity": session.identity, "budget": Budget(asked.batch_tokens)}
            measured = measure(bench.model, plan, advance=lambda n, name=one.name: bar.advance(n, name), **how)
            session.ask(bench.model, prefix_consistent=steady(bench), batch_tokens=asked.batch_tokens)
            rows += list(rows_of(asked, one, measured, session))
            keep(bench.folder, rows)
    release(bench.model)
    if not dry:
        report(bench, methods, rows, asked, store)
    return bench, methods, rows


def found(asked: Extending, bench: Bench, say: Callable[[str], None], dry: bool) -> Spec:
    """The encoding with the fittest factors that a search has found."""
    made = searched(
        bench.model,
        bench.voice,
        identity=bench.identity,
        train_length=bench.train_length,
        to=bench.to,
        folder=bench.folder,
        effort=Effort(**asked.longrope.model_dump()),
        say=say,
        batch_tokens=asked.batch_tokens,
        dry=dry,
    )
    return method("ntk", bench.train_length, bench.to) if made is None else made[0]  # for a plan: it costs as much


def put_in(bench: Bench, one: Tried) -> None:
    release(bench.model)
    if one.spec is not None:
        adopt(bench.model, one.spec, train_length=bench.train_length)


def steady(bench: Bench) -> bool:
    """Whether one reading of a haystack serves all its questions."""
    now = adopted(bench.model)
    return now is None or now.scheme.prefix_consistent


def plan_of(asked: Extending, bench: Bench, one: Tried) -> Plan:
    """The same targets for all: the last `targets` of the first `to` + 1 tokens of each text, after so much context."""
    lengths = sorted({*one.lengths, bench.to}) if one.sees is None else [one.sees, bench.to]
    return Plan(bench.texts, lengths, [PROTOCOLS["suffix"]], one.sees, stride=asked.targets, bos=bench.bos)


def session_of(asked: Extending, bench: Bench, one: Tried, store: Store) -> Session:
    """Needles at each length, but those that are there to tell what a method costs where it is not needed."""
    lengths = [length for length in one.lengths if length >= bench.train_length]
    needles = [Asked("grid", asked.needles.count, asked.needles.depths)] if asked.needles.count else []
    if one.sees is None:
        questions = Questions(needles, lengths, bench.voice)
    else:
        questions = CutQuestions(needles, lengths, bench.voice, one.sees)
    return Session(questions, store, identity_of(bench, one))


def identity_of(bench: Bench, one: Tried) -> str:
    if one.spec is None:
        return bench.identity
    words = json.dumps([bench.identity, bench.train_length, one.spec], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()


def told(asked: Extending, bench: Bench, one: Tried, plan: Plan, session: Session) -> str:
    """What one method will take."""
    budget, size = Budget(asked.batch_tokens), Size.of(bench.model)
    runs = [run for work in missing(plan, session.store, session.identity) for run in plan.runs(*work)]
    took = seconds(bench.model, size, runs, budget)
    text = described(plan, cost(size, runs, budget), took, f"{one.spec or 'as it was loaded'}")
    if session.questions.tasks:
        left = session.runs(session.missing(), steady(bench))
        text += "\n" + asking(session.questions.tasks, session.questions.lengths, left)
    return f"{one.name}: {text}"


def rows_of(asked: Extending, one: Tried, measured: Measured, session: Session) -> Iterator[Row]:
    """Every number of one method. The cut text is at every length what the model is at the length that it sees."""
    for point in (*points(measured), *session.points()):
        row = Row(asked.name, one.name, RAW, 0, **asdict(point))
        if one.sees is None or point.probe != "suffix":
            yield row
        elif point.length == one.sees:
            yield from (replace(row, length=length) for length in one.lengths)


def keep(folder: Path, rows: list[Row]) -> None:
    there = Rows(folder / "rows.jsonl")
    for row in rows:
        there.put(row)


def report(bench: Bench, methods: list[Tried], rows: list[Row], asked: Extending, store: Store) -> None:
    """report.md: tables, needles by depth, a sentence for each method, a recommendation; and a figure of each probe."""
    raw, *others = (
        Curve.of(one.name, one.spec, Measured(plan_of(asked, bench, one), store, identity_of(bench, one)), rows)
        for one in methods
        if one.sees is None
    )
    lines = [*said(raw, judged(raw, others, bench.train_length, bench.to), bench.train_length, bench.to)]
    lines += cautions(len(bench.texts), 3)  # seeds of training there are none
    parts = [markdown(rows, bench.train_length), by_depth(rows, bench.train_length, bench.to)]
    text = "\n".join(part for part in parts if part) + "".join(f"\n{line}  " for line in lines) + "\n"
    (bench.folder / "report.md").write_text(text)
    figures(rows, bench.folder, bench.train_length)
