"""Lanes: how fast each pair of channels turns, before and after the extension, by the lab's own encodings."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from lab.doctor.entries import Entry
from lab.doctor.finding import number
from lab.doctor.keys import LISTS
from lab.rope.lanes import kinds_of
from lab.rope.types import BY_TYPE
from positional import SchemeError, Shape, build
from positional.rope import Rope
from positional.rope_by_parts import RopeByParts

MOST = 2**16
"""Channels of a head that are still believed."""


@dataclass(frozen=True)
class Lanes:
    """Wavelengths are in tokens, one a lane; inf: the lane stands still."""

    scheme: Rope
    channels: int  # of a head that turn
    head: int  # of a head
    base: float
    trained: int  # L0
    target: int  # the longest input it is extended to
    plain: list[float]
    short: list[float]  # for inputs of L0 tokens
    long: list[float]  # for inputs of `target` tokens
    gain: float  # what queries and keys are multiplied by, at `target`
    kinds: dict[str, int]  # how many lanes are kept, blended, stretched, stand still, at `target`
    rounding: float  # radians the angle of some lane is off at `target`, if frequencies are rounded to bf16

    @property
    def critical(self) -> int:
        """Channels up to the first lane that never turns once within L0; those behind it have not seen all angles."""
        lanes = self.channels / 2 * math.log(self.trained / (2 * math.pi)) / math.log(self.base)
        return min(self.channels, max(0, 2 * math.ceil(lanes)))

    @property
    def unturned(self) -> int:
        """Lanes that did not turn once in training."""
        return sum(one > self.trained for one in self.plain)

    @property
    def ramp(self) -> tuple[float, float] | None:
        return self.scheme.ends() if isinstance(self.scheme, RopeByParts) else None


def description(entry: Entry) -> dict[str, Any] | None:
    """A RoPE of the file as the lab describes it; None: it has no counterpart, or its base or factor is no number."""
    if entry.off or entry.type not in BY_TYPE or number(entry.base) is None:
        return None
    kind, keys = BY_TYPE[entry.type]
    given = entry.given if entry.name is not None else {}
    made = {ours: given[key] for key, ours in keys.items() if given.get(key) is not None}
    if any(number(value) is None for key, value in made.items() if key not in ("short", "long", "truncate")):
        return None
    if entry.type == "yarn":
        made = without_idle(made)
    if entry.config.family == "phimoe" and entry.number("long_mscale"):
        made["attention_factor"] = entry.number("long_mscale")  # of all readers of lanes here, it alone has these
    if entry.type in ("yarn", "longrope", "proportional"):
        if entry.factor is None:
            return None
        made["factor"] = entry.factor
    return {"kind": kind, "base": float(entry.base)} | {
        name: float(value) if number(value) is not None and name not in LISTS else value for name, value in made.items()
    }


def without_idle(made: dict[str, Any]) -> dict[str, Any]:
    """YaRN's options without those that transformers does not read: one mscale alone, zeros that mean the default."""
    made = {name: value for name, value in made.items() if value or name == "truncate"}
    if not {"mscale", "mscale_all_dim"} <= made.keys():
        made = {name: value for name, value in made.items() if not name.startswith("mscale")}
    return made


def lanes_of(entry: Entry) -> Lanes | str:
    """The lanes, or why they cannot be computed."""
    made, channels, trained = description(entry), entry.channels, entry.trained
    if made is None:
        return "its type, base or factor is not known"
    if not channels or not trained:
        return "the channels that turn, or the length of training, are not known"
    if channels > MOST:
        return f"no head has {channels} channels"
    try:
        scheme = build(made, Shape(channels, 1, 1, 1, trained))
        plain = Rope(scheme.shape, base=made["base"]).frequencies(trained)
    except SchemeError as error:
        return str(error)
    target = target_of(entry, trained)
    short, long = scheme.frequencies(trained), scheme.frequencies(target)
    counts = {name: int(chosen.sum()) for name, _, chosen in kinds_of(long, plain)}
    counts["stand still"] = int((long == 0).sum())
    return Lanes(
        scheme,
        channels,
        entry.config.head or channels,
        made["base"],
        trained,
        target,
        waves(plain),
        waves(short),
        waves(long),
        scheme.gain(target),
        {name: count for name, count in counts.items() if count},
        float((long - long.bfloat16().double()).abs().max() * target),
    )


def target_of(entry: Entry, trained: int) -> int:
    longest, factor = entry.config.longest or trained, entry.factor or entry.number("factor") or 1.0
    return longest if longest > trained else max(trained, round(factor * trained))


def waves(frequencies: torch.Tensor) -> list[float]:
    return (2 * math.pi / frequencies).tolist()
