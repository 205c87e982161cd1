"""Lints of form: what is no dictionary, layers that do not exist, types and keys that are unknown or missing."""

from collections.abc import Iterator
from typing import Any

from lab.doctor.config import Config
from lab.doctor.entries import Entry, block_of, nested_in
from lab.doctor.finding import Finding, near, number, some
from lab.doctor.keys import EVERY, HARMLESS, LENGTH, LISTS, OLD_NAMES, TOP, TYPES

PLACED = {"factor": "linear", "low_freq_factor": "llama3", "short_factor": "longrope", "beta_fast": "yarn"}
"""The type that a key alone suggests, the first of them that the dictionary has counting least."""


def is_a_dictionary(config: Config) -> Iterator[Finding]:
    for name in ("rope_scaling", "rope_parameters"):
        block = config.raw.get(name)
        if block is not None and not isinstance(block, dict):
            yield Finding(
                "error",
                "not-a-dictionary",
                name,
                f"must be a dictionary or null, and is {block!r}",
                f'"{name}": {{"rope_type": "linear", "factor": 2.0}}',
            )


def fields_are_spelt(config: Config) -> Iterator[Finding]:
    for name in config.raw:
        meant = near(name, TOP, 0.88)
        known = name in TOP or name in vars(config.usual or object) or config.raw.get(meant or "") is not None
        if meant and not known and not config.is_gguf:
            yield Finding("error", "typo", name, "is read by nothing", f"did you mean {meant}?")


def layers_are_named(config: Config) -> Iterator[Finding]:
    """RoPEs for each type of layer need layers of these types."""
    where, block = block_of(config)
    if not nested_in(block):
        return
    if not config.labels:
        yield Finding(
            "error",
            "layers-untyped",
            where,
            f"holds a RoPE for each of {some(list(block))}, but no layer has a type: transformers reads it as one flat "
            "dictionary without rope_type",
            'write the RoPE itself there, or "layer_types"',
        )
        return
    for name in block:
        if name not in config.labels:
            meant = near(name, config.labels)
            hint = f"did you mean {meant}?" if meant else f"the types here are {', '.join(config.labels)}"
            yield Finding("error", "unknown-layers", f"{where}.{name}", "is the type of no layer, and is ignored", hint)
    for name in config.labels:
        if name not in block and not isinstance(getattr(type(config.usual), "default_theta", None), dict):
            yield Finding(
                "error",
                "layers-left-out",
                f"{where}.{name}",
                f"is missing: layers of the type {name} have no RoPE described, and the model does not build",
                f'"{name}": {{"rope_type": "default", "rope_theta": …}}, or null for none',
            )


def has_a_type(entry: Entry) -> Iterator[Finding]:
    if entry.name is None and set(entry.given) - {"rope_theta", "partial_rotary_factor"} and not nested_in(entry.given):
        kind = next((kind for key, kind in reversed(PLACED.items()) if key in entry.given), "linear")
        yield Finding(
            "error",
            "missing-type",
            entry.at("rope_type"),
            "is missing: transformers takes the whole dictionary for plain RoPE, and only logs "
            f"the keys it does not use ({some(sorted(set(entry.given) - {'rope_theta'}), 5)})",
            f'"rope_type": "{kind}"',
        )


def knows_the_type(entry: Entry) -> Iterator[Finding]:
    kind = entry.name
    old, new = entry.given.get("type"), entry.given.get("rope_type")
    if old is not None and new is not None and OLD_NAMES.get(str(old), old) != OLD_NAMES.get(str(new), new):
        yield Finding(
            "error",
            "types-disagree",
            entry.at("type"),
            f"is {old!r} where rope_type is {new!r}: transformers takes rope_type, old readers type",
            f'"type": {new!r}, or leave it out'.replace("'", '"'),
        )
    if kind is None or (entry.type is not None and kind not in OLD_NAMES):
        return
    if kind == "mrope" and "_vl" in entry.config.family:
        yield Finding("note", "old-type", written(entry), "mrope is plain RoPE for text: now written default")
    elif kind == "su" and entry.config.family == "phi3":
        yield old_phi3(entry)
    else:
        yield unknown(entry, kind)


def old_phi3(entry: Entry) -> Finding:
    if LENGTH in entry.given:
        return Finding("note", "old-type", written(entry), "su is what longrope was called; Phi-3 still reads it")
    problem = (
        f"su is what longrope was called; Phi-3 reads it, then raises KeyError as {LENGTH} is not in the dictionary"
    )
    return Finding("error", "old-type", written(entry), problem, '"longrope"')


def written(entry: Entry) -> str:
    """Where the type stands."""
    return entry.at("rope_type" if "rope_type" in entry.given else "type")


def unknown(entry: Entry, kind: Any) -> Finding:
    if isinstance(kind, str) and kind.lower().replace("_", "-") in ("ntk", "ntk-aware", "ntk-scaling"):
        hint = larger_base(entry)
    elif isinstance(kind, str) and kind in OLD_NAMES:
        hint = f'"rope_type": "{OLD_NAMES[kind]}"'
    else:
        meant = near(kind, TYPES, 0.6) if isinstance(kind, str) else None
        hint = f"did you mean {meant}?" if meant else f"one of {', '.join(TYPES)}"
    return Finding(
        "error",
        "unknown-type",
        written(entry),
        f"{kind!r} is no type that transformers knows: the configuration loads, and building the model ends in "
        f"KeyError: {kind!r}",
        hint,
    )


def larger_base(entry: Entry) -> str:
    """NTK-aware scaling in the only way that transformers can say it (Peng et al. 2023, arXiv:2309.00071)."""
    base, factor, channels = number(entry.base), entry.number("factor"), entry.channels
    said = "rope_theta · factor^(d/(d-2)), d being the channels that turn"
    if base and factor and factor >= 1 and channels and channels > 2:
        said = f"{base * factor ** (channels / (channels - 2)):.1f}"
    return f'transformers has no static NTK: write "rope_theta": {said}, and no dictionary'


def knows_the_keys(entry: Entry) -> Iterator[Finding]:
    if entry.type is None or nested_in(entry.given):
        return
    kind = TYPES[entry.type]
    own = {*kind.needs, *kind.takes, *EVERY}
    for key in entry.given:
        if key in own or key in HARMLESS or (entry.name is None and key in EVERY):
            continue
        if key == LENGTH or entry.name is None:
            continue  # lints of their own
        others = [name for name, other in TYPES.items() if key in (*other.needs, *other.takes)]
        meant = near(key, own)
        if others:
            problem = f"is a key of {' and '.join(others)} and does nothing for {entry.type}"
            yield Finding("warning", "other-types-key", entry.at(key), problem, "leave it out, or change rope_type")
        elif meant and meant not in entry.given:
            problem = "is read by nothing: transformers logs it and goes on with the default"
            yield Finding("error", "typo", entry.at(key), problem, f"did you mean {meant}?")
        else:
            yield Finding(
                "warning", "unknown-key", entry.at(key), "is read by nothing that is known here", "leave it out"
            )


def has_its_keys(entry: Entry) -> Iterator[Finding]:
    needed = TYPES[entry.type].needs if entry.type and entry.name is not None else ()
    for key in needed:
        if key not in entry.given:
            yield Finding(
                "error",
                "missing-key",
                entry.at(key),
                f"{entry.type} needs it: transformers raises KeyError as it reads the configuration",
                f'"{key}": {"[…]" if key in LISTS else "…"}',
            )


OF_CONFIG = (is_a_dictionary, fields_are_spelt, layers_are_named)
OF_ENTRY = (has_a_type, knows_the_type, knows_the_keys, has_its_keys)
