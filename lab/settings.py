"""Settings: what a run is made of, key by key, and what must hold between them."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# All are checked by those who read them, `positional.build`, `lab.mixers` and `tokens`, whose messages say more than a
# type can.
Spec = Any
"""A positional encoding: `rope`, `{kind: rope-ntk, factor: 8}`, or a list of these."""
Mixers = Any
"""What mixes tokens: `attention`, `{kind: convolution, kernel: 3}`, or a list of these, repeated over the layers."""
Length = Any
"""Tokens: 4096, "4k" (4 × 1024), or "8x" (8 × the training length)."""


Protocol = Literal[
    "equal", "position", "suffix", "yarn-prefix", "hf-stride", "lm-eval-disjoint", "llama.cpp-half", "longlora-all"
]
"""Those of eval.protocols, which says what each scores."""


class Settings(BaseModel):
    """Frozen and strict: no unknown key, no "3" for a 3, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Mixed(Settings):
    """Samples of a task among the training sequences."""

    task: str
    share: float = Field(gt=0, le=1)
    options: dict[str, Any] = {}


class Data(Settings):
    source: Literal["stdlib", "text", "hub", "algorithmic"] = "stdlib"
    path: Annotated[list[str], BeforeValidator(lambda path: [path] if isinstance(path, str) else path)] = []
    name: str | None = None
    config: str | None = None
    split: str = "train"
    column: str = "text"
    streaming: bool = False
    documents: int | None = Field(None, gt=0)
    tokenizer: str = "bytes"
    held_out: float = Field(0.1, gt=0, lt=1)
    packing: Literal["concat", "documents"] = "concat"
    mix: list[Mixed] = []
    cache: str = "runs/.data"
    task: Annotated[list[str], BeforeValidator(lambda task: [task] if isinstance(task, str) else task)] = []
    sizes: tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] = Field((1, 20), strict=False)

    @model_validator(mode="after")
    def source_has_what_it_reads(self):
        if self.source == "text" and not self.path:
            raise ValueError("source text needs `path`: a file, a folder, a glob, or a list of these")
        if self.source == "hub" and not self.name:
            raise ValueError("source hub needs `name`: a Hugging Face dataset such as allenai/c4")
        return self


class Model(Settings):
    width: int = Field(128, gt=0)
    layers: int = Field(4, gt=0)
    heads: int = Field(4, gt=0)
    kv_heads: int | None = Field(None, gt=0)
    hidden: int | None = Field(None, gt=0)
    qk_norm: bool = False
    tie: bool = True
    attention: Literal["auto", "flash3", "flash4", "flash2", "sdpa", "varlen", "flex", "eager"] = "auto"
    mixer: Mixers = "attention"
    positional: Spec = "rope"


class Train(Settings):
    length: int = Field(128, gt=1)
    batch: int = Field(32, gt=0)
    accumulate: int = Field(1, gt=0)
    steps: int = Field(1000, gt=0)
    lr: float = Field(3e-3, gt=0)
    schedule: Literal["cosine", "stable", "inverse-sqrt"] = "cosine"
    warmup: int = Field(50, ge=0)
    decay: float = Field(0.2, gt=0, le=1)
    floor: float = Field(0.1, ge=0, le=1)
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    log_every: int = Field(10, gt=0)
    eval_every: int = Field(0, ge=0)
    save_every: int = Field(200, gt=0)
    keep: int = Field(2, gt=0)


class Asked(Settings):
    """A task with known answers that a model is asked at every length; `grid` is needles at many depths."""

    task: str
    count: int = Field(100, gt=0)
    depths: int = Field(11, gt=1)
    options: dict[str, Any] = {}


class Eval(Settings):
    lengths: list[Length] = Field(["1x", "2x", "4x", "8x", "16x"], min_length=1)
    documents: int = Field(32, gt=0)
    protocols: list[Protocol] = Field(["equal", "position"], min_length=1)
    stride: int = Field(256, gt=0)
    batch_tokens: int = Field(16384, gt=0)
    swap: list[Spec] = []
    tasks: list[Asked] = []
    sizes: list[Annotated[int, Field(gt=0)]] = []
    problems: int = Field(100, gt=0)


class Trained(Settings):
    """One line of a comparison: an encoding to train with, and encodings to swap into the trained model.

    mixer: what mixes tokens in its layers. None: what `model.mixer` says.
    """

    train: Spec = None
    mixer: Mixers = None
    swap: list[Spec] = []


class Compare(Settings):
    seeds: list[Annotated[int, Field(ge=0)]] = [0]
    runs: list[Trained] = []


class Training(Settings):
    """What every training is made of, whatever is trained: of a new model see `Run`."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    folder: str = "runs"
    seed: int = Field(0, ge=0)
    track: Literal["wandb", "tensorboard", "none"] = "wandb"
    project: str = "context-lab"
    data: Data = Data()
    model: Any  # which has `positional`
    train: Train = Train()

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.name

    @property
    def encoding(self) -> str:
        """What tables call it."""
        from positional.build import name_of

        return "own" if self.model.positional is None else name_of(self.model.positional)

    @property
    def sources(self) -> list[Path]:
        """The files of the user's own whose code the encoding is."""
        from positional.build import sources

        return [] if self.model.positional is None else sources(self.model.positional)

    @property
    def subject(self) -> Any:
        """What is trained and measured, a `lab.subject.Subject`."""
        from lab.subject import Subject

        return Subject()

    def names_of_lines(self, lines: list[Trained]) -> list[str]:
        """What tables call each line of a comparison, all different."""
        from lab.mixers import names_of_lines

        return names_of_lines(lines)

    def with_line(self, line: Trained) -> Any:
        """The model's settings with what a line of a comparison says of them."""
        mixer = self.model.mixer if line.mixer is None else line.mixer
        return self.model.model_copy(update={"positional": line.train, "mixer": mixer})


class Run(Training):
    """Everything that a run is made of; `configs/base.yaml` says what each setting means."""

    model: Model = Model()
    eval: Eval = Eval()
    compare: Compare = Compare()

    @model_validator(mode="after")
    def parts_fit_together(self):
        if problems := cross_checks(self):
            raise ValueError("\n".join(problems))
        return self


def cross_checks(run: Run) -> list[str]:
    """What no single setting shows: sizes that do not fit each other, encodings that cannot be built at this size."""
    from lab.model.config import misfits
    from positional import Shape

    lengths, problems = ([], []) if run.data.source == "algorithmic" else lengths_in(run)
    problems += [f"data.mix{said}" for said in unmixable(run.data, run.train.length)]
    unknown = [f"eval.tasks[{i}]: {said}" for i, one in enumerate(run.eval.tasks) for said in unaskable(one)]
    problems += unknown or [f"eval.tasks: {said}" for said in repeated(run.eval.tasks)]
    if run.data.source != "algorithmic":
        problems += [f"eval.protocols: {one}" for one in unscorable(run.eval, lengths)]
    sizes = run.model.width, run.model.heads, run.model.kv_heads
    if wrong := misfits(*sizes):  # no encoding can be tried at a shape that does not exist
        return [*(f"model: {one}" for one in wrong), *problems]
    shape = Shape(sizes[0], sizes[1], sizes[2] or sizes[1], run.model.layers, run.train.length)
    problems += unmade(run, shape)
    if run.data.source == "algorithmic":
        from lab.algorithmic import flaws

        problems += flaws(run)
    return problems


def unmade(run: Run, shape: Any) -> list[str]:
    """What is wrong with mixers and with encodings, by themselves or in layers that have no use for them."""
    mixer, problems = run.model.mixer, []
    specs = {"model": (mixer, {"positional": run.model.positional})}
    specs |= {"eval": (mixer, {f"swap[{i}]": spec for i, spec in enumerate(run.eval.swap)})}
    for i, line in enumerate(run.compare.runs):
        own = mixer if line.mixer is None else line.mixer
        encodings = {"train": line.train} | {f"swap[{j}]": spec for j, spec in enumerate(line.swap)}
        if line.mixer is not None:
            encodings |= {f"mixer with eval.swap[{j}]": spec for j, spec in enumerate(run.eval.swap)}
        specs |= {f"compare.runs[{i}]": (own, encodings)}
    wrong = set()
    for section, (own, encodings) in specs.items():
        said = unmixing(own, shape)
        if said is not None and said not in wrong:
            problems.append(f"{section}.mixer: {said}")
            wrong.add(said)
        for key, spec in encodings.items():
            if reason := unbuildable(spec, own if said is None else "attention", shape):
                problems.append(f"{section}.{key}: {reason}")
    return problems


def unmixing(mixer: Mixers, shape: Any) -> str | None:
    from lab import LabError, mixers

    try:
        mixers.refuse(mixer, shape)
    except LabError as error:
        return str(error)
    return None


def unbuildable(spec: Spec, mixer: Mixers, shape: Any) -> str | None:
    from lab import LabError, mixers
    from positional import SchemeError, build

    try:
        mixers.windowed(build(spec, shape), mixers.by_layer(mixer, shape.layers))
    except (SchemeError, LabError) as error:
        return str(error)
    return None


def specs_of(run: Training) -> dict[str, Spec]:
    """Every encoding that a run names, under its key."""
    specs = {"model.positional": run.model.positional}
    specs |= {f"eval.swap[{i}]": spec for i, spec in enumerate(run.eval.swap)}
    for i, line in enumerate(run.compare.runs):
        specs |= {f"compare.runs[{i}].train": line.train}
        specs |= {f"compare.runs[{i}].swap[{j}]": spec for j, spec in enumerate(line.swap)}
    return specs


def unaskable(asked: Asked) -> list[str]:
    """What is wrong with a task to ask: a name or an option that there is not."""
    from eval import EvalError
    from eval.tasks import with_defaults

    if asked.task == "grid":
        return ["grid has no options"] if asked.options else []
    try:
        with_defaults(asked.task, asked.options)
    except EvalError as error:
        return [f"{error}, and grid" if "there are" in str(error) else str(error)]
    return []


def repeated(asked: list[Asked]) -> list[str]:
    """What is wrong with tasks that are each well: two of them ask the same."""
    from eval import EvalError
    from eval.entries import Asked as Entry
    from eval.entries import named

    try:
        named([Entry(**one.model_dump()) for one in asked])
    except EvalError as error:
        return [str(error)]
    return []


def unmixable(data: Data, length: int) -> list[str]:
    """What is wrong with data.mix: a task or option that there is not, shares above 1, samples that cannot fit."""
    from eval import EvalError
    from eval.tasks import build, with_defaults
    from eval.voice import in_bytes

    problems = []
    if (total := sum(part.share for part in data.mix)) > 1:
        problems.append(f": the shares add up to {total:g}; what is left of 1 is text")
    for i, part in enumerate(data.mix):
        try:
            with_defaults(part.task, part.options)
            if data.tokenizer == "bytes":  # elsewhere a sample's size hangs on the tokenizer
                build(part.task, part.options, length=length + 1, count=1, voice=in_bytes())
        except EvalError as error:
            problems.append(f"[{i}]: {error}")
    return problems


def unscorable(asked: Eval, lengths: list[int]) -> list[str]:
    """What is wrong with the protocols at these lengths, at the shortest where it is: told before hours of training."""
    from eval import EvalError
    from eval.protocols import PROTOCOLS

    problems = {}
    for protocol in map(PROTOCOLS.get, asked.protocols):
        for length in lengths:
            least = protocol.needs(lengths[-1], asked.stride)
            try:
                if not any(window.scored for window in protocol.windows(least, length, lengths[-1], asked.stride)):
                    raise EvalError(f"{protocol.name} scores no token of a window of {length}: take longer lengths")
            except EvalError as error:
                problems.setdefault(protocol.name, str(error))
    return list(problems.values())


def lengths_in(run: Training) -> tuple[list[int], list[str]]:
    """The lengths to measure at in tokens, shortest first, and what is wrong with those that are none."""
    found, problems = [], []
    for i, text in enumerate(run.eval.lengths):
        try:
            found.append(tokens(text, run.train.length))
        except ValueError as error:
            problems.append(f"eval.lengths[{i}]: {error}")
    return sorted(found), problems


def tokens(length: Length, train_length: int) -> int:
    """A length as written -> tokens. Raises ValueError, saying how to write one."""
    text, unit = str(length), 1
    if text[-1:].lower() in ("x", "k"):
        text, unit = text[:-1], train_length if text[-1].lower() == "x" else 1024
    try:
        count = int(text) * unit
    except ValueError:
        count = 0
    if count < 2:
        raise ValueError(f"{length!r} is no length: write tokens (4096), thousands (4k) or train lengths (8x)")
    if count % 2:
        raise ValueError(f"{length!r} is odd ({count}): half of each window is context, half is scored")
    return count
