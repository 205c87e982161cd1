"""Rows as a figure: loss against context length, a line for each encoding, named where it ends."""

from pathlib import Path
from statistics import fmean

from eval.draw import DEPTH, file_of, squares_of
from eval.heatmap import heatmap
from lab.rows import Row
from lab.table import Cells, cells, label, mean

TITLES = {
    "perplexity": "The same tokens, read with more and more context",
    "suffix": "The last tokens of each text, read with more and more of it before them",
    "pseudo-perplexity": "The same tokens, hidden in turn and told from more and more context",
    "position": "Loss by place in one long window",
    "gain": "What doubling the context to this length gains",
    "copyable": "Tokens that could be copied from the new half of the context",
}
"""Of the lab's own probes; a protocol of a published script goes by its name."""


def figures(rows: list[Row], folder: Path, train_length: int) -> list[Path]:
    """A figure for each probe that the rows hold, as `folder/<probe>.png`, and a heat map of each encoding's grid."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = dict.fromkeys(
        (row.probe, row.metric) for row in rows if row.metric in ("nats", "exact") and row.value is not None
    )
    paths = [folder / f"{file_of(probe)}.png" for probe, _ in kinds]
    for (probe, metric), path in zip(kinds, paths, strict=True):
        curve(rows, path, train_length, probe, metric)
    grids: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.metric.startswith(DEPTH):
            name = f"{label(row.trained_as, row.scheme)}, seed {row.seed}"
            grids.setdefault((row.probe, name), []).append(row)
    for (probe, name), some in grids.items():
        if squares := squares_of(some):
            paths.append(folder / f"{file_of(f'{probe} {name}')}.png")
            name = name if probe == "grid" else f"{probe}, {name}"
            heatmap(squares, paths[-1], f"{name}: answers with every token right, %", train_length)
    return paths


MANY = 14
"""Lines in one panel; of more, those swapped into a trained model get a panel of their own."""


def curve(rows: list[Row], path: Path, train_length: int, probe: str = "perplexity", metric: str = "nats") -> None:
    """Write a PNG. Encodings swapped into a trained model are dashed, in the colour of the model where several models
    share a panel; bands are the 95 % intervals of each line by itself."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = cells(rows, probe, metric)
    panels = panels_of(table)
    height = max(5, 0.26 * max(map(len, panels)))
    figure = Figure(figsize=(8 * len(panels), height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    unit = "nats per token" if probe == "gain" else "loss, nats per token"
    for n, (axes, lines) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)):
        lengths = sorted({length for line in table.values() for length in line})
        panel(axes, lines, lengths, train_length)
        title = TITLES.get(probe, probe) if not n else "Swapped into a trained model, which is grey"
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_ylabel(unit if metric == "nats" else "share of answers with every token right")
    figure.savefig(path)


def panels_of(table: Cells) -> list[Cells]:
    """All lines in one panel, or, where these are many, trained ones in the first and swapped ones in the second."""
    swapped = {key: line for key, line in table.items() if key[0] != key[1]}
    if len(table) <= MANY or not swapped or len(swapped) == len(table):
        return [table]
    models = {trained for trained, _ in swapped}
    own = {key: line for key, line in table.items() if key not in swapped}
    return [own, {key: line for key, line in own.items() if key[0] in models} | swapped]


def panel(axes, table: Cells, lengths: list[int], train_length: int) -> None:
    models = list(dict.fromkeys(trained for trained, _ in table))
    apart = len(table) > MANY or len(models) == 1
    names = list(table) if apart else models
    ends = []
    for (trained, scheme), line in table.items():
        points = [(n, *mean(line[n])) for n in lengths if line[n] and all(r.value is not None for r in line[n])]
        if not points:
            continue
        at, values, low, high = zip(*points, strict=True)
        own = scheme == trained
        colour = f"C{names.index((trained, scheme) if apart else trained) % 10}"
        if own and len(table) > MANY and any(key[0] == trained and key[1] != trained for key in table):
            colour = "0.6"
        axes.plot(at, values, "o-" if own else "o--", color=colour, markersize=4, linewidth=1.6)
        if None not in low + high:
            axes.fill_between(at, low, high, color=colour, alpha=0.1, linewidth=0)
        ends.append(((at[-1], values[-1]), label(trained, scheme), colour))
    axes.axvline(train_length, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n}\n{n / train_length:g}×" for n in lengths])
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.1, lengths[-1] * 1.1)
    axes.set_xlabel("context length in tokens, and in training lengths")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    name_lines(axes, ends)


def name_lines(axes, ends: list[tuple[tuple[float, float], str, str]]) -> None:
    """Write each line's name right of its last point, pushed apart where they would overlap, all within the panel."""
    low, high = axes.get_ylim()
    gap = (high - low) * min(0.042, 1 / max(1, len(ends)))
    ends = sorted(ends, key=lambda end: end[0][1])
    places: list[float] = []
    for (_, y), *_ in ends:
        places.append(max(y, places[-1] + gap) if places else y)
    for n in reversed(range(len(places))):  # those that were pushed out at the top come back down
        places[n] = min(places[n], high if n == len(places) - 1 else places[n + 1] - gap)
    for (_, name, colour), at in zip(ends, places, strict=True):
        axes.annotate(
            name,
            (1.01, at),
            xycoords=axes.get_yaxis_transform(),
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def by_size(rows: list[Row], path: Path, train_length: int) -> None:
    """Write a PNG of algorithmic problems: exact match against size, a panel a task, a thin line for each seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    exact = [row for row in rows if row.metric == "exact" and row.value is not None]
    tasks = list(dict.fromkeys(row.probe for row in exact))
    names = list(dict.fromkeys(label(row.trained_as, row.scheme) for row in exact))
    figure = Figure(figsize=(6 * max(1, len(tasks)), 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, max(1, len(tasks)), squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=False):
        for n, name in enumerate(names):
            lines: dict[int, dict[int, float]] = {}
            for row in exact:
                if row.probe == task and label(row.trained_as, row.scheme) == name:
                    lines.setdefault(row.seed, {})[row.length] = 100 * row.value
            for line in lines.values():
                axes.plot(*zip(*sorted(line.items()), strict=True), color=f"C{n}", linewidth=0.5, alpha=0.5)
            sizes = sorted({size for line in lines.values() for size in line})
            means = [fmean(line[size] for line in lines.values() if size in line) for size in sizes]
            axes.plot(sizes, means, color=f"C{n}", linewidth=1.8, label=name)
        trained = [row.length for row in exact if row.probe == task and not row.note]
        axes.axvline(max(trained, default=0), color="0.7", linewidth=0.8, zorder=0)
        axes.set_ylim(-2, 102)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("size; the line marks the largest trained on")
        axes.set_ylabel("% of test problems answered exactly")
        axes.set_title(task.partition("/")[2], loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path)
