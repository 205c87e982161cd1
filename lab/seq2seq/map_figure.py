"""Attention maps as a figure: a square for each layer and head, with the tokens on its axes."""

from pathlib import Path

import numpy as np
from torch import Tensor

from lab import LabError

FORMATS = ".png", ".pdf", ".svg"
CELL = 1.7, 4.0
"""The least and the most inches of a square; of longer texts the letters become smaller, and a PDF stays readable."""
LETTER = 0.13
"""Inches from token to token."""


def refuse_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise LabError(f"--maps: `{path}` is to be a {', '.join(FORMATS)} file: write {path.stem}.png", code=2)


def draw(maps: dict[str, Tensor], source: list[str], read: list[str], said: list[str], path: Path, title: str) -> None:
    """Write the maps of `lab.seq2seq.maps.maps`, one above the other.

    source: its S tokens.   read: the T that the decoder reads, from the start token on.   said: what it writes after
    each of them, which names the rows: a row shows what was looked at to write its token.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts = [
        ("Encoder: self-attention", "token", source, source, maps["encoder"]),
        ("Decoder: masked self-attention, on what it has read", "to write", said, read, maps["decoder"]),
        ("Decoder: attention on the source", "to write", said, source, maps["cross"]),
    ]
    heights = [len(weights) * side(rows) + 0.9 for *_, rows, _, weights in parts]
    width = max(weights.shape[1] * side(columns) for *_, columns, weights in parts)
    figure = Figure(figsize=(width + 1.6, sum(heights) + 0.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title if len(title) <= 120 else title[:119] + "…", fontsize=11, parse_math=False)
    sheets = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for sheet, part in zip(sheets, parts, strict=True):
        grid(sheet, *part)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def side(tokens: list[str]) -> float:
    return min(max(LETTER * len(tokens), CELL[0]), CELL[1])


def grid(sheet, title: str, asks: str, rows: list[str], columns: list[str], weights: Tensor) -> None:
    """Layers downwards, heads to the right. What is exactly zero, as all that is hidden is, is grey."""
    layers, heads = weights.shape[:2]
    sheet.suptitle(title, fontsize=10, x=0.01, ha="left")
    axes = sheet.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    cells = np.ma.masked_equal(weights.cpu().numpy(), 0)
    for layer, head in np.ndindex(layers, heads):
        one = axes[layer, head]
        one.set_facecolor("0.85")
        image = one.imshow(cells[layer, head], cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        if layer == 0:
            one.set_title(f"head {head}", fontsize=8)
        if head == 0:
            one.set_ylabel(f"layer {layer}: {asks}", fontsize=8)
        ticks(one.xaxis, columns, rotation=90 if max(map(len, columns)) > 2 else 0)
        ticks(one.yaxis, rows)
    sheet.supxlabel("looked at", fontsize=8)
    bar = sheet.colorbar(image, ax=axes, fraction=0.02, pad=0.01)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("weight; grey: 0", fontsize=8)


def ticks(axis, tokens: list[str], rotation: float = 0) -> None:
    """A token may spell what matplotlib would take for a formula."""
    size = min(7.0, 0.85 * 72 * side(tokens) / len(tokens))
    axis.set_ticks(range(len(tokens)), tokens, fontsize=size, rotation=rotation, parse_math=False)
    axis.set_tick_params(length=0)
