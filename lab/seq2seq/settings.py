"""Settings of an encoder–decoder run: pairs, sizes, steps; `configs/paper/seq2seq.yaml` says what each one means."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

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
        from lab.seq2seq.misfits import misfits

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
