"""Rows as a figure: loss against context length, a line for each encoding, named where it ends."""

from pathlib import Path
from statistics import fmean

from lab.rows import Row
from lab.table import cells, label


def curve(rows: list[Row], path: Path, train_length: int) -> None:
    """Write a PNG. Encodings swapped into a trained model are dashed, in the colour of the model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    table = cells(rows)
    lengths = sorted({length for line in table.values() for length in line})
    colours = {trained: f"C{n}" for n, trained in enumerate(dict.fromkeys(trained for trained, _ in table))}
    ends = []
    for (trained, scheme), line in table.items():
        points = [
            (n, fmean(r.value for r in line[n]))
            for n in lengths
            if line[n] and all(r.value is not None for r in line[n])
        ]
        if not points:
            continue
        style = "o-" if scheme == trained else "o--"
        axes.plot(*zip(*points, strict=True), style, color=colours[trained], markersize=4, linewidth=1.6)
        ends.append((points[-1], label(trained, scheme), colours[trained]))
    axes.axvline(train_length, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n}\n{n / train_length:g}×" for n in lengths])
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.1, lengths[-1] * 1.1)
    axes.set_xlabel("context length in tokens, and in training lengths")
    axes.set_ylabel("loss, nats per token")
    axes.set_title("The same tokens, read with more and more context", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    name_lines(axes, ends)
    figure.savefig(path)


def name_lines(axes, ends: list[tuple[tuple[float, float], str, str]]) -> None:
    """Write each line's name right of its last point, pushed apart where they would overlap."""
    low, high = axes.get_ylim()
    gap, taken = (high - low) * 0.042, low - (high - low)
    for (_, y), name, colour in sorted(ends, key=lambda end: end[0][1]):
        at = max(y, taken + gap)
        taken = at
        axes.annotate(
            name,
            (1.01, at),
            xycoords=axes.get_yaxis_transform(),
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )
