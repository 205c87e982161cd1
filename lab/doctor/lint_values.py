"""Lints of values: numbers, flags and names that are something else in JSON."""

from collections.abc import Iterator
from typing import Any

from lab.doctor.entries import Entry
from lab.doctor.finding import Finding, number, whole
from lab.doctor.keys import FLAGS, LENGTH, LISTS, TYPES, WORDS


def numbers_are_numbers(entry: Entry) -> Iterator[Finding]:
    """Python takes true for 1 and transformers only logs "8.0", so each goes wrong late."""
    may_be_null = {*TYPES.get(entry.type or "", TYPES["default"]).takes, "partial_rotary_factor"}
    known = {key for kind in TYPES.values() for key in (*kind.needs, *kind.takes)} | {"rope_theta"}
    for key, value in entry.given.items():
        if key not in known or key in LISTS or (value is None and (key in may_be_null or key == "factor")):
            continue
        if key in FLAGS:
            if not isinstance(value, bool):
                yield Finding("error", "not-a-flag", entry.at(key), f"must be true or false, and is {value!r}", "true")
        elif number(value) is None:
            yield not_a_number(entry.at(key), value)
        elif key == LENGTH and whole(value) is None:
            yield Finding("error", "not-whole", entry.at(key), f"counts tokens, and is {value}", f"{round(value)}")
    for key in WORDS:
        if key in entry.given and entry.given[key] is not None and not isinstance(entry.given[key], str):
            yield Finding("error", "not-a-word", entry.at(key), f"must be a name, and is {entry.given[key]!r}")


def not_a_number(field: str, value: Any) -> Finding:
    try:
        meant = f"{float(value):g}" if isinstance(value, str) else "a number"
    except ValueError:
        meant = "a number"
    shown = (
        {True: "true", False: "false", None: "null"}.get(value) if value is None or isinstance(value, bool) else None
    )
    return Finding("error", "not-a-number", field, f"must be a number, and is {shown or repr(value)}", meant)


OF_ENTRY = (numbers_are_numbers,)
