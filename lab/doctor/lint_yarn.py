"""Lints of YaRN: which growth is in force, whether the ramp is one, and what of it is not read."""

import math
from collections.abc import Iterator

from lab.doctor.entries import Entry
from lab.doctor.family import SCALES_SOFTMAX
from lab.doctor.finding import Finding

FAST, SLOW = 32.0, 1.0


def of_yarn(entry: Entry) -> bool:
    return entry.type == "yarn" and not (entry.config.family == "phi3")  # which reads it as longrope


def growth_is_given(entry: Entry) -> Iterator[Finding]:
    given = entry.given.get("attention_factor")
    if entry.type not in ("yarn", "longrope") or given is None or entry.config.is_gguf:
        return
    value, field = entry.number("attention_factor"), entry.at("attention_factor")
    if value is not None and value <= 0:
        yield Finding("error", "growth", field, f"must be above 0, and is {value:g}", "1.0, or leave it out")
    elif value is not None and not (isinstance(given, float) or entry.type == "longrope"):
        yield Finding(
            "note", "growth-whole", field, f"is {given}: transformers logs that it is no float", f"{value:.1f}"
        )
    if value is not None and value > 0:
        beside = [key for key in ("mscale", "mscale_all_dim") if entry.given.get(key)]
        also = f"; {' and '.join(beside)} beside it then do nothing" if beside else ""
        yield Finding(
            "note",
            "growth-replaced",
            field,
            f"replaces the scheme's own growth{own_growth(entry)}: scores × {value**2:.4g} at every length{also}",
        )


def own_growth(entry: Entry) -> str:
    factor = entry.factor
    return f" of {0.1 * math.log(factor) + 1:.4g}" if entry.type == "yarn" and factor and factor > 1 else ""


def mscales_are_two(entry: Entry) -> Iterator[Finding]:
    if not of_yarn(entry) or entry.given.get("attention_factor") is not None:
        return
    one, other = entry.number("mscale"), entry.number("mscale_all_dim")
    if bool(one) != bool(other):
        key, missing = ("mscale", "mscale_all_dim") if one else ("mscale_all_dim", "mscale")
        yield Finding(
            "warning",
            "mscale-alone",
            entry.at(key),
            f"does nothing without {missing} in transformers and vLLM, and counts in DeepSeek's own code and vLLM's "
            "deepseek_yarn",
            f'"{missing}" too, or "attention_factor" with the growth that is meant',
        )
    elif one and one == other:
        factor = entry.factor
        times = f" (× {(0.1 * other * math.log(factor) + 1) ** 2:.4f})" if factor and factor > 1 else ""
        yield Finding(
            "note" if entry.config.family in SCALES_SOFTMAX else "warning",
            "mscale-cancels",
            entry.at("mscale"),
            "equals mscale_all_dim: queries and keys do not grow, and the model itself must multiply the softmax scale"
            f"{times}; transformers' {entry.config.family} "
            + ("does" if entry.config.family in SCALES_SOFTMAX else "does not, so nothing makes up for the factor"),
            "" if entry.config.family in SCALES_SOFTMAX else "leave both out",
        )


def ramp_goes_up(entry: Entry) -> Iterator[Finding]:
    if not of_yarn(entry):
        return
    for key, default in (("beta_fast", FAST), ("beta_slow", SLOW)):
        if entry.number(key) == 0:
            problem = f"is 0, for which transformers takes its default, {default:g}"
            yield Finding("warning", "beta-0", entry.at(key), problem, f"{default:g}")
    fast, slow = entry.number("beta_fast") or FAST, entry.number("beta_slow") or SLOW
    if not 0 < slow < fast:
        yield Finding(
            "error",
            "ramp-inverted",
            entry.at("beta_fast"),
            f"is {fast:g}, and beta_slow {slow:g}: beta_fast must be the larger, both in turns within L0",
            "beta_fast 32, beta_slow 1",
        )
        return
    trained = entry.trained
    if trained and trained <= 2 * math.pi * slow:
        yield Finding(
            "error",
            "too-short",
            entry.original[1] or "max_position_embeddings",
            f"L0 is {trained}, not above 2π·beta_slow = {2 * math.pi * slow:.1f}: the ramp ends before it begins. As "
            "its ends are rounded, transformers and vLLM slow no lane at all, or all but the first as llama.cpp does",
        )
    elif trained and trained <= 2 * math.pi * fast:
        yield Finding(
            "note",
            "short-training",
            entry.original[1] or "max_position_embeddings",
            f"L0 is {trained}: no lane turns {fast:g} times within it, and of all lanes the first alone is kept",
            f"a smaller beta_fast, such as {max(2, round(trained / 50))}",
        )


def truncate_is_read(entry: Entry) -> Iterator[Finding]:
    if of_yarn(entry) and entry.given.get("truncate") is False and entry.layers is not None:
        yield Finding(
            "warning",
            "truncate-ignored",
            entry.at("truncate"),
            "is not read in a dictionary for one type of layer: transformers 5.24 looks for it beside the types, and "
            "rounds the ramp's ends",
            "one dictionary for all layers, if they are alike",
        )


def partial_growth(entry: Entry) -> Iterator[Finding]:
    """Growth of some channels only is no temperature of the softmax."""
    head, channels = entry.config.head, entry.channels
    grows = (entry.factor or 1) > 1 and entry.given.get("attention_factor") != 1
    latent = "qk_rope_head_dim" in entry.config.raw
    if entry.type in ("yarn", "longrope") and grows and not latent and head and channels and channels < head:
        problem = (
            f"queries and keys grow in the {channels} channels that turn, not in the other {head - channels} of a head"
        )
        yield Finding("note", "growth-partial", entry.at("factor"), problem)


OF_ENTRY = (growth_is_given, mscales_are_two, ramp_goes_up, truncate_is_read, partial_growth)
