"""The command line: lab train, eval, compare, complexity, rank, lm-eval, extend, finetune, generate, translate …"""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="A lab for extending the context of Transformers by how they encode position.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Measure speed and memory on this machine; alone, of attention.", invoke_without_command=True)
app.add_typer(bench, name="bench")
schemes = typer.Typer(
    help="List every kind of positional encoding; `show` one with its options, facts and picture.",
    invoke_without_command=True,
)
app.add_typer(schemes, name="schemes")

Config = Annotated[Path, typer.Argument(help="A YAML file; configs/base.yaml documents every setting.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings over the file's: train.steps=500 model.positional=alibi")
]


@app.callback()
def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    pass  # read by `main`, which is there when the command has failed


@app.command()
def train(config: Config, overrides: Overrides = None) -> None:
    """Train a run, or go on with one that was interrupted."""
    from lab.config import read

    run = read(config, overrides or [])
    from lab.train import accelerator_for, train  # seconds long, and in vain if the settings are wrong

    accelerator = accelerator_for(run)
    model = train(run, accelerator)
    if accelerator.is_main_process:
        print(model)


@app.command(name="eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a trained run: runs/rope")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="YAML files and a.b=c over the run's own settings.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run and what it costs, and stop.")
    ] = False,
) -> None:
    """Measure a trained run at longer and longer contexts, as trained and with other schemes swapped in."""
    from lab.config import of_run

    which = of_run(run, settings or [])
    from lab.evaluate import evaluate
    from lab.figure import figures
    from lab.table import show
    from lab.track import publish
    from lab.train import accelerator_for

    accelerator = accelerator_for(which)

    def say(plan: str) -> None:
        if accelerator.is_main_process:
            print(plan, file=sys.stdout if dry_run else sys.stderr, flush=True)

    rows = list(evaluate(which, accelerator, say=say, dry=dry_run))
    if dry_run:
        return
    publish(rows, which, accelerator)
    if accelerator.is_main_process:
        out = which.path / "eval"
        for path in figures(rows, out, which.train.length):
            print(path)
        show(rows, which.train.length)


@app.command()
def compare(config: Config, overrides: Overrides = None) -> None:
    """Train several encodings alike, measure them on the same tokens; a table and a figure."""
    from lab.config import read

    run = read(config, overrides or [])
    from accelerate import PartialState

    from lab.compare import compare
    from lab.rows import read as rows_of
    from lab.table import show

    out = compare(run)
    if PartialState().is_main_process:
        show(rows_of(out / "rows.jsonl"), run.train.length)
        print(f"{out}/table.md, rows.jsonl, {', '.join(sorted(path.name for path in out.glob('*.png')))}")


@app.command()
def rank(
    comparisons: Annotated[list[Path], typer.Argument(help="Folders of `lab compare`: runs/copy runs/sum")],
) -> None:
    """Rank encodings over several comparisons on algorithmic problems, one a task, as the paper does."""
    from lab.ranking import merged
    from lab.table import show

    show(merged(comparisons), 0)


@app.command()
def complexity(
    lengths: Annotated[str, typer.Option(help="n, tokens: 64,256,1k,4k; the longest four make the exponents.")] = (
        "64,128,256,512,1k,2k,4k,8k"
    ),
    width: Annotated[int, typer.Option(min=1, help="d, channels.")] = 256,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    window: Annotated[int, typer.Option(min=1, help="r, tokens that restricted attention sees.")] = 128,
    kernel: Annotated[int, typer.Option(min=2, help="k of the convolution.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each layer; medians are over these.")] = 5,
    out: Annotated[Path, typer.Option(help="Where rows, table and figure go.")] = Path("runs/complexity"),
) -> None:
    """The paper's Table 1, measured: time and memory of one layer of attention, window, RNN and CNN against n."""
    from lab.complexity.layers import Sizes
    from lab.complexity.report import show
    from lab.complexity.run import run

    rows = run(lengths, Sizes(width, heads, window, kernel), rounds, out)
    show(rows)
    print(f"{out}/table.md, rows.jsonl, complexity.png")


@app.command(name="lm-eval")
def lm_eval(
    which: Annotated[str, typer.Argument(help="The folder of a trained run, or a model of transformers.")],
    tasks: Annotated[str, typer.Option(help="Of lm-eval: arc_easy,piqa; * stands for any letters.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task; default: all.")] = None,
    scheme: Annotated[
        str | None, typer.Option(help='Put another encoding into a run: "rope-ntk factor=auto", or the same as YAML.')
    ] = None,
    length: Annotated[int | None, typer.Option(min=2, help="Longest input in tokens; default: the model's.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Inputs of a forward pass.")] = 8,
    include: Annotated[list[Path] | None, typer.Option(help="A folder with tasks of your own, as YAML.")] = None,
    out: Annotated[Path, typer.Option(help="Where rows go of a model that is no run.")] = Path("runs/lm-eval"),
) -> None:
    """Ask the tasks of EleutherAI's lm-eval, an optional extra; results become rows like any other."""
    from lab.lmeval import ask, show

    how = {"limit": limit, "scheme": scheme, "length": length, "batch": batch, "own": include or [], "out": out}
    show(ask(which, tasks.split(","), **how))


@app.command()
def extend(
    model: Annotated[
        str, typer.Argument(help="A folder, a name on the hub, a .gguf file; or a YAML file that names one.")
    ],
    settings: Annotated[list[str] | None, typer.Argument(help="Settings over the file's: documents=4 to=64k")] = None,
    to: Annotated[str | None, typer.Option(help="The length to reach: 32k, or 4x of the train length.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Try only this one; may be given again.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Text to measure on; default: Python's own library.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the model with the one --method as a checkpoint here.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run and what it costs, and stop.")
    ] = False,
) -> None:
    """Read further with a pretrained model, untrained: try the methods, measure them, recommend one, export it."""
    from lab.extend.settings import asked

    wanted = asked(model, settings or [], to=to, methods=method, data=data, out=out)
    from lab.extend.run import extend
    from lab.progress import quiet

    quiet()
    bench, methods, rows = extend(wanted, lambda text: print(text, file=sys.stderr, flush=True), dry_run)
    if dry_run:
        return
    print((bench.folder / "report.md").read_text())
    print(", ".join(str(path) for path in sorted(bench.folder.glob("*.*"))))
    if out is not None:
        from lab.extend.write import write

        print(write(bench, methods[-1], rows, out))


@app.command()
def finetune(
    model: Annotated[str, typer.Argument(help="A folder, a name on the hub, a .gguf file; or a YAML file.")],
    settings: Annotated[list[str] | None, typer.Argument(help="Settings over the file's: lora.dropout=0.1")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Text to train on; default: Python's own library.")] = None,
    method: Annotated[str | None, typer.Option(help="yarn, linear, ntk, pose, drope …; default: as it is.")] = None,
    to: Annotated[
        str | None, typer.Option(help="The length that it is to read: 16k, or 4x of its train length.")
    ] = None,
    scheme: Annotated[str | None, typer.Option(help='Instead of a method: "rope base=1000000".')] = None,
    length: Annotated[str | None, typer.Option(help="Tokens of a training sequence; default: see --method.")] = None,
    steps: Annotated[int | None, typer.Option()] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Parts that a batch is run in.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    lora: Annotated[int | None, typer.Option(min=1, help="Train adapters of this rank; default: all weights.")] = None,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Keep less for the gradient and compute it again.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    track: Annotated[str | None, typer.Option(help="wandb, tensorboard or none.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run; default: runs/MODEL-METHOD.")] = None,
) -> None:
    """Train a pretrained model further, with its own or another encoding, or go on where it was interrupted."""
    from lab.finetune.settings import asked

    options = {"model.method": method, "model.longest": to, "seed": seed, "track": track}
    options |= {"train.length": length, "train.steps": steps, "train.batch": batch, "train.accumulate": accumulate}
    options |= {"train.lr": lr, "train.checkpointing": checkpointing or None}
    wanted = asked(model, settings or [], data=data, scheme=scheme, lora=lora, out=out, **options)
    from lab.finetune.run import finetune
    from lab.finetune.settled import settled
    from lab.rows import read as rows_of
    from lab.table import show
    from lab.track import publish
    from lab.train import accelerator_for

    run = settled(wanted)
    accelerator = accelerator_for(run)
    model = finetune(run, accelerator)
    rows = rows_of(run.path / "rows.jsonl")
    publish(rows, run, accelerator)
    if accelerator.is_main_process:
        show(rows, run.model.train_length)
        print(model)


@app.command()
def generate(
    run: Annotated[Path, typer.Argument(help="The folder of a trained run: runs/rope")],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many to write at most.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among so many likeliest tokens; default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same text.")] = 0,
    scheme: Annotated[
        str | None, typer.Option(help='Put another encoding in: "rope-ntk factor=auto", or the same as YAML.')
    ] = None,
) -> None:
    """Let a trained run go on from a prompt; the text appears as it is written."""
    from lab.config import of_run

    which = of_run(run)
    from lab.generate import generate

    def write(text: str) -> None:
        print(text, end="", flush=True)

    generate(which, prompt, write, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed, scheme=scheme)
    print()


@app.command()
def translate(
    run: Annotated[Path, typer.Argument(help="The folder of a trained encoder–decoder: runs/reverse")],
    sources: Annotated[list[str], typer.Argument(help="What to translate, or the problems to answer.")],
    beams: Annotated[int, typer.Option(min=1, help="1: always the likeliest token.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Of beams: higher favours longer answers.")] = 0.6,
    maps: Annotated[
        Path | None, typer.Option(help="Where a picture of every layer's attention goes, of one source: maps.png")
    ] = None,
) -> None:
    """What a trained encoder–decoder writes for each source."""
    from lab.seq2seq.translate import asked, translate

    which = asked(run, beams, length_penalty)
    if maps is None:
        for line in translate(which, sources):
            print(line)
    else:
        from lab.seq2seq.maps import mapped

        print(mapped(which, sources, maps))
        print(maps)


Kind = Annotated[str, typer.Argument(help="A kind, ./mine.py, ./mine.py:Name, or the same as YAML; a list stacks.")]
Options = Annotated[list[str] | None, typer.Argument(help="Its options: factor=8 base=500000")]
Width = Annotated[int | None, typer.Option(min=1, help="Channels of the model; default: as many a head as usual.")]
Heads = Annotated[int, typer.Option(min=1)]
Length = Annotated[int, typer.Option(min=1, help="Tokens of an input in training.")]


@schemes.callback()
def list_schemes(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from positional.build import kinds, summary

    table = Table.grid(padding=(0, 2))
    for kind in kinds():
        table.add_row(f"[bold]{kind}", summary(kind))
    Console().print(table)


@schemes.command(name="show")
def show_scheme(
    kind: Kind,
    options: Options = None,
    width: Width = None,
    heads: Heads = 4,
    length: Length = 512,
    beside: Annotated[
        list[str] | None,
        typer.Option(help='Draw its lanes beside those of another RoPE: "rope-ntk factor=8"; may be given again.'),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the picture goes; default: runs/schemes/NAME.png")] = None,
) -> None:
    """What an encoding takes, does and needs, and its picture."""
    from lab.config import spec_of
    from lab.describe import described, shape_of, show

    spec = spec_of(kind, options or [], where="schemes show")
    shape = shape_of(64 * heads if width is None else width, heads, length)
    scheme = described(spec, shape)
    others = [spec_of(text, where="--beside") for text in beside or []]
    compared = [described(other, shape) for other in others]
    from lab.portrait import draw, file_of
    from lab.portrait.beside import draw_beside

    out = out or file_of(spec, *others)
    picture = draw_beside([spec, *others], [scheme, *compared], out) if others else draw(spec, scheme, out)
    show(spec, scheme, picture)


@app.command()
def check(
    kind: Kind,
    options: Options = None,
    width: Width = None,
    heads: Heads = 4,
    length: Length = 64,
    compile: Annotated[bool, typer.Option("--compile", help="Also whether torch.compile makes one graph.")] = False,
) -> None:
    """Try on an encoding all that every encoding must hold to; say what fails, and where."""
    from lab.config import spec_of
    from lab.describe import described, shape_of

    spec = spec_of(kind, options or [], where="check")
    shape = shape_of(16 * heads if width is None else width, heads, length)
    described(spec, shape)
    from lab.check import run, show

    if show(run(spec, shape, compile=compile)):
        raise typer.Exit(1)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="A folder, its config.json, a .gguf file, or a name on the hub.")],
    json: Annotated[bool, typer.Option("--json", help="Everything as JSON, and nothing else.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Where a picture of the lanes goes: lanes.png")] = None,
) -> None:
    """What a checkpoint's RoPE configuration means and what is wrong with it; exits with 1 where something is."""
    from lab.doctor import examine
    from lab.doctor.as_json import as_json
    from lab.doctor.report import show

    report = examine(model)
    picture = None
    if figure is not None:
        from lab.doctor.figure import draw

        picture = draw(report, figure)
    if json:
        print(as_json(report))
    else:
        show(report, picture)
    if report.failed:
        raise typer.Exit(1)


@bench.callback()
def bench_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        bench_attention()


@bench.command(name="attention")
def bench_attention(
    lengths: Annotated[str, typer.Option(help="Tokens, such as 512,2k,16k.")] = "512,2k,16k",
    heads: Annotated[int, typer.Option(min=1)] = 4,
    size: Annotated[int, typer.Option(min=2, help="Channels a head.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each case; medians are over these.")] = 5,
    out: Annotated[Path, typer.Option(help="Where the figures go, as JSON.")] = Path("runs/bench/attention.json"),
) -> None:
    """Attention of each scheme on each backend that runs it, at longer and longer inputs."""
    from lab.bench.attention import attention_speed, read_lengths, show
    from lab.bench.train import write

    rows = list(attention_speed(read_lengths(lengths), heads=heads, size=size, rounds=rounds))
    write(rows, out)
    show(rows)


@bench.command(name="train")
def bench_train(
    batch: Annotated[int, typer.Option(min=1, help="Sequences a step.")] = 8,
    length: Annotated[int, typer.Option(min=2, help="Tokens a sequence.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each case; medians are over these.")] = 9,
    out: Annotated[Path, typer.Option(help="Where the figures go, as JSON.")] = Path("runs/bench/train.json"),
) -> None:
    """Training steps of our decoder beside transformers' Llama of the same size: speed and peak memory."""
    from lab.bench.train import show, train_speed, write

    result = train_speed(batch=batch, length=length, rounds=rounds)
    write(result, out)
    show(result)


@bench.command(name="eval")
def bench_eval(
    parts: Annotated[str, typer.Option(help="Some of prefix,equal,memory,grid,store.")] = "all",
    out: Annotated[Path, typer.Option(help="Where the figures go, as JSON.")] = Path("runs/bench/eval.json"),
) -> None:
    """Evaluation: one reading of a text instead of many, memory of long windows, what is kept of them."""
    from lab.bench.evaluation import eval_speed, read_parts, show
    from lab.bench.train import write

    rows = list(eval_speed(read_parts(parts)))
    write(rows, out)
    show(rows)


def main() -> None:
    """Exit codes: 0; 1 for work that failed; 2 for a call that cannot be carried out as written."""
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]  # so that it may stand anywhere
    try:
        app()
    except SystemExit as end:
        if end.code == 130:  # Ctrl-C
            print("lab: interrupted; the same command goes on from what is saved", file=sys.stderr)
            sys.exit(1)
        raise
    except Exception as error:
        if debug or not foreseen(error):
            raise
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(getattr(error, "code", 1))


def foreseen(error: Exception) -> bool:
    """Whether an error is written for the user; any other is a bug of ours and keeps its traceback."""
    # By name: to import them would take seconds.
    return type(error).__name__ in ("LabError", "EvalError", "SchemeError")
