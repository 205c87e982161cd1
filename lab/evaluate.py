"""Evaluation of a run: the model as trained, then with each other scheme swapped in, at each length -> rows."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedConfig

from eval.cost import cost, seconds
from eval.perplexity import Measured, losses_of, measure, missing, scorer_for
from eval.plan import STRIDE, Document, Plan
from eval.points import scored_bytes
from eval.protocols import PROTOCOLS
from eval.report import asking, described
from eval.scorer import Budget
from eval.shared import may_share
from eval.store import Store
from lab import LabError
from lab.checkpoint import digest
from lab.cost import size_of
from lab.data import Corpus, corpus, long_documents
from lab.joint import reach_rows
from lab.mixers import beside
from lab.model import LabModel, swap
from lab.outcome import Outcome, blank_row, lengths_of
from lab.progress import Progress, progress
from lab.rows import Row, Rows
from lab.settings import Run
from lab.tasks import Answers, Tasks, share
from positional.build import moved, names_of, sources, with_options


def evaluate(run: Run, accelerator: Accelerator, trained_as: str | None = None, **how: Any) -> Iterator[Row]:
    """Rows of a trained run; each is in the run's rows.jsonl before it is yielded. how: see `outcomes`."""
    came = []
    for outcome in run.subject.outcomes(run, accelerator, trained_as, **how):
        came.append(outcome)
        yield from kept(outcome.rows(run), run, accelerator)
    yield from kept(reach_rows(run.name, came, run.train.length), run, accelerator)


def kept(rows: Iterable[Row], run: Run, accelerator: Accelerator) -> list[Row]:
    """These rows, in the run's rows.jsonl."""
    made = list(rows)
    if accelerator.is_main_process:
        there = Rows(run.path / "rows.jsonl")
        for row in made:
            there.put(row)
    return made


def outcomes(
    run: Run,
    accelerator: Accelerator,
    trained_as: str | None = None,
    say: Callable[[str], None] | None = None,
    dry: bool = False,
) -> Iterator[Outcome]:
    """What comes of the run's own scheme, then of those of `run.eval.swap`, all on the same scored tokens.

    trained_as: what to call the run's own scheme, where its kind would not tell it from another's.
    say: told the plan of each scheme before it runs.   dry: nothing is run after that.
    Raises LabError where the run is not trained, or too few held-out documents are long enough.
    """
    model = trained_model(run)
    with accelerator.main_process_first():
        text = corpus(run.data)
    refuse_other_words(run, model, text.meta["vocab_size"])
    plan = None if run.data.source == "algorithmic" else plan_of(run, text)
    yield from by_scheme(run, accelerator, model, plan, Tasks(run, text, accelerator), trained_as, say, dry)


def by_scheme(
    run: Run,
    accelerator: Accelerator,
    model: LabModel,
    plan: Plan | None,
    tasks: Tasks,
    trained_as: str | None,
    say: Callable[[str], None] | None,
    dry: bool,
) -> Iterator[Outcome]:
    """See `outcomes`.   plan, tasks: what each scheme is measured by."""
    model = model.to(accelerator.device)
    own, trained = model.config.positional, model.scheme
    weights = [digest(run.path / "model" / name) for name in ("model.safetensors", "config.json")]
    specs = [own, *run.eval.swap]
    names = names_of(specs)
    names[0] = trained_as or (names[0] if run.model.mixer == "attention" else beside(run.model.mixer, names[0]))
    total = len(specs) * (1 if plan is None else sum(map(plan.tokens, plan.documents[share(accelerator)])))
    with progress(f"{run.name}: measure", total, show=accelerator.is_main_process and not dry) as bar:
        for spec, name in zip(specs, names, strict=True):
            model.model.scheme = trained  # a swap keeps what the trained scheme learned, not what another swap left
            blank = blank_row(run, name, names[0])
            if name != names[0] and (untrained := swap(model, spec)):
                note = f"needs training: {', '.join(untrained)}"
                yield Outcome(name, names[0], run.seed, None, note, tasks.unmeasured(blank, note))
                continue
            code = [digest(path) for path in sources(spec)]
            said = json.dumps([weights, with_options(spec), code, precision(accelerator)])
            identity = hashlib.sha256(said.encode()).hexdigest()
            with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=precision(accelerator) == "bf16"):
                measured, answers = None, Answers()
                if plan is not None:
                    measured = of_scheme(model, plan, identity, name, run, accelerator, bar, say, dry)
                if say is not None and tasks.asks:
                    said = asking(tasks.tasks, tasks.questions.lengths, tasks.runs(model, identity))
                    say(f"{name}: {said}")
                if not dry:
                    answers = tasks.answers(blank, model, identity)
            if not dry:
                yield Outcome(name, names[0], run.seed, measured, answers=answers)


def plan_of(run: Run, text: Corpus) -> Plan:
    return of_documents(text, lengths_of(run), run.eval.documents, run.eval.protocols, run.eval.stride)


def of_documents(
    text: Corpus, lengths: list[int], count: int, protocols: Sequence[str] = ("equal",), stride: int = STRIDE
) -> Plan:
    """A plan for the first `count` held-out documents that are long enough, cut to what the protocols need."""
    chosen = [PROTOCOLS[name] for name in protocols]
    wanted = max(protocol.needs(max(lengths), stride) for protocol in chosen)
    whole = any(protocol.whole for protocol in chosen)
    found = long_documents(text.held_out, length=wanted, count=count, whole=whole)
    documents = [Document(name, torch.from_numpy(ids), sizes) for name, ids, sizes in found]
    return Plan(documents, lengths, chosen, stride=stride)


def of_scheme(
    model: LabModel,
    plan: Plan,
    identity: str,
    name: str,
    run: Run,
    accelerator: Accelerator,
    bar: Progress,
    say: Callable[[str], None] | None,
    dry: bool,
) -> Measured | None:
    """The losses of the scheme that is in the model now; None where it is only planned."""
    mine, full = share(accelerator), plan
    plan = replace(plan, limit=model.scheme.limit)
    store, budget = Store(run.path / "losses", accelerator.process_index), Budget(run.eval.batch_tokens)
    todo = missing(plan, store, identity)
    shared, why = False, "each length is run by itself: the encoding follows the length that is run"
    if plan.mask is not None:
        why = "each length is run by itself: every token that is read changes every loss"
    elif todo and model.scheme.prefix_consistent:
        shared, why = may_share(model, plan, budget)
    plan = replace(plan, shared=shared)
    if say is not None:
        size = replace(size_of(model), both_ways=plan.mask is not None)
        runs = [run for one in todo for run in plan.runs(*one)]
        say(f"{name}: {described(plan, cost(size, runs, budget), seconds(model, size, runs, budget), why)}")
    if dry:
        return None
    # What is shared is run less: the bar goes on as far for each scheme.
    parts = [sum(map(one.tokens, plan.documents[mine])) for one in (full, plan)]
    return measure(
        model,
        plan,
        store=store,
        identity=identity,
        budget=budget,
        mine=mine,
        meet=accelerator.wait_for_everyone,
        advance=lambda count: bar.advance(count * parts[0] / max(1, parts[1]), name),
    )


def refuse_other_words(run: Run, model: LabModel, count: int) -> None:
    """Raise LabError where the model has not as many tokens as the data."""
    if count != model.config.vocab_size:
        raise LabError(
            f"the data has a vocabulary of {count} and {run.path} one of {model.config.vocab_size}: "
            f"measure it with the tokenizer that it was trained with",
            code=2,
        )


def trained_model(run: Run, kind: type[LabModel] = LabModel) -> LabModel:
    """The model of a run, with its encoding's source as it was trained and not what became of it.

    Raises LabError where there is none, or one of another kind.
    """
    folder = run.path / "model"
    if not (folder / "model.safetensors").exists():
        raise LabError(f"{run.path} holds no trained model: run `lab train` with its configuration first")
    found = PreTrainedConfig.get_config_dict(folder)[0]["model_type"]
    if found != kind.config_class.model_type:
        raise LabError(
            f"{run.path} holds a model of the type {found}, which `lab eval` measures; this takes "
            f"{kind.config_class.model_type}, a model that tells what comes next",
            code=2,
        )
    config = kind.config_class.from_pretrained(folder)
    config.positional = moved(config.positional, run.path)
    return kind.from_pretrained(folder, config=config, trust_remote_code=True).eval()


def held_out(
    model: LabModel, text: Corpus, train_length: int, accelerator: Accelerator, count: int = 8
) -> dict[str, float]:
    """The mean loss at 1, 2 and 4 training lengths, as far as the scheme reads, on the same held-out tokens: in nats a
    token, and in bits a byte where the bytes of tokens are known."""
    lengths = [train_length, 2 * train_length, 4 * train_length]
    return means(model, replace(of_documents(text, lengths, count), limit=model.scheme.limit), accelerator)


def means(model: LabModel, plan: Plan, accelerator: Accelerator) -> dict[str, float]:
    """The mean losses of a plan that has one protocol, made anew, over all processes."""
    budget = Budget(8 * plan.longest)
    mine = plan.documents[share(accelerator)]
    losses, sizes = {}, scored_bytes(plan) if plan.has("equal") else None
    for record in plan.records():
        work = [(document, [record]) for document in mine]
        made = losses_of(scorer_for(model, plan, budget), plan, "", work).values()
        both = torch.tensor([sum(x.sum(dtype="float64") for x in made), sum(map(len, made))], dtype=torch.float64)
        total, tokens_ = accelerator.reduce(both.to(accelerator.device)).tolist()
        losses[f"held_out_{record[1]}"] = total / tokens_
        if sizes is not None:
            losses[f"held_out_{record[1]}_bits_per_byte"] = total / math.log(2) / sizes.sum()
    return losses


def precision(accelerator: Accelerator) -> str:
    """How the model computes here: as accelerate was told for training."""
    return accelerator.mixed_precision if accelerator.mixed_precision == "bf16" else "fp32"
