"""Settings: what a run is made of, key by key, and what must hold between them."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# Both are checked by those who read them, `positional.build` and `tokens`, whose messages say more than a type can.
Spec = Any
"""A positional encoding: `rope`, `{kind: rope-ntk, factor: 8}`, or a list of these."""
Length = Any
"""Tokens: 4096, "4k" (4 × 1024), or "8x" (8 × the training length)."""


class Settings(BaseModel):
    """Frozen and strict: no unknown key, no "3" for a 3, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Data(Settings):
    source: Literal["stdlib", "text", "hub"] = "stdlib"
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
    cache: str = "runs/.data"

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
    positional: Spec = "rope"


class Train(Settings):
    length: int = Field(128, gt=1)
    batch: int = Field(32, gt=0)
    accumulate: int = Field(1, gt=0)
    steps: int = Field(1000, gt=0)
    lr: float = Field(3e-3, gt=0)
    schedule: Literal["cosine", "stable"] = "cosine"
    warmup: int = Field(50, ge=0)
    decay: float = Field(0.2, gt=0, le=1)
    floor: float = Field(0.1, ge=0, le=1)
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    log_every: int = Field(10, gt=0)
    eval_every: int = Field(0, ge=0)
    save_every: int = Field(200, gt=0)
    keep: int = Field(2, gt=0)


class Eval(Settings):
    lengths: list[Length] = ["1x", "2x", "4x", "8x", "16x"]
    documents: int = Field(32, gt=0)
    batch_tokens: int = Field(16384, gt=0)
    swap: list[Spec] = []


class Trained(Settings):
    """One line of a comparison: an encoding to train with, and encodings to swap into the trained model."""

    train: Spec = None
    swap: list[Spec] = []


class Compare(Settings):
    seeds: list[Annotated[int, Field(ge=0)]] = [0]
    runs: list[Trained] = []


class Run(Settings):
    """Everything that a run is made of; `configs/base.yaml` says what each setting means."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    folder: str = "runs"
    seed: int = Field(0, ge=0)
    track: Literal["wandb", "tensorboard", "none"] = "wandb"
    project: str = "context-lab"
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    eval: Eval = Eval()
    compare: Compare = Compare()

    @model_validator(mode="after")
    def parts_fit_together(self):
        if problems := cross_checks(self):
            raise ValueError("\n".join(problems))
        return self

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.name


def cross_checks(run: Run) -> list[str]:
    """What no single setting shows: sizes that do not fit each other, encodings that cannot be built at this size."""
    from lab.model import misfits
    from positional import SchemeError, Shape, build

    problems = []
    for i, text in enumerate(run.eval.lengths):
        try:
            tokens(text, run.train.length)
        except ValueError as error:
            problems.append(f"eval.lengths[{i}]: {error}")
    sizes = run.model.width, run.model.heads, run.model.kv_heads
    if wrong := misfits(*sizes):  # no encoding can be tried at a shape that does not exist
        return [*(f"model: {one}" for one in wrong), *problems]
    shape = Shape(sizes[0], sizes[1], sizes[2] or sizes[1], run.model.layers, run.train.length)
    specs = {"model.positional": run.model.positional}
    specs |= {f"eval.swap[{i}]": spec for i, spec in enumerate(run.eval.swap)}
    for i, line in enumerate(run.compare.runs):
        specs |= {f"compare.runs[{i}].train": line.train}
        specs |= {f"compare.runs[{i}].swap[{j}]": spec for j, spec in enumerate(line.swap)}
    for key, spec in specs.items():
        try:
            build(spec, shape)
        except SchemeError as error:
            problems.append(f"{key}: {error}")
    return problems


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
