"""An encoding -> the fields of a transformers configuration that make a checkpoint turn by it, or why none do."""

import json
from dataclasses import replace
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from lab import LabError
from lab.rope.config import Described, Rotation, described
from lab.rope.left_out import resolved
from lab.rope.types import BY_TYPE, WITH_ORIGINAL
from positional.build import Spec, find, name_of, parse
from positional.options import options_of
from positional.rope import Rope

TYPES = {kind: (name, {ours: key for key, ours in keys.items()}) for name, (kind, keys) in BY_TYPE.items()}
"""Our kind -> transformers' type of RoPE, and our options -> its keys."""

REQUIRED = {"rope-llama3": ("low", "high"), "rope-proportional": ("share",)}
"""Options with a default of ours where transformers has none, or another."""

OLD_NAMES = {"gpt_neox": ("rotary_emb_base", "rotary_pct")}
"""What transformers 4 called base and share of the head, where not rope_theta and partial_rotary_factor."""

OLD_WINDOWS = ("gemma3_text", "gemma3n_text")
"""The families that had, in transformers 4 already, another base for the layers of a window."""


def written(
    spec: Spec, config: PreTrainedConfig, *, target: int, train_length: int | None = None
) -> tuple[dict[str, Any] | None, str]:
    """The fields to change in a configuration of transformers 5 so that it computes the encoding; else None and why.

    spec: for the layers that see the whole input; those of a window keep theirs. See `resolved` for what it leaves out.
    target: the longest input to be run.   train_length: the L0 of the formulas; None: what the configuration says.
    Raises LabError where the target is below it, SchemeError where the encoding cannot be built.
    """
    config = config.get_text_config()
    before = described(config)
    own = from_length(before.rotations[before.main], train_length)
    if target < own.train_length:
        raise LabError(f"a target of {target} tokens is below the train length, {own.train_length}: it extends nothing")
    wanted = replace(own, spec=resolved(spec, own, target))
    wanted.scheme()  # what cannot be built is no question of how it is written
    said, why = in_their_words(wanted)
    if said is None:
        return None, why
    fields = fields_of(config, before, said, own.train_length, target)
    why = otherwise(config, fields, wanted, before, target)
    return (None, why) if why else (fields, "")


def from_length(one: Rotation, train_length: int | None) -> Rotation:
    """The same, trained at another length; None: as it says."""
    return one if train_length is None else replace(one, shape=replace(one.shape, train_length=train_length))


def in_their_words(wanted: Rotation) -> tuple[dict | None, str]:
    """The rope_parameters of one type of layers, but for what a family adds; else None and why."""
    name, spec = name_of(wanted.spec), wanted.spec
    if isinstance(spec, list):
        if len(spec) > 1:
            return None, f"{name} is several encodings, and a configuration of transformers says one"
        [spec] = spec
    kind, options = parse(spec)
    if options.pop("layout", "half") != "half":
        return None, f"{name}: which channels are a pair is in transformers' code, not in its configuration"
    kind, options = simpler(kind, options, wanted.size)
    if kind not in TYPES:
        turns = issubclass(find(kind), Rope)
        why = (
            "no rope_type computes it" if turns else "a configuration says how to turn by position, and it is not that"
        )
        return None, f"transformers has no word for {name}: {why}"
    theirs, keys = TYPES[kind]
    said = {"rope_type": theirs, "rope_theta": float(options.pop("base"))}
    said |= {keys[ours]: value for ours, value in options.items() if value is not None}
    if "attention_factor" in said:
        said["attention_factor"] = float(said["attention_factor"])  # transformers warns of a whole number
    return said | ({"original_max_position_embeddings": wanted.train_length} if theirs in WITH_ORIGINAL else {}), ""


def simpler(kind: str, options: dict, size: int) -> tuple[str, dict]:
    """The same by a kind that transformers has, where there is one. size: the channels of a head that turn."""
    if kind == "rope-ntk":  # no more than a larger base
        factor = options.pop("factor")
        return "rope", options | {"base": options["base"] * factor ** (size / (size - 2))}
    if kind == "rope-by-parts":  # YaRN without its growth
        return "rope-yarn", options | {"attention_factor": 1.0}
    if kind in REQUIRED:
        known = options_of(find(kind))
        options = {name: known[name].default for name in REQUIRED[kind]} | options
    if kind == "rope-proportional" and options.get("factor") == 1:
        options.pop("factor")  # transformers reads it there, and warns of it
    if kind == "rope-longrope" and options.pop("switch", "input") == "target":
        always = options["long"] if options["factor"] > 1 else options["short"]
        return kind, options | {"short": always, "long": always}
    return kind, options


def fields_of(config: PreTrainedConfig, before: Described, said: dict, length: int, target: int) -> dict[str, Any]:
    """The fields of a configuration with these parameters in its main layers. length: L0."""
    now = config.rope_parameters
    old = now[before.main] if before.main else now
    if "proportional" not in (said["rope_type"], old["rope_type"]) and "partial_rotary_factor" in old:
        said = said | {"partial_rotary_factor": old["partial_rotary_factor"]}  # the family's, of which channels turn
    # The dynamic type has no other word for the train length.
    fields = {"max_position_embeddings": length if said["rope_type"] == "dynamic" else target}
    if hasattr(config, "original_max_position_embeddings"):  # Phi-3: it wins over rope_parameters
        fields["original_max_position_embeddings"] = length
    return fields | {"rope_parameters": {**now, before.main: said} if before.main else said}


def otherwise(config: PreTrainedConfig, fields: dict, wanted: Rotation, before: Described, target: int) -> str:
    """Why a configuration with these fields computes something else than what is wanted; "" where it does not."""
    name, family = name_of(wanted.spec), config.model_type
    now, refusal = read_back(config, fields)
    if now is None:
        return f"{family} does not take {name} in its configuration: {refusal}"
    got, scheme = now.rotations[now.main], wanted.scheme()
    if got.size != wanted.size:
        return f"{family} would turn {got.size} channels of a head for {name}, and it was trained with {wanted.size}"
    for length in (1, wanted.train_length, wanted.train_length + 1, target):
        there, here = got.scheme(), scheme.frequencies(length)
        if len(here) != wanted.size // 2 or not torch.allclose(there.frequencies(length), here, rtol=1e-6, atol=0):
            return f"{family} would not turn by {name} at {length} tokens, but by {got.spec}"
        if abs(there.gain(length) / scheme.gain(length) - 1) > 1e-6:
            return f"{family} would not let queries and keys grow by {scheme.gain(length):.6g}, as {name} does"
    kept = {key: one.spec for key, one in before.rotations.items() if key != before.main}
    return (
        "" if all(now.rotations[key].spec == spec for key, spec in kept.items()) else f"{family} changes other layers"
    )


def renewed(config: PreTrainedConfig, fields: dict[str, Any], without: tuple[str, ...] = ()) -> PreTrainedConfig:
    """The configuration as it is read from a file with these fields changed, and some left out."""
    whole = {key: value for key, value in config.to_dict().items() if key not in without}
    return type(config).from_dict(json.loads(json.dumps(whole | fields)))


def read_back(
    config: PreTrainedConfig, fields: dict[str, Any], without: tuple[str, ...] = ()
) -> tuple[Described | None, str]:
    """What the configuration says with these fields; None and the reason where the family refuses them."""
    try:
        return described(renewed(config, fields, without)), ""
    except (LabError, ValueError, KeyError, StrictDataclassError) as error:
        return None, str(error.__cause__ or error)


def older(config: PreTrainedConfig) -> dict[str, Any] | None:
    """The same configuration's fields in the words of transformers 4, rope_scaling and rope_theta; None: it has none.

    It has none for a type that came later, nor where it would take another factor: it takes YaRN's and LongRoPE's from
    the two lengths, whatever `factor` says.
    """
    config = config.get_text_config()
    before, parameters = described(config), config.rope_parameters
    main = parameters[before.main] if before.main else parameters
    theta, share = OLD_NAMES.get(config.model_type, ("rope_theta", "partial_rotary_factor"))
    scaling = {key: value for key, value in main.items() if key not in ("rope_theta", "partial_rotary_factor")}
    fields: dict[str, Any] = {"rope_scaling": scaling if main["rope_type"] != "default" else None}
    fields[theta] = main["rope_theta"]
    if main["rope_type"] == "proportional" or takes_another_factor(config, main):
        return None
    if before.main and config.model_type not in OLD_WINDOWS:
        return None
    if "partial_rotary_factor" in main:
        fields[share] = main["partial_rotary_factor"]
    if main["rope_type"] == "longrope":  # read there alone
        fields["original_max_position_embeddings"] = main["original_max_position_embeddings"]
    if before.main:
        fields["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
    return fields if read_back(config, fields, without=("rope_parameters",))[0] == before else None


def takes_another_factor(config: PreTrainedConfig, parameters: dict) -> bool:
    if parameters["rope_type"] not in ("yarn", "longrope") or parameters.get("factor") is None:
        return False
    ratio = config.max_position_embeddings / parameters["original_max_position_embeddings"]
    return abs(ratio / parameters["factor"] - 1) > 1e-6
