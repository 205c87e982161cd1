"""Settings of a masked language model's run: as of any new model, which tokens are hidden, how it is measured."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, model_validator

from lab.settings import Compare, Length, Mixers, Model, Settings, Spec, Training, lengths_in, specs_of, unmixable


class Mask(Settings):
    """Which tokens of a training sequence the model is to tell, and what it is shown there."""

    share: float = Field(0.15, gt=0, lt=1)
    hidden: float = Field(0.8, ge=0, le=1)
    random: float = Field(0.1, ge=0, le=1)

    @model_validator(mode="after")
    def shares_are_parts(self):
        if self.hidden + self.random > 1:
            raise ValueError(
                f"hidden {self.hidden:g} and random {self.random:g} are shares of the same tokens: 1 at most"
            )
        return self


class PseudoEval(Settings):
    lengths: list[Length] = Field(["1x", "2x", "4x", "8x", "16x"], min_length=1)
    documents: int = Field(16, gt=0)
    targets: int = Field(256, gt=0)
    together: list[Annotated[int, Field(gt=0)]] = Field([8], min_length=1)
    batch_tokens: int = Field(16384, gt=0)
    swap: list[Spec] = []

    @property
    def protocols(self) -> list[str]:
        """What its rows go by."""
        from eval.pseudo import pseudo

        return [pseudo(count).name for count in self.together]

    @property
    def tasks(self) -> list:
        """None: every one asks for what comes next."""
        return []


class MaskedRun(Training):
    """Everything that such a run is made of; `configs/mlm.yaml` says what each setting means."""

    mask: Mask = Mask()
    model: Model = Model()
    eval: PseudoEval = PseudoEval()
    compare: Compare = Compare()

    @model_validator(mode="after")
    def parts_fit_together(self):
        if problems := list(misfits(self)):
            raise ValueError("\n".join(problems))
        return self

    @property
    def subject(self) -> Any:
        from lab.masked.masking import Masking

        return Masking()


def misfits(run: MaskedRun) -> Iterator[str]:
    """What no single setting shows."""
    from lab.masked.model import MaskedConfig
    from lab.model.config import misfits as of_sizes
    from positional import SchemeError

    if run.data.source == "algorithmic":
        yield "data.source: algorithmic problems ask for what comes next, which a masked language model does not tell"
    yield from lengths_in(run)[1]
    yield from (f"data.mix{said}" for said in unmixable(run.data, run.train.length))
    m = run.model
    if wrong := of_sizes(m.width, m.heads, m.kv_heads):
        yield from (f"model: {one}" for one in wrong)
        return
    mixers = {"model.mixer": m.mixer}
    mixers |= {f"compare.runs[{i}].mixer": line.mixer for i, line in enumerate(run.compare.runs) if line.mixer}
    if wrong := [f"{key}: {said}" for key, mixer in mixers.items() if (said := unattending(mixer, m.layers))]:
        yield from wrong
        return
    sizes = {"width": m.width, "heads": m.heads, "kv_heads": m.kv_heads, "layers": m.layers, "mixer": m.mixer}
    config = MaskedConfig(**sizes, train_length=run.train.length)
    for key, spec in specs_of(run).items():
        try:
            config.built(spec)
        except SchemeError as error:
            yield f"{key}: {error}"


def unattending(mixer: Mixers, layers: int) -> str:
    """What is wrong with mixers by themselves, or that one reads from first to last; empty where nothing is."""
    from lab import LabError
    from lab.mixers import by_layer

    try:
        readers = [kind.name for kind in by_layer(mixer, layers) if not kind.attends]
    except LabError as error:
        return str(error)
    if not readers:
        return ""
    return f"{readers[0]} reads from first to last, and a masked language model both ways: write attention or window"
