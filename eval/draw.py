"""draw: points as figures: each probe over context length with its 95 % interval, and a grid as a heat map."""

import re
from dataclasses import dataclass
from pathlib import Path

from eval.heatmap import heatmap
from eval.points import Point

DEPTH = "exact at depth "


@dataclass(frozen=True)
class Square:
    """One depth and length of a heat map."""

    about: dict
    accuracy: float
    count: int


def figures(found: list[Point], out: Path, train_length: int | None = None) -> list[Path]:
    """A PNG of each probe, and of a grid by depth. train_length: where a line is drawn, in tokens."""
    paths = []
    for probe, metric in dict.fromkeys((point.probe, point.metric) for point in found):
        line = [point for point in found if (point.probe, point.metric) == (probe, metric) and point.value is not None]
        if line and metric in ("nats", "exact"):
            paths.append(out / f"{file_of(probe)}.png")
            curve(line, paths[-1])
    for probe in dict.fromkeys(point.probe for point in found):
        if squares := squares_of([point for point in found if point.probe == probe]):
            paths.append(out / f"{file_of(probe)}-by-depth.png")
            heatmap(squares, paths[-1], f"{probe}: answers with every token right, %", train_length)
    return paths


def file_of(name: str) -> str:
    """What a file is called after a name of any letters."""
    return re.sub("[^A-Za-z0-9._+-]+", "-", name).strip("-")


def curve(line: list[Point], path: Path) -> None:
    """One metric of one probe."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    at, values = [point.length for point in line], [point.value for point in line]
    axes.plot(at, values, "o-", markersize=4)
    if all(point.low is not None for point in line):
        axes.fill_between(at, [p.low for p in line], [p.high for p in line], alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, list(map(str, at)))
    axes.minorticks_off()
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("nats per token")
    if line[0].metric == "exact":
        axes.set_ylim(-0.02, 1.02)
        axes.set_ylabel("share of answers with every token right")
    axes.set_title(line[0].probe, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    figure.savefig(path)


def squares_of(found: list[Point]) -> list[Square]:
    """Those of one grid; none where these are points of anything else."""
    return [
        Square({"length": point.length, "depth": float(point.metric.removeprefix(DEPTH))}, point.value, point.count)
        for point in found
        if point.metric.startswith(DEPTH) and point.value is not None
    ]
