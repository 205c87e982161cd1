"""What mixes the tokens of a layer: attention, or a file of this folder, which reads them from first to last."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lab import LabError
from lab.mixers.base import Mixer, Place
from lab.mixers.convolution import Convolution
from lab.mixers.gru import GRU
from lab.mixers.lstm import LSTM
from lab.mixers.windowed import Windowed
from lab.settings import Trained
from positional import Scheme, SchemeError, Shape
from positional.build import names_of, with_options
from positional.options import checked
from positional.stack import acts
from positional.window import Window

Spec = str | dict[str, Any] | list
"""`attention`, `{kind: convolution, kernel: 3}`, or a list of these, a pattern that is repeated over the layers."""

READERS: dict[str, type[Mixer]] = {"lstm": LSTM, "gru": GRU, "convolution": Convolution}
"""What stands in the place of attention. The options of each are its constructor's keyword-only arguments."""
KINDS = ["attention", "window", *READERS]


@dataclass(frozen=True)
class Kind:
    """The mixer of one layer, as it was written."""

    name: str
    options: dict[str, Any]

    @property
    def attends(self) -> bool:
        return self.name not in READERS


def by_layer(spec: Spec, layers: int) -> list[Kind]:
    """The mixer of each layer. Raises LabError for one that there is not, wrong options, or a turn that never comes."""
    pattern = spec if isinstance(spec, list) else [spec]
    if not pattern:
        raise LabError("an empty list of mixers; write attention, or a pattern such as [lstm, lstm, lstm, attention]")
    if len(pattern) > layers:
        raise LabError(f"a pattern of {len(pattern)} mixers for {layers} layers: no layer has number {layers + 1}")
    kinds = [kind_of(one) for one in pattern]
    return [kinds[layer % len(kinds)] for layer in range(layers)]


def kind_of(spec: Any) -> Kind:
    name, options = spec, {}
    if isinstance(spec, dict):
        name, options = spec.get("kind"), {key: value for key, value in spec.items() if key != "kind"}
    if not isinstance(name, str):
        raise LabError(f"a mixer is a name, {{kind: name, option: value}} or a list of these, got {spec!r}")
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}"
        raise LabError(f"unknown mixer `{name}`: {hint}")
    if name == "attention" and options:
        raise LabError(f"mixer attention has no option `{next(iter(options))}`: its settings stand beside the mixer")
    if name == "attention":
        return Kind(name, {})
    try:
        return Kind(name, checked(name, READERS.get(name, Window), options, lambda spec: spec))
    except SchemeError as error:
        raise LabError(f"mixer {error}") from None


def build(kinds: list[Kind], layer: int, shape: Shape) -> Mixer | None:
    """What stands in the place of attention in this layer; None: attention itself. Raises LabError."""
    kind = kinds[layer]
    if kind.attends:
        return None
    number = [one.name for one in kinds[:layer]].count(kind.name)
    return READERS[kind.name](Place.of(shape, number), **kind.options)


def refuse(spec: Spec, shape: Shape) -> None:
    """Raise LabError for mixers of which no model can be made."""
    kinds = by_layer(spec, shape.layers)
    with torch.device("meta"):
        for layer in range(len(kinds)):
            build(kinds, layer, shape)


def windowed(scheme: Scheme, kinds: list[Kind]) -> Scheme:
    """The scheme, with a window in the layers that have one. Raises LabError for an encoding that no layer would use.

    An encoding acts where attention is; one that acts on embeddings reaches every layer.
    """
    if not any(kind.attends for kind in kinds):
        refuse_idle(scheme, kinds)
    windows = [kind.options if kind.name == "window" else None for kind in kinds]
    if not any(windows):
        return scheme
    try:
        return Windowed(scheme, windows)
    except SchemeError as error:
        raise LabError(f"mixer window: {error}") from None


def refuse_idle(scheme: Scheme, kinds: list[Kind]) -> None:
    done = set().union(acts(scheme), *(acts(scheme.at(layer)) for layer in range(len(kinds))))
    if done and "embed" not in done:
        raise LabError(
            f"an encoding acts in attention, and no layer of mixer {'-'.join(dict.fromkeys(k.name for k in kinds))} "
            "has any: write positional: nope, or a pattern with attention in it, such as [lstm, lstm, lstm, attention]"
        )


def name_of(spec: Spec) -> str:
    """What tables call it: its kind and what options it was given; of a pattern, those in turn."""
    kinds = [kind_of(one) for one in (spec if isinstance(spec, list) else [spec])]
    return "-".join(" ".join([kind.name, *(f"{key}={value}" for key, value in kind.options.items())]) for kind in kinds)


def beside(spec: Spec, encoding: str) -> str:
    """What tables call a mixer and an encoding together."""
    return name_of(spec) if encoding == "nope" else f"{name_of(spec)} {encoding}"


def names_of_lines(lines: Sequence[Trained]) -> list[str]:
    """The encoding of each; the mixer of a line that names one, and its encoding behind it where it has any."""
    encodings = iter(names_of([line.train for line in lines if line.mixer is None]))
    names = [next(encodings) if line.mixer is None else beside(line.mixer, with_options(line.train)) for line in lines]
    return [
        name if name not in names[:at] else f"{name} ({names[:at].count(name) + 1})" for at, name in enumerate(names)
    ]
