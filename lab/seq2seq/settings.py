"""Settings of an encoder–decoder run: pairs, sizes, steps; `configs/paper/seq2seq.yaml` says what each one means."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from lab.settings import Compare, Settings, Spec, Train, Trained, Training

Listed = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
SIDES = ("encoder", "decoder")
Sides = Spec
"""`rope`, for both sides, or `{encoder: rope, decoder: alibi}`."""


class Pairs(Settings):
    source: Literal["algorithmic", "text", "hub", "gettext"] = "algorithmic"
    task: Listed = []
    sizes: tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] = Field((1, 10), strict=False)
    path: Listed = []
    name: str | None = None
    config: str | None = None
    split: str = "train"
    streaming: bool = False
    column: str = "translation"
    languages: tuple[str, str] = Field(("en", "de"), strict=False)
    pairs: int | None = Field(None, gt=0)
    tokenizer: str = "bpe"
    vocabulary: int = Field(8000, gt=3)
    held_out: float = Field(0.05, gt=0, le=1)
    cache: str = "runs/.data"

    @model_validator(mode="after")
    def source_has_what_it_reads(self):
        if self.source == "algorithmic" and len(self.task) != 1:
            raise ValueError("source algorithmic needs one `task`, such as copy, reverse, sort or words")
        if self.source == "text" and len(self.path) != 2:
            raise ValueError("source text needs two files in `path`, the second a translation line by line")
        if self.source == "hub" and not self.name:
            raise ValueError("source hub needs `name`: a dataset of translations such as wmt/wmt14, with its `config`")
        return self


class Stack(Settings):
    layers: int = Field(6, gt=0)
    positional: Spec = "sinusoidal"


class Recurrent(Settings):
    cell: Literal["gru", "lstm"] = "gru"
    attention: Literal["bahdanau", "luong"] = "bahdanau"

    @property
    def name(self) -> str:
        """What tables call such a model; others go by their encodings."""
        return f"{self.cell} {self.attention}"


OF_RECURRENT = {"recurrent", "width", "dropout", "label_smoothing", "tie"}
"""The settings of a model that a recurrent one has."""


class EncoderDecoder(Settings):
    width: int = Field(512, gt=0)
    hidden: int = Field(2048, gt=0)
    heads: int = Field(8, gt=0)
    key_size: int | None = Field(None, gt=0)
    value_size: int | None = Field(None, gt=0)
    norm: Literal["post", "pre"] = "post"
    dropout: float = Field(0.1, ge=0, lt=1)
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    tie: bool = True
    attention: Literal["auto", "flash3", "flash4", "flash2", "sdpa", "varlen", "flex", "eager"] = "auto"
    encoder: Stack = Stack()
    decoder: Stack = Stack()
    recurrent: Recurrent | None = None

    @model_validator(mode="after")
    def nothing_is_idle(self):
        fields = type(self).model_fields
        idle = [key for key in fields if key not in OF_RECURRENT and getattr(self, key) != fields[key].default]
        if self.recurrent is not None and idle:
            raise ValueError(
                f"a recurrent model has no {', '.join(idle)}: leave out all but recurrent, width, dropout, "
                "label_smoothing and tie"
            )
        return self


class Steps(Train):
    """The paper's: Adam, the rate of its section 5.3; a batch is counted in tokens."""

    length: int = Field(256, gt=1)
    batch: int = Field(4096, gt=0)
    steps: int = Field(100000, gt=0)
    lr: float = Field(7e-4, gt=0)
    schedule: Literal["cosine", "stable", "inverse-sqrt"] = "inverse-sqrt"
    warmup: int = Field(4000, ge=0)
    betas: tuple[float, float] = Field((0.9, 0.98), strict=False)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)


class Answering(Settings):
    """How a trained model is asked, and how its answers are decoded."""

    sizes: list[Annotated[int, Field(gt=0)]] = []
    problems: int = Field(100, gt=0)
    beams: int = Field(1, gt=0)
    length_penalty: float = 0.6
    batch_tokens: int = Field(16384, gt=0)
    swap: list[Sides] = []


class Line(Trained):
    """A line of a comparison: encodings to train with, and what else of the model is otherwise than the run's."""

    model: dict[str, Any] = {}


class Lines(Compare):
    runs: list[Line] = []


class Translation(Training):
    """Everything that an encoder–decoder run is made of."""

    data: Pairs
    model: EncoderDecoder = EncoderDecoder()
    train: Steps = Steps()
    eval: Answering = Answering()
    compare: Lines = Lines()

    @model_validator(mode="after")
    def parts_fit_together(self):
        if problems := list(misfits(self)):
            raise ValueError("\n".join(problems))
        return self

    @property
    def encoding(self) -> str:
        recurrent = self.model.recurrent
        return self.names([self.sides])[0] if recurrent is None else recurrent.name

    @property
    def sides(self) -> dict[str, Spec]:
        """The encoding of each side; empty where the model has none."""
        if self.model.recurrent is not None:
            return {}
        return {"encoder": self.model.encoder.positional, "decoder": self.model.decoder.positional}

    @property
    def sources(self) -> list[Path]:
        from positional.build import sources

        return list(dict.fromkeys(path for spec in self.sides.values() for path in sources(spec)))

    @property
    def subject(self):
        from lab.seq2seq.train import Translating

        return Translating()

    def names(self, specs: list[Sides]) -> list[str]:
        """`rope` for both sides, `rope / alibi` for encoder / decoder; all different."""
        return apart(called(specs))

    def names_of_lines(self, lines: list[Line]) -> list[str]:
        """The encodings, or the recurrence, and behind them what else of the model a line changes: `rope heads=1`."""
        found = []
        for line, encodings in zip(lines, called([line.train or self.sides for line in lines]), strict=True):
            recurrent = self.with_line(line).recurrent
            changed = [f"{key}={value}" for key, value in line.model.items() if key != "recurrent"]
            found.append(" ".join([encodings if recurrent is None else recurrent.name, *changed]))
        return apart(found)

    def with_line(self, line: Line) -> EncoderDecoder:
        """The model's settings with what a line of a comparison says of them."""
        from lab.config import merged

        recurrent = line.model.get("recurrent", self.model.recurrent) is not None
        # Of the run's settings, which are an encoder–decoder's, a recurrent line takes those that it has.
        found = self.with_encoding(line.train or self.sides).model_dump(include=OF_RECURRENT if recurrent else None)
        return EncoderDecoder.model_validate(merged(found, line.model))

    def with_encoding(self, spec: Sides) -> EncoderDecoder:
        """The model's settings with other encodings."""
        found = {
            side: getattr(self.model, side).model_copy(update={"positional": one})
            for side, one in sides_of(spec).items()
        }
        return self.model.model_copy(update=found)


def called(specs: list[Sides]) -> list[str]:
    """What tables call each; an encoding has one name wherever it is, on two lines or on two sides."""
    from positional.build import names_of

    both = [sides_of(spec) for spec in specs]
    every: list[Spec] = []
    for one in (one for sides in both for one in sides.values()):
        every += [] if one in every else [one]
    names = names_of(every)
    found = []
    for sides in both:
        encoder, decoder = (names[every.index(one)] for one in sides.values())
        found.append(encoder if encoder == decoder else f"{encoder} / {decoder}")
    return found


def apart(names: list[str]) -> list[str]:
    """Names all different: of the same ones, all but the first are numbered."""
    return [n if n not in names[:at] else f"{n} ({names[:at].count(n) + 1})" for at, n in enumerate(names)]


def sides_of(spec: Sides) -> dict[str, Spec]:
    """What is said of both sides at once, said of each."""
    if isinstance(spec, dict) and "kind" not in spec:
        return {"encoder": spec.get("encoder", "sinusoidal"), "decoder": spec.get("decoder", "sinusoidal")}
    return {"encoder": spec, "decoder": spec}


def unsided(spec: Sides) -> str:
    """What is wrong with the keys of an encoding that is said for each side; empty where nothing is."""
    unknown = [key for key in spec if key not in SIDES] if isinstance(spec, dict) and "kind" not in spec else []
    if not unknown:
        return ""
    near = difflib.get_close_matches(str(unknown[0]), SIDES, 1)
    hint = f"did you mean {near[0]}?" if near else "write kind: for both sides, or encoder: and decoder:"
    return f"{unknown[0]}: no side has this name; {hint}"


def misfits(run: Translation) -> Iterator[str]:
    """What no single setting shows."""
    if flaw := unshared(run.model):
        yield f"model: {flaw}"
        return
    swaps = {f"eval.swap[{i}]": spec for i, spec in enumerate(run.eval.swap)}
    yield from unbuilt(run, {"model": run.sides, **swaps})
    for i, line in enumerate(run.compare.runs):
        key, flaws = f"compare.runs[{i}]", list(unchangeable(run, line))
        yield from (f"{key}.{one}" for one in flaws)
        if flaws:
            continue
        changed = run.model_copy(update={"model": run.with_line(line)})
        own = {f"{key}.train": line.train or changed.sides}
        own |= {f"{key}.swap[{j}]": spec for j, spec in enumerate(line.swap)}
        own |= {f"{key} with {swap}": spec for swap, spec in swaps.items() if line.model}
        if flaw := unshared(changed.model):
            yield f"{key}.model: {flaw}"
        else:
            yield from unbuilt(changed, own)
    if run.data.source == "algorithmic":
        yield from unfitting(run)


def unshared(m: EncoderDecoder) -> str:
    """Why the heads cannot share the width; empty where they can, or where there are none."""
    if m.recurrent is not None or not m.width % m.heads or None not in (m.key_size, m.value_size):
        return ""
    return f"width {m.width} is not a multiple of heads {m.heads}: set key_size and value_size"


def unchangeable(run: Translation, line: Line) -> Iterator[str]:
    """What is wrong with what a line of a comparison says of the model beside its encodings."""
    from lab.config import explained

    if line.mixer is not None:
        yield "mixer: an encoder–decoder has no mixers to choose: leave it out"
    for side in {"encoder", "decoder"} & line.model.keys():
        if isinstance(line.model[side], dict) and "positional" in line.model[side]:
            yield (
                f"model.{side}.positional: the encodings of a line stand in its `train`: "
                "{encoder: rope, decoder: alibi}"
            )
    try:
        EncoderDecoder.model_validate({"recurrent": run.model.recurrent, **line.model})
    except ValidationError as error:
        for one in error.errors():
            yield from explained({**one, "loc": ("model", *one["loc"])}, Translation)


def unbuilt(run: Translation, specs: dict[str, Sides]) -> Iterator[str]:
    """Encodings that cannot be built at the sizes of the run, or that its model has no use for."""
    from positional import SchemeError

    for key, spec in specs.items():
        if run.model.recurrent is not None and spec:
            yield f"{key}: a recurrent model has no encodings: leave it out"
            continue
        if wrong := unsided(spec):
            yield f"{key}.{wrong}"
            continue
        for side, one in sides_of(spec).items():
            try:
                built(run, side, one)
            except SchemeError as error:
                yield f"{key}.{side}: {error}"


def built(run: Translation, side: str, spec: Spec):
    from positional import SchemeError, Shape, build
    from positional.build import name_of

    m = run.model
    size = m.width // m.heads if m.key_size is None else m.key_size
    scheme = build(spec, Shape(m.width, m.heads, m.heads, getattr(m, side).layers, run.train.length, size))
    if side == "encoder" and scheme.causal_only:
        raise SchemeError(f"{name_of(spec)} is for the decoder alone: {scheme.causal_only}")
    return scheme


def unfitting(run: Translation) -> Iterator[str]:
    """Sizes of problems that do not exist, or do not fit the training length."""
    from eval import EvalError
    from eval.algorithmic import problems
    from eval.problems import task_of

    (task,), (smallest, largest) = run.data.task, run.data.sizes
    if smallest > largest:
        yield f"data.sizes: [{smallest}, {largest}] holds no size: write the smallest first"
    try:
        source = max(map(len, problems(task, largest, range(64), 0, "train")[0]))
        needed = 1 + max(source, task_of(task).longest(largest) - source)
    except EvalError as error:
        yield f"data.{'sizes' if 'size' in str(error) else 'task'}: {error}"
        return
    if needed > run.train.length:
        yield (
            f"train.length: {task} with {largest} {task_of(task).unit} takes {needed} tokens on one side with its end, "
            f"{run.train.length} are given: raise train.length or lower data.sizes"
        )
