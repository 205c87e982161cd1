"""The figure: what each lane turns once in, before and after the extension, against the lengths of training and use."""

import math
from pathlib import Path

from lab.doctor import Report
from lab.doctor.entries import Entry
from lab.doctor.lanes import Lanes
from lab.rope.lanes import BLENDED, KEPT, STRETCHED


def draw(report: Report, path: Path) -> Path | None:
    """A PNG, SVG or PDF, a panel for each RoPE; None: there is nothing to draw."""
    panels = [(one, lanes) for one, lanes in zip(report.entries, report.lanes, strict=True) if isinstance(lanes, Lanes)]
    if not panels:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 6.6 * len(panels), 5.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{report.source.name} ({report.config.family})", fontsize=11)
    for number, (entry, lanes) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        axes.spines[["top", "right"]].set_visible(False)
        panel(axes, entry, lanes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def panel(axes, entry: Entry, lanes: Lanes) -> None:
    count = range(len(lanes.plain))
    axes.plot(count, lanes.plain, color="0.6", linewidth=1.3, label="as trained")
    if lanes.short not in (lanes.plain, lanes.long):
        axes.plot(
            count, lanes.short, color=BLENDED, linewidth=1.3, linestyle=":", label=f"up to {lanes.trained} tokens"
        )
    if lanes.long != lanes.plain:
        finite = [one if math.isfinite(one) else math.nan for one in lanes.long]
        axes.scatter(count, finite, s=18, color=KEPT, label=f"at {lanes.target} tokens")
    axes.axhline(lanes.trained, color="0.2", linewidth=0.9)
    right = axes.get_yaxis_transform()
    axes.text(0.99, lanes.trained * 0.93, f"L0 {lanes.trained}", transform=right, ha="right", va="top", fontsize=8)
    if lanes.target > lanes.trained:
        axes.axhline(lanes.target, color="0.2", linewidth=0.9, linestyle="--")
        said = f"target {lanes.target}"
        axes.text(0.99, lanes.target * 1.07, said, transform=right, ha="right", va="bottom", fontsize=8)
    if lanes.unturned:
        first = len(lanes.plain) - lanes.unturned - 0.5
        axes.axvspan(first, len(lanes.plain) - 0.5, color=STRETCHED, alpha=0.07, linewidth=0)
        bottom = axes.get_xaxis_transform()
        said = f"never a whole turn\nwithin L0: {lanes.unturned} lanes"
        axes.text(first + 0.5, 0.02, said, transform=bottom, fontsize=8, color=STRETCHED, va="bottom")
    axes.set_yscale("log")
    axes.set_ylim(top=4 * max(*(one for one in lanes.long + lanes.plain if math.isfinite(one)), lanes.target))
    axes.set_xlabel("lane (a pair of channels of a head)")
    axes.set_ylabel("tokens for one turn")
    growth = "" if lanes.gain == 1 else f"; scores × {lanes.gain**2:.4g}"
    where = "" if entry.layers is None else f"{entry.layers}: "
    axes.set_title(f"{where}{entry.type}, base {lanes.base:g}{growth}", loc="left", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", frameon=False)
