"""Check: what every encoding must hold to, tried on one of them. The tests try the same on each that is built in."""

import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lab.check import numbers, places
from lab.probe import Fails, Skips, few, hidden, made, no_number
from positional import Positions, SchemeError, Shape
from positional.build import Spec, find, kinds, parse, sources, summary
from positional.options import options_of, types_of

SHAPE = Shape(width=64, heads=4, kv_heads=4, layers=2, train_length=64)
"""Small, and with heads of 16 channels: 1/√16 is exact."""
PAPER = re.compile(r"\([A-Z][\w\- ]+ (et al\. |and \w+ )?(19|20)\d\d, (arXiv:\d{4}\.\d{4,5}|[A-Z]\w+)\)\.$")
LINE = 'write """Name: what it does in one clause (Authors year, arXiv:…)."""'


@dataclass(frozen=True)
class Result:
    name: str
    says: str  # the property, as a sentence
    outcome: str  # ok, fails, skipped
    where: str


def run(spec: Spec, shape: Shape = SHAPE, *, compile: bool = False) -> Iterator[Result]:
    """Every property, one after the other.

    compile: also whether the whole model is one graph, which takes seconds.
    """
    for name, holds in (PROPERTIES | COMPILED if compile else PROPERTIES).items():
        says = holds.__doc__.strip().splitlines()[0].rstrip(".")
        try:
            yield Result(name, says, "ok", holds(spec, shape) or "")
        except Skips as reason:
            yield Result(name, says, "skipped", str(reason))
        except Fails as where:
            yield Result(name, says, "fails", str(where))
        except Exception as error:  # whatever a user's code may raise
            yield Result(name, says, "fails", raised(spec, error))


def raised(spec: Spec, error: Exception) -> str:
    """An error that ended a check: what and where, in the scheme's own file if it passed through that."""
    frames = traceback.extract_tb(error.__traceback__)
    own = {str(path.resolve()) for path in sources(spec)}
    last = next((frame for frame in reversed(frames) if frame.filename in own), frames[-1])
    return f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}, line {last.lineno}: {last.line})"


def names_its_paper(spec: Spec, shape: Shape) -> str | None:
    """Line 1 of its file says what it does and names its paper."""
    for kind in (parse(one)[0] for one in members(spec)):
        line = documented(kind)
        name, colon, rest = line.partition(": ")
        if not (colon and name and len(rest.split()) >= 5):
            raise Fails(f"line 1 is `{line}`: {LINE}")
        if len(line) > 114:
            raise Fails(f"line 1 has {len(line)} characters, and with its quotes room for 114")
        if not PAPER.search(line):
            if kind in kinds():
                raise Fails(f"line 1 ends with `{line[-30:]}` and not with (Authors year, arXiv:…).")
            return "names no paper, such as (Authors year, arXiv:…). at the end of line 1"
    return None


def documented(kind: str) -> str:
    try:
        return summary(kind)
    except (AttributeError, IndexError):  # no docstring, or an empty one
        raise Fails(f"there is no line 1: {LINE}") from None


def members(spec: Spec) -> list[Spec]:
    return spec if isinstance(spec, list) else [spec]


def refuses_bad_options(spec: Spec, shape: Shape) -> str | None:
    """A bad option is refused with a message that names it."""
    tried = 0
    for number, one in enumerate(members(spec)):
        kind, given = parse(one)
        types = types_of(find(kind))
        for name in options_of(find(kind)):
            for value in wrong_values(types.get(name, Any)):
                bad = {"kind": kind, **given, name: value}
                whole = [*members(spec)[:number], bad, *members(spec)[number + 1 :]]
                refused(whole if isinstance(spec, list) else bad, shape, kind, name, value)
                tried += 1
    if not tried:
        raise Skips("it has no options that take numbers")


def wrong_values(wanted: Any) -> list:
    """Numbers that most options cannot mean, of the right type; what is of another type `build` refuses by itself."""
    takes = {wanted, *getattr(wanted, "__args__", ())}
    return ([-1, 0] if int in takes else [-1.0, 0.0] if float in takes else []) if bool not in takes else []


def refused(spec: Spec, shape: Shape, kind: str, name: str, value: Any) -> None:
    """A value that is taken must do no harm, and one that is not must be refused as every other is."""
    said = f"{name}={value}"
    try:
        scheme = made(spec, shape)
        pos = Positions.first(few(scheme, 8))
        place = no_number(scheme, hidden(shape, pos.tokens), pos)
    except SchemeError as error:
        reason = str(error).removeprefix(f"{kind}: ")
        if name not in reason:
            raise Fails(f"{said} is refused with `{reason}`, which does not name {name}") from None
    except Exception as error:
        raise Fails(
            f"{said} is not refused, and ends in {raised(spec, error)}: raise SchemeError with the legal range"
        ) from None
    else:
        if place:
            raise Fails(f"{said} is taken, and gives {place}: raise SchemeError")


PROPERTIES: dict[str, Callable[[Spec, Shape], str | None]] = {
    "paper": names_its_paper,
    "buffers": numbers.keeps_no_buffers,
    "options": refuses_bad_options,
    "finite": numbers.is_finite,
    "future": places.sees_no_future,
    "prefix": places.is_prefix_consistent_as_claimed,
    "queries": places.takes_the_last_queries_alone,
    "cache": places.decodes_with_a_cache,
    "reach": places.reaches_no_further_than_it_says,
    "padding": places.ignores_left_padding,
    "packing": places.keeps_documents_apart,
    "trace": places.forgets_longer_inputs,
    "shift": places.depends_on_distance_alone,
    "order": places.tells_order,
    "training": places.places_tokens_in_training,
    "bf16": numbers.survives_bf16,
    "gradient": numbers.sends_gradient_to_every_parameter,
    "saved": numbers.is_saved_whole,
    "backends": numbers.runs_alike_on_every_backend,
}
COMPILED = {"compile": numbers.compiles_whole}


def show(results: Iterator[Result]) -> int:
    """A line for each property as a table; how many fail."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "fails": "bold red", "skipped": "dim"}
    table, failed = Table("property", "holds if", "", "where, or why not"), 0
    for result in results:
        failed += result.outcome == "fails"
        outcome = Text(result.outcome, colours[result.outcome])
        table.add_row(Text(result.name, "bold"), Text(result.says), outcome, Text(result.where))
    Console().print(table)
    return failed
