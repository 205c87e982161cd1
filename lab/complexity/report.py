"""Table 1 beside what was measured, and a figure in logarithms."""

from pathlib import Path

from lab.complexity.counts import crossing, words
from lab.complexity.fit import LAST, Exponent, crossover, exponent
from lab.complexity.layers import Sizes

NAMES = {"forward_ms": "forward, ms", "both_ms": "with gradient, ms", "both_mib": "with gradient, MiB"}


def costs(rows: list[dict], layer: str, what: str) -> dict[int, float]:
    """length -> a cost, where it was measured."""
    return {row["length"]: row[what] for row in rows if row["layer"] == layer and what in row}


def layers_in(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(row["layer"] for row in rows))


def sizes_of(rows: list[dict]) -> Sizes:
    return Sizes(**{name: rows[0][name] for name in ("width", "heads", "window", "kernel")})


def path_of(rows: list[dict], layer: str) -> str:
    """What lies between the first and the last of some tokens, as it was measured."""
    row = next(row for row in rows if row["layer"] == layer)
    said = f"{row['path_layers']} layer" + ("s" if row["path_layers"] > 1 else "")
    return f"{said}, {row['path_steps']} steps" if "path_steps" in row else said


def first(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of Table 1: theory, then exponents of n."""
    header = ["layer", "complexity", "counted", "forward", "with gradient", "memory", "sequential", "path", "measured"]
    body = []
    for name in layers_in(rows):
        complexity, sequential, path = words(name)
        counted = said(exponent(costs(rows, name, "flops")), False)
        fitted = [said(exponent(costs(rows, name, what))) for what in ("forward_ms", "both_ms", "both_mib")]
        body.append([name, f"O({complexity})", counted, *fitted, f"O({sequential})", f"O({path})", path_of(rows, name)])
    return header, body


def said(found: Exponent | None, interval: bool = True) -> str:
    if found is None:
        return "–"
    if not interval or found.low is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def second(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of what was measured: milliseconds and MiB by length."""
    lengths = sorted({row["length"] for row in rows})
    body = []
    for what in NAMES:
        for name in layers_in(rows):
            of = costs(rows, name, what)
            body.append([f"{name}, {NAMES[what]}", *(f"{of[n]:.3g}" if n in of else "–" for n in lengths)])
    return ["n", *map(str, lengths)], body


def notes(rows: list[dict]) -> list[str]:
    """Where attention overtakes the others, why there are dashes, how right the numbers are, and whose they are."""
    d, row, layers = sizes_of(rows), rows[0], layers_in(rows)
    found = [overtakes(rows, layers[0], one) for one in layers if words(one)[0].endswith("d²")]
    found.append(f"The paper's argument, n²·d against n·d²: from n = d = {d.width}.")
    found += dict.fromkeys(f"– {one['layer']} at {one['length']}: {one['note']}." for one in rows if one["note"])
    errors = (f"{layer} {max(costs(rows, layer, 'error').values(), default=0):.0e}" for layer in layers)
    found.append(f"Largest error against fp64: {', '.join(errors)}.")
    found.append(
        f"d = {d.width}, {d.heads} heads, r = {d.window}, k = {d.kernel}, batch 1. Exponents of n over the {LAST} "
        f"longest lengths, with 95 % intervals; paths between {row['path_tokens']} tokens. {row['date']}, "
        f"{row['machine']}."
    )
    return found


def overtakes(rows: list[dict], one: str, other: str) -> str:
    """From which n on the first costs more than the other, in FLOPs and as measured."""
    counted = crossing(one, other, sizes_of(rows))
    measured = crossover(costs(rows, one, "both_ms"), costs(rows, other, "both_ms"))
    by_count = "at no length" if counted is None else f"from n = {counted:,.0f}"
    by_clock = measured if isinstance(measured, str) else f"from n = {measured:,.0f}"
    return f"{one} takes more FLOPs than {other} {by_count}; more time, with gradient, {by_clock}."


def markdown(rows: list[dict]) -> str:
    parts = []
    for header, body in (first(rows), second(rows)):
        rule = ["---", *("---:" for _ in header[1:])]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *body]))
    return "\n\n".join([*parts, "  \n".join(notes(rows))]) + "\n"


def show(rows: list[dict]) -> None:
    """The same in the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for header, body in (first(rows), second(rows)):
        table = Table(*header, padding=0)
        for line in body:
            table.add_row(*line)
        console.print(table)
    for note in notes(rows):
        console.print(note, highlight=False)


def figure(rows: list[dict], path: Path) -> None:
    """Write a PNG: time and memory with gradient against n, both in logarithms, a line a layer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(drawn)
    sizes, lengths = sizes_of(rows), sorted({row["length"] for row in rows})
    for axes, what in zip(drawn.subplots(1, 2), ("both_ms", "both_mib"), strict=True):
        for name in layers_in(rows):
            points = sorted(costs(rows, name, what).items())
            found = exponent(dict(points))
            label = name if found is None else f"{name}, n^{found.value:.2f}"
            axes.plot(*zip(*points, strict=True) if points else ([], []), "o-", markersize=4, label=label)
        axes.axvline(sizes.width, color="0.7", linewidth=0.8, zorder=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, list(map(str, lengths)))
        axes.minorticks_off()
        axes.set_xlabel(f"n, tokens; the line marks d = {sizes.width}")
        axes.set_ylabel(NAMES[what])
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    drawn.savefig(path)
