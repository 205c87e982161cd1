"""Settings of `lab finetune`: which pretrained model, with which encoding, trained further on what, and how."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lab import LabError
from lab.config import checked, merged, parsed, spec_of, tree
from lab.settings import Data, Length, Settings, Spec, Train, Training, unmixable

Matrices = Literal["attention", "all-linear"]


class Pretrained(Settings):
    """A checkpoint and what becomes of its positions; `method` with `longest` is a short way to say `positional`."""

    name: str
    positional: Spec = None
    method: str | None = None
    longest: Length | None = None
    train_length: int | None = Field(None, gt=1)


class Tuning(Train):
    """Steps, with the rates of Position Interpolation and YaRN as defaults: warmed up, then constant."""

    length: Length | None = None
    batch: int = Field(8, gt=0)
    steps: int = Field(400, gt=0)
    lr: float = Field(2e-5, gt=0)
    warmup: int = Field(20, ge=0)
    floor: float = Field(1.0, ge=0, le=1)
    weight_decay: float = Field(0.0, ge=0)
    save_every: int = Field(100, gt=0)
    checkpointing: bool = False


class Lora(Settings):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) in the place of all weights."""

    rank: int = Field(16, gt=0)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: Matrices | Annotated[list[str], Field(min_length=1)] = "attention"
    also: list[str] = []


class HeldOut(Settings):
    """What the model loses before the first step and after the last."""

    lengths: list[Length] = Field(["1x", "2x", "4x"], min_length=1)
    documents: int = Field(8, gt=0)


class Finetuning(Training):
    """Everything that a fine-tuned model is made of; `configs/finetune.yaml` says what each setting means."""

    model: Pretrained
    train: Tuning = Tuning()
    lora: Lora | None = None
    eval: HeldOut = HeldOut()

    @model_validator(mode="before")
    @classmethod
    def tokenizer_is_the_models(cls, values: Any) -> Any:
        """So that every reader of `data` finds it there."""
        data, model = values.get("data") or {}, values.get("model")
        if isinstance(data, dict) and isinstance(model, dict) and isinstance(model.get("name"), str):
            return {**values, "data": {"tokenizer": model["name"], **data}}
        return values

    @model_validator(mode="after")
    def parts_fit_together(self):
        if problems := list(misfits(self.model, self.data)):
            raise ValueError("\n".join(problems))
        return self


def misfits(model: Pretrained, data: Data) -> Iterator[str]:
    """What no single setting shows."""
    from lab.extend.methods import EVERY

    yield from (f"data.mix{said}" for said in unmixable(data, 2))
    if data.tokenizer != model.name:
        yield f"data.tokenizer: {data.tokenizer} is not the model's own, which is taken: leave it out"
    if data.source == "algorithmic":
        yield "data.source: a pretrained model is trained further on text, and algorithmic problems are none"
    if model.method is not None and model.positional is not None:
        yield "model.method: it is a short way to say model.positional; leave one of them out"
    if model.method is not None and model.method not in EVERY:
        near = difflib.get_close_matches(model.method, EVERY, 1)
        hint = f": did you mean {near[0]}?" if near else ";"
        yield f"model.method: no method `{model.method}`{hint} there are {', '.join(EVERY)}, or write model.positional"
    if model.method is not None and model.longest is None and model.method != "drope":
        yield f"model.longest: {model.method} needs the length to reach (--to): 16384, 16k or 4x"


def asked(
    model: str,
    words: list[str],
    *,
    data: list[str] | None = None,
    scheme: str | None = None,
    lora: int | None = None,
    out: Path | None = None,
    **options: Any,
) -> Finetuning:
    """The settings of a YAML file, or of a model, with the options of the command line over them.

    words: `a.b=c` over both, and further files of text, as a shell makes many of one `--data ~/books/*.txt`.
    scheme: an encoding in one line.   lora: the rank.   options: by dotted name, None for those that are not given.
    Raises LabError, listing every mistake at once.
    """
    path = Path(model)
    over: dict[str, Any] = {}
    if path.suffix in (".yaml", ".yml"):
        values = tree(path)
    else:
        method = options.get("model.method") or ("tuned" if scheme is None else "scheme")
        short = (path.name or path.resolve().name).removesuffix(".gguf").removeprefix("package:")
        values = {"model": {"name": model}, "name": f"{short}-{method}"}
    files = [*(data or []), *(word for word in words if "=" not in word)]
    over |= {"data": {"source": "text", "path": files}} if files else {}
    over |= {"lora": {"rank": lora}} if lora else {}
    over |= {"folder": str(out.parent), "name": out.name} if out else {}
    values = merged(values, over)
    for key, value in options.items():
        section, _, last = key.partition(".")
        if value is not None:
            values = merged(values, {section: {last: value} if last else value})
    if scheme is not None:
        values = merged(values, {"model": {"positional": spec_of(scheme)}})
    if out is not None and not vacant(out):
        raise LabError(f"--out {out} holds something else than a run of lab finetune: give another folder", code=2)
    overrides = [word for word in words if "=" in word]
    return checked(merged(values, parsed(overrides)), path, overrides, Finetuning)


def vacant(out: Path) -> bool:
    """Whether a run may go there: nothing is, or a run, which `lab.claim` compares."""
    if not out.is_dir():
        return not out.exists()
    return (out / "config.yaml").exists() or not any(out.iterdir())
