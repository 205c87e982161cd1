"""A report as text for a terminal, errors first."""

import json
import math
from pathlib import Path
from typing import Any

from lab.doctor import Report
from lab.doctor.engines import VERSIONS
from lab.doctor.entries import Entry, block_of, nested_in
from lab.doctor.finding import LEVELS, Finding, number
from lab.doctor.keys import MEANINGS, TYPES
from lab.doctor.lanes import Lanes

COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def show(report: Report, picture: Path | None = None) -> None:
    """Print all of it, errors first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(report.source.where, "bold"), soft_wrap=True)
    console.print(Text(headline(report)))
    console.print(table_of(report.findings))
    if rows := fields(report):
        heading(console, "What it says")
        grid = Table.grid(padding=(0, 2))
        for name, value, meaning in rows:
            grid.add_row(Text(name), Text(value, "bold", overflow="fold"), Text(meaning, "dim"))
        console.print(grid)
    for entry, lanes in zip(report.entries, report.lanes, strict=True):
        heading(console, "Lanes" if entry.layers is None else f"Lanes of {entry.layers} layers")
        grid = Table.grid(padding=(0, 2))
        for name, text in numbers(entry, lanes):
            grid.add_row(Text(name), Text(text))
        console.print(grid)
    if report.differences:
        heading(console, "Where readers differ")
        said = Table("", *(f"{name.replace('_', '.')} {version}" for name, version in VERSIONS.items()))
        for one in report.differences:
            said.add_row(*(Text(text) for text in (one.point, one.transformers, one.vllm, one.llama_cpp)))
        console.print(said)
    if picture is not None:
        console.print()
        console.print(Text(str(picture)), soft_wrap=True)


def heading(console, text: str) -> None:
    console.print()
    console.print(text, style="bold")


def headline(report: Report) -> str:
    counts = [(level, sum(one.level == level for one in report.findings)) for level in LEVELS]
    found = ", ".join(f"{count} {level}{'s' * (count > 1)}" for level, count in counts if count) or "nothing to remark"
    kinds = [
        f"{'no RoPE' if one.off else one.type or one.name}{f' ({one.layers})' * bool(one.layers)}"
        for one in report.entries
    ]
    what = f"RoPE {', '.join(kinds)}" if kinds else "no RoPE"
    return f"{report.config.family or 'a model of no known family'}, {what}: {found}"


def table_of(findings: list[Finding]):
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for one in findings:
        text = Text.assemble((one.field, "bold"), " ", one.problem)
        if one.instead:
            text.append(f"\n→ {one.instead}", "green")
        grid.add_row(Text(one.level, COLOURS[one.level]), Text(one.code, "dim"), text)
    return grid


def fields(report: Report) -> list[tuple[str, str, str]]:
    """Name, value and meaning of every field that has to do with position, in the order of the file."""
    config, rows = report.config, []
    where, block = block_of(config)
    for name, value in config.raw.items():
        if name == where or (name in ("rope_parameters", "rope_scaling") and isinstance(value, dict)):
            rows += of_block(report, name, value)
        elif name in MEANINGS:
            rows.append((config.path(config.called(name)), brief(value), MEANINGS[name]))
    return rows


def of_block(report: Report, where: str, block: Any) -> list[tuple[str, str, str]]:
    rows = []
    for key, value in block.items() if isinstance(block, dict) else ():
        if nested_in(block) and isinstance(value, dict):
            rows += of_block(report, f"{where}.{key}", value)
        else:
            meaning = MEANINGS.get(key, "no RoPE" if value is None else "read by nothing that is known here")
            if key in ("type", "rope_type") and isinstance(value, str) and value in TYPES:
                meaning = TYPES[value].says
            rows.append((report.config.names.get(key) or report.config.path(f"{where}.{key}"), brief(value), meaning))
    return rows


def brief(value: Any) -> str:
    """A value in a few letters; of a list, how long it is and what it spans."""
    if isinstance(value, list) and value:
        if all(number(one) is not None for one in value):
            return f"{len(value)} × {min(value):.4g} … {max(value):.4g}"
        kinds = dict.fromkeys(map(str, value))
        return ", ".join(f"{sum(str(one) == kind for one in value)} × {kind}" for kind in list(kinds)[:4])
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:39] + "…"


def numbers(entry: Entry, lanes: Lanes | str) -> list[tuple[str, str]]:
    """What follows from the fields, in words."""
    if entry.off:
        return [("none", "these layers have no RoPE")]
    if isinstance(lanes, str):
        return [("not computed", lanes)]
    count, slowest = lanes.channels // 2, max(lanes.plain)
    rest = lanes.head - lanes.channels
    turned = f"{count} lanes, {lanes.channels} channels of a head" + (f"; {rest} never turn" if rest > 0 else "")
    after = [one for one in lanes.long if math.isfinite(one)]
    rows = [
        ("turn", turned),
        (
            "lengths",
            f"L0 {lanes.trained} tokens, extended to {lanes.target}"
            if lanes.target > lanes.trained
            else f"{lanes.trained} tokens",
        ),
        (
            "wavelengths",
            f"{lanes.plain[0]:.3g} … {slowest:.4g} tokens"
            + (f", extended {min(after):.3g} … {max(after):.4g}" if lanes.long != lanes.plain else ""),
        ),
        (
            "critical dimension",
            f"{lanes.critical} of {lanes.channels} channels: {lanes.unturned} lanes never turn once within L0",
        ),
    ]
    if lanes.long != lanes.plain:
        kinds = ", ".join(f"{n} {name}" for name, n in lanes.kinds.items())
        own = entry.type == "longrope"  # each lane by a number of its own
        rows.append((f"at {lanes.target} tokens", f"slowed by {ratio(lanes.long, lanes.plain)}" if own else kinds))
    if lanes.short != lanes.long and lanes.short != lanes.plain:
        rows.append((f"up to {lanes.trained}", f"slowed by {ratio(lanes.short, lanes.plain)}"))
    if lanes.ramp:
        low, high = lanes.ramp
        rows.append(("ramp", f"from lane {low:.4g} (kept) to lane {high:.4g} (slowed by {entry.factor:g})"))
    grown = (
        "none"
        if lanes.gain == 1
        else f"queries and keys × {lanes.gain:.6g}, so scores × {lanes.gain**2:.5g}, short inputs too"
    )
    rows.append(("growth", grown))
    rows.append(("rounded to bf16", f"some lane would be {lanes.rounding:.3g} radians off at {lanes.target} tokens"))
    return rows


def ratio(now: list[float], plain: list[float]) -> str:
    found = [one / other for one, other in zip(now, plain, strict=True)]
    return f"{min(found):.4g} … {max(found):.4g}"
