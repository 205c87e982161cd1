"""A finding: one thing that holds of a configuration or is wrong with it, where, and what to write instead."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
"""error: the model does not build, or is silently another than the file says; warning: some reader or some input goes
wrong; note: good to know."""


SENSIBLE = 2**53
"""No length, base or factor is above this; and up to it floats are exact."""


@dataclass(frozen=True)
class Finding:
    level: Level
    code: str
    field: str  # as the file calls it
    problem: str
    instead: str = ""


def number(value: Any) -> float | None:
    """A JSON value as a number; None for what is none, or is mistaken for one: "8", true, Infinity, 1e300."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < SENSIBLE:
        return None
    return value


def whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None or found != int(found) else int(found)


def near(word: str, known: Iterable[str], cutoff: float = 0.75) -> str | None:
    """What a misspelt word may have meant, whatever its case."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, 1, cutoff)
    return by_lower[found[0]] if found else None


def some(values: list, most: int = 3) -> str:
    """The first of a list, in few words."""
    return ", ".join(map(str, values[:most])) + (f" … ({len(values)} of them)" if len(values) > most else "")
