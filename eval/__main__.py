"""python -m eval MODEL --lengths 1k,2k,4k --data books/*.txt: any Hugging Face causal LM, read further and further."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from eval import EvalError
from eval.asked import Questions, Session, Todo, retention, samples_of
from eval.cost import Size, cost, seconds
from eval.draw import figures
from eval.entries import Asked
from eval.jsonl import overwrite
from eval.load import begins_with, identity_of, limit_of, load
from eval.perplexity import Measured, measure, missing
from eval.plan import Document, Plan
from eval.points import on_key_tokens, points
from eval.protocols import PROTOCOLS
from eval.report import asking, by_ruler, described, tables
from eval.scorer import Budget
from eval.shared import may_share, prefix_consistent
from eval.stats import cautions
from eval.store import Store
from eval.tasks import TASKS
from eval.texts import long_enough, read, refuse_missing
from eval.voice import voice_of


def main() -> int:
    """Exit codes: 0; 1 for a measurement that failed; 2 for a call that cannot be carried out as written."""
    try:
        run(arguments().parse_args())
    except (EvalError, OSError) as error:
        print(f"eval: {error}", file=sys.stderr)
        return getattr(error, "code", 1)
    except KeyboardInterrupt:
        print("eval: interrupted; the same command goes on from what is saved", file=sys.stderr)
        return 1
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m eval", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a folder, a name on the hub, or a .gguf file")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that the model brings along; read it first"
    )
    parser.add_argument("--lengths", type=lengths, required=True, metavar="1k,2k,4k", help="context lengths in tokens")
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="text files, one document each; or .jsonl")
    parser.add_argument("--column", default="text", help="of a .jsonl (default: text)")
    parser.add_argument("--documents", type=positive, default=32, help="how many at most (default: 32)")
    known = ", ".join(PROTOCOLS)
    parser.add_argument("--protocols", type=protocols, default="equal,position", help=f"of {known}")
    parser.add_argument("--whole", action="store_true", help="equal and suffix: read documents to their end")
    parser.add_argument(
        "--tasks", type=tasks, default=[], metavar="passkey,grid", help=f"questions: grid, {', '.join(TASKS)}"
    )
    parser.add_argument("--count", type=positive, default=100, help="samples of a task at each length (default: 100)")
    parser.add_argument("--depths", type=several, default=11, help="of the needles of a grid (default: 11)")
    parser.add_argument(
        "--train-length",
        type=positive,
        help="what answers at other lengths are compared to (default: the model's, if among the lengths; the shortest)",
    )
    parser.add_argument(
        "--reference", type=Path, help="the --out of another model on the same texts: whose key tokens to score"
    )
    parser.add_argument("--stride", type=positive, default=256, help="of suffix, hf-stride, longlora-all (256)")
    parser.add_argument(
        "--bos", choices=("auto", "yes", "no"), default="auto", help="begin each window with that token"
    )
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-tokens", type=positive, default=16384, help="of a forward pass (default: 16384)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/eval"), help="losses, rows and figures (default: runs/eval)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be run and what it costs, and stop")
    return parser


def lengths(text: str) -> list[int]:
    found = set()
    for word in text.split(","):
        number, unit = (word[:-1], 1024) if word[-1:].lower() == "k" else (word, 1)
        if not number.isdigit() or not int(number) or int(number) * unit % 2:
            raise argparse.ArgumentTypeError(f"{word!r} is no even number of tokens: write 512,1k,2k")
        found.add(int(number) * unit)
    return sorted(found)


def positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def several(text: str) -> int:
    if positive(text) < 2:
        raise argparse.ArgumentTypeError("1 depth is no grid: 2 or more")
    return int(text)


def tasks(text: str) -> list[str]:
    for word in text.split(","):
        if word not in ("grid", *TASKS):
            raise argparse.ArgumentTypeError(f"no task {word!r}; there are grid, {', '.join(TASKS)}")
    return list(dict.fromkeys(text.split(",")))


def protocols(text: str) -> list[str]:
    for word in text.split(","):
        if word not in PROTOCOLS:
            raise argparse.ArgumentTypeError(f"no protocol {word!r}; there are {', '.join(PROTOCOLS)}")
    return text.split(",")


def run(asked: argparse.Namespace) -> None:
    disable_progress_bar()
    refuse_missing(asked.data)
    if asked.out.exists() and not asked.out.is_dir():
        raise EvalError(f"--out {asked.out} is a file: give a folder", code=2)
    model, tokenizer = load(asked.model, asked.dtype, asked.device, remote_code=asked.trust_remote_code)
    bos = begins_with(asked.bos, model, tokenizer, say)
    chosen = [PROTOCOLS[name] for name in asked.protocols]
    if asked.whole:
        chosen = [replace(one, whole=True) for one in chosen]
    needed = max(protocol.needs(max(asked.lengths), asked.stride) for protocol in chosen)
    documents = long_enough(read(asked.data, asked.column), tokenizer, bos, needed, asked.documents, say)
    for caution in cautions(len(documents), 3):
        say(caution)
    plan = Plan(documents, asked.lengths, chosen, limit_of(model), stride=asked.stride, bos=bos)
    against = train_length(asked, plan, model)
    budget, store, identity = Budget(asked.batch_tokens), Store(asked.out / "losses"), identity_of(model)
    session = Session(questions(asked, documents, tokenizer, bos), store, identity, plan.limit)
    reference = None if asked.reference is None else of_another(asked.reference, plan)
    if reference is not None and reference.identity == identity:
        say("the reference is this model: tokens that it chooses itself flatter it")
    if store.names.get(asked.model, identity) != identity:
        say(f"{asked.model} is not what it was when it was last measured here: measuring it again")
    todo, unanswered = missing(plan, store, identity), session.missing()
    shared, why = may_share(model, plan, budget) if todo else (False, "")
    plan = replace(plan, shared=shared)
    steady = reads_on(model, session, unanswered, budget)
    size, runs = Size.of(model), [run for one in todo for run in plan.runs(*one)]
    say(described(plan, cost(size, runs, budget), seconds(model, size, runs, budget), why))
    if asked.tasks:
        say(asking(session.questions.tasks, plan.reachable, session.runs(unanswered, steady)))
    if asked.dry_run:
        return
    store.name(asked.model, identity)
    losses = measured(model, plan, store, identity, budget)
    answer(model, session, steady, asked.batch_tokens)
    report(losses, session, reference, against, asked.out)


def train_length(asked: argparse.Namespace, plan: Plan, model) -> int:
    """What answers are compared to: as asked for, the model's own where it is measured, or the shortest.

    Raises EvalError where that was asked for and is not measured.
    """
    if asked.train_length is None:
        own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return own if own in plan.reachable else plan.lengths[0]
    if asked.train_length not in plan.reachable:
        raise EvalError(f"--train-length {asked.train_length} is not measured: add it to --lengths")
    return asked.train_length


def questions(asked: argparse.Namespace, documents: list[Document], tokenizer, bos: int | None) -> Questions:
    how = {"count": asked.count, "depths": asked.depths}
    voice = voice_of(documents, tokenizer, bos) if asked.tasks else None
    return Questions([Asked(name, **how) for name in asked.tasks], asked.lengths, voice)


def of_another(folder: Path, plan: Plan) -> Measured:
    """What another model lost on the same tokens at the shortest and the longest length. Raises EvalError where it was
    not measured on them."""
    store = Store(folder / "losses")
    if not store.names:
        raise EvalError(f"--reference {folder} holds no losses: give the --out of another model's measurement")
    equal = [one for one in plan.protocols if one.name == "equal"]
    ends = replace(plan, protocols=equal, lengths=[plan.lengths[0], plan.longest], limit=None)
    if not equal or len(ends.lengths) < 2:
        raise EvalError("--reference needs the protocol equal, and two lengths")
    fitting = [identity for identity in dict.fromkeys(store.names.values()) if not missing(ends, store, identity)]
    if len(fitting) > 1:
        raise EvalError(
            f"--reference {folder} holds several models measured on these texts: give a folder that has one"
        )
    if not fitting:
        raise EvalError(
            f"--reference {folder} has no losses of these tokens at {ends.lengths[0]} and {plan.longest}: measure that "
            "model first, with the same --data, --lengths, --documents, --whole and --bos, and the same tokenizer"
        )
    return Measured(ends, store, fitting[0])


def measured(model, plan: Plan, store: Store, identity: str, budget: Budget) -> Measured:
    from tqdm import tqdm

    total = sum(map(plan.tokens, plan.documents))
    with tqdm(total=total, unit="tok", unit_scale=True, desc="measure", mininterval=1) as bar:
        return measure(model, plan, store=store, identity=identity, budget=budget, advance=bar.update)


def reads_on(model, session: Session, unanswered: Todo, budget: Budget) -> bool:
    """Whether the questions of a haystack may be asked of one reading of it; tried where there are any."""
    grids = [(asked, length) for asked, length, _ in unanswered if asked.task == "grid"]
    if not grids:
        return True
    asked, longest = max(grids, key=lambda one: one[1])
    [sample, *_] = samples_of(session.questions.made(asked, longest, 0))
    return prefix_consistent(model, torch.from_numpy(sample.ids), [length for _, length in grids], budget)


def answer(model, session: Session, steady: bool, batch_tokens: int) -> None:
    from tqdm import tqdm

    left = sum(len(numbers) for *_, numbers in session.missing())
    with tqdm(total=left, unit="sample", desc="ask", mininterval=1, disable=not left) as bar:
        session.ask(model, prefix_consistent=steady, batch_tokens=batch_tokens, advance=bar.update)


def report(losses: Measured, session: Session, reference: Measured | None, against: int, out: Path) -> None:
    found = [*points(losses), *session.points()]
    if reference is not None:
        found += on_key_tokens(losses, reference)
    for one in session.questions.tasks:
        found += retention(one, [session.hits(one)], against)
    overwrite(out / "rows.jsonl", "".join(json.dumps(asdict(point)) + "\n" for point in found))
    print(tables(found))
    if any(point.probe == "reach" for point in found):
        print(f"What stands above for the training length is {against} tokens (--train-length).")
    if (said := by_ruler(found, session.questions.tasks)) is not None:
        print(said)
    for path in figures(found, out, against):
        print(path)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
