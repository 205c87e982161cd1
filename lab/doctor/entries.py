"""The RoPEs of a configuration in one form, be it that of transformers 4 or 5, one for all or one a type of layer."""

from dataclasses import dataclass, field
from typing import Any

from lab.doctor.config import Config
from lab.doctor.family import WHOLE_HEAD
from lab.doctor.finding import number, whole
from lab.doctor.keys import LENGTH, OLD_NAMES, TYPES
from lab.rope.types import WITH_ORIGINAL

LOCAL, GLOBAL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Entry:
    """One RoPE as the file has it: values may be of any type and mean nothing."""

    config: Config = field(repr=False)
    layers: str | None  # the type of its layers; None: all are alike
    where: str  # the path of its dictionary in the file
    given: dict[str, Any]
    base: Any
    base_field: str  # where the base stands; empty: the file does not have it
    flat: str  # where it could stand beside the dictionary
    off: bool = False  # null: these layers have no RoPE

    @property
    def name(self) -> Any:
        """The type as it is written; None: it is not."""
        return self.given.get("rope_type", self.given.get("type"))

    @property
    def type(self) -> str | None:
        """The type that is meant; None: transformers knows none of this name."""
        found = OLD_NAMES.get(self.name, self.name) if isinstance(self.name, str) else self.name
        if found is None:
            return "default"
        return found if isinstance(found, str) and found in TYPES else None

    def at(self, key: str) -> str:
        """A key as a path in the file."""
        return self.config.names.get(key) or (f"{self.where}.{key}" if self.where else key)

    def number(self, key: str) -> float | None:
        return number(self.given.get(key))

    @property
    def share(self) -> tuple[Any, str]:
        """The share of a head's channels that turn, and where the file says so."""
        if "partial_rotary_factor" in self.given:
            return self.given["partial_rotary_factor"], self.at("partial_rotary_factor")
        name, value = self.config.find("partial_rotary_factor")
        if name and value is not None:
            return value, name
        if self.config.head and whole(self.config.raw.get("rotary_dim")):
            return whole(self.config.raw["rotary_dim"]) / self.config.head, "rotary_dim"
        usual = of_layers(getattr(self.config.usual, "rope_parameters", None), self.layers)
        return usual.get("partial_rotary_factor") or 1.0, ""

    @property
    def channels(self) -> int | None:
        """How many channels of a head turn; None: the file does not make it known."""
        share, head = number(self.share[0]), self.config.head
        if head is None or share is None or not 0 < share <= 1:
            return None
        ignored = self.config.family in WHOLE_HEAD and self.type == "default"
        return head if ignored or self.type == "proportional" else int(head * share)

    @property
    def original(self) -> tuple[Any, str]:
        """The length before extension, and where it stands: beside the dictionary, or as a default, it counts first."""
        outer = self.config.value(LENGTH)
        if self.layers is None and outer is not None and self.config.family != "phimoe":  # which loses it
            return outer, LENGTH if LENGTH in self.config.raw else ""
        return self.given.get(LENGTH), self.at(LENGTH) if LENGTH in self.given else ""

    @property
    def trained(self) -> int | None:
        """L0, the length of training that transformers computes with; for linear, which has none, what is likely."""
        longest, original = self.config.longest, whole(self.original[0])
        if self.type in WITH_ORIGINAL:
            return original or longest
        if self.type in ("linear", "proportional"):
            factor = self.number("factor") or 1.0
            return original or (round(longest / factor) if longest and factor >= 1 else longest)
        return longest

    @property
    def factor(self) -> float | None:
        """s: as given, or as transformers 5 derives it."""
        if "factor" in self.given and self.given["factor"] is not None:
            return self.number("factor")
        if self.type in ("yarn", "longrope") and self.config.longest and self.trained:
            return self.config.longest / self.trained
        return 1.0 if self.type == "proportional" else None


def of_layers(parameters: Any, layers: str | None) -> dict[str, Any]:
    """A family's RoPE of one type of layer."""
    found = parameters if isinstance(parameters, dict) else {}
    nested = found.get(layers) if layers else None
    return nested if isinstance(nested, dict) else {} if layers and nested_in(found) else found


def nested_in(block: Any) -> bool:
    """Whether a RoPE dictionary holds one for each type of layer."""
    values = list(block.values()) if isinstance(block, dict) else []
    return any(isinstance(one, dict) for one in values) and all(one is None or isinstance(one, dict) for one in values)


def block_of(config: Config) -> tuple[str, Any]:
    """The dictionary that transformers 5 takes: rope_scaling where there is one, else rope_parameters."""
    name = "rope_scaling" if config.raw.get("rope_scaling") else "rope_parameters"
    return (name, config.raw[name]) if config.raw.get(name) else ("", {})


def entries(config: Config) -> list[Entry]:
    """Every RoPE of the model, one for each type of layer that has its own."""
    where, block = block_of(config)
    block = block if isinstance(block, dict) else {}
    if nested_in(block):
        rest = [one for one in config.labels if one not in block] if where == "rope_scaling" else []
        made = [made_of(config, one, f"{where}.{one}", block[one]) for one in block]
        return made + [made_of(config, one, "", {}) for one in rest]
    if local_base(config):
        return [made_of(config, GLOBAL, where, block), made_of(config, LOCAL, "", {})]
    return [made_of(config, None, where, block)]


def local_base(config: Config) -> bool:
    """Whether layers that see a window have a base of their own, beside the dictionary, as in Gemma 3."""
    usual = getattr(type(config.usual), "default_theta", None)
    return bool(config.find("rope_local_base_freq")[0]) or isinstance(usual, dict)


def made_of(config: Config, layers: str | None, where: str, given: Any) -> Entry:
    if given is None:
        return Entry(config, layers, where, {}, None, "", "rope_theta", off=True)
    given = given if isinstance(given, dict) else {}
    flat = "rope_local_base_freq" if layers == LOCAL and local_base(config) else "rope_theta"
    name, base = config.find(flat)
    if "rope_theta" in given:
        name, base = f"{where}.rope_theta", given["rope_theta"]
    elif not name:
        base = of_layers(getattr(config.usual, "rope_parameters", None), layers).get("rope_theta", 10000.0)
    return Entry(config, layers, where, given, base, config.names.get(flat, name) if name else "", flat)
