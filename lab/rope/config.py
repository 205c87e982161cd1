"""A transformers configuration -> how its layers turn queries and keys, said as the lab says it."""

import difflib
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from lab import LabError
from lab.rope.otherwise import why_no_rope
from lab.rope.types import BY_TYPE, WITH_ORIGINAL
from positional import Scheme, SchemeError, Shape, build
from positional.build import Spec

FOREIGN = {
    "mrope_section": "its lanes are shared out to time, height and width",
    "alpha": "HunYuan reads it as a dynamic NTK of its own",
    "short_mscale": "PhiMoE grows queries and keys by two factors of its own",
    "llama_4_scaling_beta": "queries grow with their position as well",
}
"""Keys that change what a family computes and that no scheme of the lab has."""

WINDOWS_ALONE = ("cohere2", "exaone4", "exaone_moe")
"""Families whose code turns nothing in the layers that see the whole input, and whose configuration does not say so."""


@dataclass(frozen=True)
class Rotation:
    """How layers turn queries and keys."""

    spec: Spec  # as `positional.build` takes it, with its base; nope where they turn nothing
    size: int  # the channels of a head that turn, its first ones; all that follow pass
    shape: Shape  # what to build it with: heads of `size` channels, and the train length
    head: int  # the channels of a head

    @property
    def train_length(self) -> int:
        return self.shape.train_length

    def scheme(self) -> Scheme:
        return build(self.spec, self.shape)


@dataclass(frozen=True)
class Described:
    """What a configuration says of its positions."""

    rotations: dict[str, Rotation]  # by type of layer; "" where the configuration has one for all
    layers: tuple[str, ...]  # the type of each layer

    def of(self, layer: int) -> Rotation:
        return self.rotations[self.layers[layer]]

    @property
    def main(self) -> str:
        """The type of the layers that see the whole input, which are those that an extension changes."""
        return "" if "" in self.rotations else "full_attention"


def described(config: PreTrainedConfig) -> Described:
    """How each type of layer turns queries and keys, as transformers 5.17 … 5.24 computes it.

    Raises LabError, naming what it is, for what no scheme of the lab is the same as.
    """
    config = config.get_text_config()
    parameters = getattr(config, "rope_parameters", None)
    name = config.model_type
    if not parameters:
        raise LabError(why_no_rope(name), code=2)
    for field in ("hidden_size", "max_position_embeddings"):
        if not hasattr(config, field):
            raise LabError(f"{name} has no {field} in its configuration, which the formulas need")
    if hasattr(config, "qk_rope_head_dim"):
        raise LabError(f"{name} turns a part of its own of each head (latent attention): the lab has no such shape")
    kinds = getattr(config, "layer_types", None) or ()
    nested = [key for key in parameters if key in kinds]
    if not nested:
        return without_some(config, rotation(config, parameters, None))
    if missing := set(kinds) - set(nested):
        raise LabError(f"{name}: rope_parameters say nothing of its {' and '.join(sorted(missing))} layers")
    return Described({key: rotation(config, parameters[key], key) for key in nested}, tuple(kinds))


def without_some(config: PreTrainedConfig, one: Rotation) -> Described:
    """One rotation for all layers, but for those that the family leaves without."""
    turning = (
        getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers
    )  # SmolLM3. 1: turns, 0: does not
    if config.model_type in WINDOWS_ALONE and config.sliding_window is not None:
        turning = [kind == "sliding_attention" for kind in config.layer_types]
    still = {"nope": Rotation("nope", one.size, one.shape, one.head)} if not all(turning) else {}
    return Described({"": one} | still, tuple("" if turns else "nope" for turns in turning))


def rotation(config: PreTrainedConfig, parameters: dict | None, layer_type: str | None) -> Rotation:
    """parameters: of these layers.   layer_type: None where the configuration has one rotation for all."""
    where = config.model_type + (f", {layer_type}" if layer_type else "")
    own, mixed = config, getattr(config, "is_heterogeneous", False)
    if mixed and layer_type is None:
        raise LabError(f"{where}: its layers have heads of several sizes, and one rope_parameters for all")
    if mixed:
        try:
            own = config.per_layer_config[layer_type]
        except ValueError as error:
            raise LabError(f"{where}: layers of one type differ in their sizes") from error
    head = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    if parameters is None:
        return Rotation("nope", head, shape_of(own, head, config.max_position_embeddings), head)
    refuse_foreign(parameters, where, nested=layer_type is not None)
    kind, _ = BY_TYPE[parameters["rope_type"]]
    length = config.max_position_embeddings
    if parameters["rope_type"] in WITH_ORIGINAL:
        length = parameters["original_max_position_embeddings"]
    angles = own_angles(own, layer_type) if parameters["rope_type"] == "default" else []
    size = turning(parameters, head, angles)
    options = options_of(parameters, config.max_position_embeddings / length)
    spec = {"kind": kind, **options, "base": float(parameters["rope_theta"])}
    found = Rotation(spec, size, shape_of(own, size, length), head)
    try:
        ours = found.scheme().frequencies(1)
    except SchemeError as error:
        raise LabError(f"{where}: {error}") from error
    if not all(torch.allclose(one.double(), ours, rtol=1e-6, atol=0) for one in angles):
        raise LabError(f"{where}: its code makes other angles of rope_parameters than RoPE's, over {size} channels")
    return found


def shape_of(config: PreTrainedConfig, size: int, length: int) -> Shape:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return Shape(size * heads, heads, kv_heads, config.num_hidden_layers, length)


def refuse_foreign(parameters: dict, where: str, *, nested: bool) -> None:
    """Raise LabError for what has no counterpart in the lab."""
    name = parameters.get("rope_type")
    if name not in BY_TYPE:
        near = difflib.get_close_matches(str(name), BY_TYPE, 1)
        hint = f": did you mean {near[0]}?" if near else f", which reads {', '.join(BY_TYPE)}"
        raise LabError(f"{where}: rope_type {name} has no counterpart in the lab{hint}")
    for key in FOREIGN.keys() & {key for key, value in parameters.items() if value}:
        raise LabError(f"{where}: rope_parameters have {key}, which no encoding of the lab does: {FOREIGN[key]}")
    if parameters.get("rope_theta") is None:
        raise LabError(f"{where}: rope_parameters have no rope_theta, without which nothing turns: write it there")
    if nested and name == "yarn" and not parameters.get("truncate", True):
        raise LabError(
            f"{where}: transformers ignores truncate: false where each type of layer has its own rope_parameters, "
            "so the checkpoint and what is computed differ; write truncate: true for what transformers computes"
        )


def options_of(parameters: dict, ratio: float) -> dict[str, Any]:
    """Our options of one type's parameters. ratio: the longest input ÷ train length, where no factor is given."""
    name = parameters["rope_type"]
    given = {ours: parameters[key] for key, ours in BY_TYPE[name][1].items() if parameters.get(key) is not None}
    if name == "yarn":
        given = {ours: value for ours, value in given.items() if value or ours not in ("fast", "slow")}  # 0: default
        if not (given.get("mscale") and given.get("mscale_all_dim")):
            given = {ours: value for ours, value in given.items() if not ours.startswith("mscale")}
    if name in ("yarn", "longrope"):
        given.setdefault("factor", ratio)
    if name == "longrope":
        given["factor"] = max(1.0, given["factor"])  # it is the growth's alone, which is 1 below
    if name == "proportional":
        given.setdefault("share", 1.0)
    return given


def turning(parameters: dict, head: int, angles: list[Tensor]) -> int:
    """How many of a head's channels turn. angles: as the family's own code makes them, where it does."""
    if parameters["rope_type"] == "proportional":
        return head
    sizes = {2 * len(one) for one in angles}
    return sizes.pop() if len(sizes) == 1 else int(head * parameters.get("partial_rotary_factor", 1.0))


def own_angles(config: PreTrainedConfig, layer_type: str | None) -> list[Tensor]:
    """What a family's own modules turn by with the default type, (lanes,) fp32 each."""
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    owners = vars(sys.modules[model.__module__]).values() if model else ()
    rules = [one.compute_default_rope_parameters for one in owners if hasattr(one, "compute_default_rope_parameters")]
    return [rule(config, **({"layer_type": layer_type} if layer_type else {}))[0] for rule in rules]
