"""Cells as a figure: depth of the needle against context length, each cell with its accuracy and how many answers."""

from collections.abc import Sequence
from pathlib import Path


def heatmap(cells: Sequence, path: Path, title: str = "", train_length: int | None = None) -> None:
    """Write a PNG. A length and a depth without a cell are grey.

    cells: what has `about` with depth and length, `accuracy` and `count`, such as those of `eval.tally`.

    train_length: a line is drawn after the lengths that the model was trained at, in tokens.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = {(cell.about["depth"], cell.about["length"]): cell for cell in cells}
    depths, lengths = (sorted({key[n] for key in table}) for n in (0, 1))
    figure = Figure(figsize=(2.2 + 0.85 * len(lengths), 1.6 + 0.42 * len(depths)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor="0.85")
    shares = [[table[d, n].accuracy if (d, n) in table else float("nan") for n in lengths] for d in depths]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (depth, length), cell in table.items():
        axes.annotate(
            f"{100 * cell.accuracy:.0f}\nn={cell.count}",
            (lengths.index(length), depths.index(depth)),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if cell.accuracy > 0.6 else "black",
        )
    if train_length is not None:
        inside = sum(length <= train_length for length in lengths)
        axes.axvline(inside - 0.5, color="C1", linewidth=2)
    axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths])
    axes.set_yticks(range(len(depths)), [f"{d:.0%}" for d in depths])
    axes.set_xlabel("context length in tokens")
    axes.set_ylabel("depth: share of the haystack before the needle")
    axes.set_title(title or "Answers with every token right, %", loc="left", fontsize=11)
    figure.colorbar(image, format=lambda share, _: f"{share:.0%}")
    figure.savefig(path)
