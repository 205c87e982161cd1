"""Lints of LongRoPE: its lists, which factor counts, when it switches, and what its families make of it."""

import math
from collections.abc import Iterator

from lab.doctor.entries import Entry
from lab.doctor.family import SWITCHES_CACHE
from lab.doctor.finding import Finding, number, whole
from lab.doctor.keys import LENGTH


def lists_fit(entry: Entry) -> Iterator[Finding]:
    if entry.type != "longrope":
        return
    for key in ("short_factor", "long_factor"):
        if key not in entry.given:
            continue
        found, field = entry.given[key], entry.at(key)
        lanes = entry.channels // 2 if entry.channels else None
        if not isinstance(found, list):
            problem = f"must be a list of numbers, and is {found!r}"
            yield Finding("error", "not-a-list", field, problem, f"{lanes or '…'} numbers, one a lane")
            continue
        if lanes and len(found) != lanes:
            problem = (
                f"has {len(found)} numbers for {lanes} lanes: transformers logs it, and fails when the list is used"
            )
            yield Finding("error", "list-length", field, problem, f"{lanes} numbers")
        if bad := [one for one in found if number(one) is None or one <= 0]:
            problem = f"must hold numbers above 0, and holds {', '.join(repr(one) for one in bad[:3])}"
            yield Finding("error", "list-values", field, problem)


def factor_is_one(entry: Entry) -> Iterator[Finding]:
    factor, longest, original = entry.number("factor"), entry.config.longest, whole(entry.original[0])
    if entry.type != "longrope" or not (factor and longest and original) or factor == longest / original:
        return
    ratio = longest / original
    if factor < 1 or ratio < 1 or original < 2:
        return
    new, old = (grown(one, original) for one in (factor, ratio))
    yield Finding(
        "warning",
        "factor-mismatch",
        entry.at("factor"),
        f"is {factor:g}, and max_position_embeddings ÷ {LENGTH} is {ratio:g}: transformers 5 takes the former (growth "
        f"{new:.4f}), transformers 4 and vLLM the latter ({old:.4f})",
        f"{ratio:g}",
    )


def grown(factor: float, original: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def switches(entry: Entry) -> Iterator[Finding]:
    alike = entry.given.get("short_factor") == entry.given.get("long_factor")
    if entry.type != "longrope" or alike or entry.config.is_gguf:
        return
    family, field = entry.config.family, entry.at("long_factor")
    if family == "phimoe":
        yield Finding(
            "warning",
            "never-long",
            field,
            "is never used by transformers 5.24's phimoe: lanes are slowed by short_factor at every length",
        )
    elif family not in SWITCHES_CACHE and family:
        yield Finding(
            "warning",
            "cache-mixes",
            field,
            f"comes into force at {entry.trained} tokens while keys in the cache keep short_factor: of all families "
            f"only {', '.join(SWITCHES_CACHE)} drop the cache there, {family} does not",
            "run long inputs in one forward pass, or make both lists equal",
        )


def phi3_has_its_own(entry: Entry) -> Iterator[Finding]:
    if entry.config.family != "phi3":
        return
    if entry.name == "yarn":
        problem = "Phi-3 takes yarn for longrope, as its first files called it"
        yield Finding("error", "phi3-type", entry.at("rope_type"), problem, '"rope_type": "longrope"')
    elif entry.type not in ("default", "longrope", None):
        problem = f"is {entry.type}: transformers' Phi-3 refuses all but default and longrope"
        yield Finding("error", "phi3-type", entry.at("rope_type"), problem, '"rope_type": "longrope"')


def phimoe_has_mscales(entry: Entry) -> Iterator[Finding]:
    if entry.config.family == "phimoe" and entry.type not in ("default", None):
        for key in ("short_mscale", "long_mscale"):
            if entry.number(key) is None:
                problem = "is missing or no number: transformers' phimoe raises TypeError"
                yield Finding("error", "missing-key", entry.at(key), problem, f'"{key}": 1.0')


OF_ENTRY = (lists_fit, factor_is_one, switches, phi3_has_its_own, phimoe_has_mscales)
