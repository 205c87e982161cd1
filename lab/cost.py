"""What a model of the lab costs, layer by layer, in the numbers that `eval.cost` counts with."""

from dataclasses import replace

from eval.cost import Size
from lab.mixers import Kind
from lab.model import LabModel
from lab.model.layers import MixerLayer
from positional import Scheme


def size_of(model: LabModel) -> Size:
    """Its size with the encoding that is in it now: recurrences and convolutions make no scores, windows few."""
    size, mixers = Size.of(model), model.config.mixers
    attending = [number for number, kind in enumerate(mixers) if kind.attends]
    reaches = [seen(model.scheme.at(number), mixers[number]) for number in attending]
    made = [layer.mixer.made for layer in model.model.layers if isinstance(layer, MixerLayer)]
    return replace(
        size,
        layers=len(attending),
        windows=tuple(reach for reach in reaches if reach is not None),
        mixed=max([*made, *(4 * size.hidden for _ in attending[:1])]),
    )


def seen(scheme: Scheme, mixer: Kind) -> int | None:
    """How many tokens one sees in a layer. None: all, as far as is known."""
    if mixer.name == "window" and scheme.reach is None:  # of sinks, which stay in sight, none tells
        return mixer.options["window"] + mixer.options.get("sinks", 0)
    return scheme.reach
