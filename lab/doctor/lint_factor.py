"""Lints of the factor, and of the types that have little else: linear, dynamic, llama3, proportional."""

from collections.abc import Iterator

from lab.doctor.entries import Entry
from lab.doctor.finding import Finding, number, whole
from lab.doctor.keys import LENGTH
from lab.rope.types import WITH_ORIGINAL


def factor_stretches(entry: Entry) -> Iterator[Finding]:
    factor = entry.number("factor")
    if factor is None or entry.type in ("default", None) or entry.name is None:
        return
    if factor < 1:
        meant = f"; did you mean its inverse, {1 / factor:g}?" if factor > 0 else ""
        yield Finding(
            "error",
            "factor-below-1",
            entry.at("factor"),
            f"is {factor:g}: lanes would turn faster than in training, and transformers only logs it",
            f"how many times longer than in training inputs are to be{meant}",
        )
    elif factor == 1 and entry.type != "longrope":
        yield Finding("warning", "factor-1", entry.at("factor"), f"is 1: {entry.type} is then plain RoPE", '"default"')


def factor_is_given(entry: Entry) -> Iterator[Finding]:
    if "factor" in entry.given and entry.given["factor"] is None and entry.type in ("linear", "dynamic", "llama3"):
        problem = "is null, which transformers logs, and then divides by"
        yield Finding("error", "not-a-number", entry.at("factor"), problem, "a number")
    elif entry.type == "yarn" and "factor" in entry.given and entry.given["factor"] is None and entry.factor:
        problem = f"is null: transformers takes max_position_embeddings ÷ L0 = {entry.factor:g}"
        yield Finding("note", "factor-derived", entry.at("factor"), problem, f"{entry.factor:g}")


def original_is_given(entry: Entry) -> Iterator[Finding]:
    """The silent trap: the ramp, or the switch, is computed for a maximum that was already raised."""
    value, field = entry.original
    if entry.type not in WITH_ORIGINAL or field:
        return
    if value is not None:
        problem = f"is missing: {entry.config.family}'s default, {entry.trained}, is taken"
        yield Finding("note", "default-original", LENGTH, problem, f'"{LENGTH}": {entry.trained}')
        return
    yield Finding(
        "error",
        "missing-original",
        entry.at(LENGTH),
        f"is missing: L0 is silently taken to be {entry.config.called('max_position_embeddings')} "
        f"({entry.config.longest}), right only if that was never raised",
        f'"{LENGTH}": {likely(entry)}, the length of training before the extension',
    )


def likely(entry: Entry) -> str:
    factor, longest = entry.number("factor"), entry.config.longest
    return f"{round(longest / factor)}" if factor and factor > 1 and longest else "…"


def lengths_match(entry: Entry) -> Iterator[Finding]:
    """For YaRN the factor is what max_position_embeddings was raised by; for Llama 3.1 it never was."""
    factor, longest, original = entry.number("factor"), entry.config.longest, whole(entry.original[0])
    if entry.type != "yarn" or not (factor and longest and original) or factor < 1 or longest < original:
        return
    ratio = longest / original
    if ratio == factor:
        return
    if ratio == 1:
        yield Finding(
            "note",
            "longest-not-raised",
            entry.config.called("max_position_embeddings"),
            f"is still {longest}, the length before extension: what reads it stops there",
            f"{round(original * factor)}",
        )
        return
    yield Finding(
        "warning",
        "factor-mismatch",
        entry.at("factor"),
        f"is {factor:g}, and max_position_embeddings ÷ {LENGTH} is {longest} ÷ {original} = {ratio:g}: transformers "
        f"takes {factor:g}, for inputs up to {round(original * factor)}",
        f"{ratio:g}, or max_position_embeddings {round(original * factor)}",
    )


def is_dynamic(entry: Entry) -> Iterator[Finding]:
    if entry.type != "dynamic" or entry.name is None:
        return
    original, longest = whole(entry.given.get(LENGTH)) or whole(entry.config.raw.get(LENGTH)), entry.config.longest
    if original and longest and original < longest:
        yield Finding(
            "error",
            "dynamic-raised",
            entry.config.called("max_position_embeddings"),
            f"is {longest}, and dynamic takes it for the length of training, whatever {LENGTH} ({original}) "
            f"says: up to {longest} tokens nothing is scaled at all",
            f"{original}; and leave {LENGTH} out",
        )
    elif LENGTH in entry.given:
        problem = "is not read: dynamic takes max_position_embeddings for the length of training"
        yield Finding("warning", "other-types-key", entry.at(LENGTH), problem, "leave it out")
    yield Finding(
        "warning",
        "dynamic-remembers",
        entry.at("type" if "rope_type" not in entry.given else "rope_type"),
        "dynamic depends on what was run before: transformers keeps the base of the longest input so far until one is "
        "shorter than L0, keys in a cache keep older bases (generation differs from one forward pass), and whatever "
        "follows a token changes it; in vLLM it scales nothing without max_trained_positions",
        "yarn with the same factor, which depends on nothing",
    )


def is_linear(entry: Entry) -> Iterator[Finding]:
    if entry.type == "linear" and LENGTH in entry.given:
        problem = "is not read: linear divides by the factor alone"
        yield Finding("warning", "other-types-key", entry.at(LENGTH), problem, "leave it out")
    if entry.type == "linear" and (entry.number("factor") or 0) > 1 and not entry.original[1]:
        yield Finding(
            "note",
            "linear-length",
            entry.at("factor"),
            f"L0 stands nowhere. If max_position_embeddings was raised with the factor, it is {entry.trained}; if not, "
            f"{entry.config.longest}",
        )


def is_llama3(entry: Entry) -> Iterator[Finding]:
    if entry.type != "llama3":
        return
    low, high = entry.number("low_freq_factor"), entry.number("high_freq_factor")
    if low is not None and high is not None and not 0 < low < high:
        yield Finding(
            "error",
            "ramp-inverted",
            entry.at("high_freq_factor"),
            f"is {high:g}, and low_freq_factor {low:g}: there is no ramp between them, and readers differ in what they "
            "make of it",
            "low_freq_factor 1, high_freq_factor 4, as in Llama 3.1",
        )
    original, longest = whole(entry.original[0]), entry.config.longest
    if original and longest and original == longest:
        yield Finding(
            "warning",
            "longest-not-raised",
            entry.config.called("max_position_embeddings"),
            f"is {longest}, no more than {LENGTH}: transformers logs it, and what reads it stops there",
            f"{round(original * (entry.factor or 1))}",
        )


def is_proportional(entry: Entry) -> Iterator[Finding]:
    if entry.type != "proportional":
        return
    if number(entry.given.get("partial_rotary_factor")) is None:
        yield Finding(
            "warning",
            "missing-share",
            entry.at("partial_rotary_factor"),
            "is missing: every lane turns, and proportional is then linear",
            '"partial_rotary_factor": 0.25',
        )
    if (entry.number("factor") or 1) > 1:
        problem = "is read by transformers, and not by vLLM: lanes turn at different speeds"
        yield Finding("warning", "factor-not-everywhere", entry.at("factor"), problem)


OF_ENTRY = (
    factor_stretches,
    factor_is_given,
    original_is_given,
    lengths_match,
    is_dynamic,
    is_linear,
    is_llama3,
    is_proportional,
)
