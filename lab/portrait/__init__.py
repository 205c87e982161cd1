"""An encoding as a picture: a panel for each thing that it does, found by what its hooks do and not by its name."""

# T tokens · C width

from pathlib import Path

import numpy as np
import torch

from lab.portrait.panel import Panel, members
from lab.portrait.rotation import given, lanes, sizes, turn
from lab.portrait.scores import penalties, sights
from lab.probe import placed
from positional import Positions, Scheme, Shape
from positional.build import Spec, name_of, with_options


def file_of(*specs: Spec) -> Path:
    name = "-beside-".join(name_of(spec) for spec in specs)
    name = "".join(c if c.isalnum() or c in "-+_" else "-" for c in name)
    return Path("runs/schemes") / f"{name}.png"


def draw(spec: Spec, scheme: Scheme, path: Path) -> Path | None:
    """Write a PNG; None: there is nothing to draw."""
    panels = panels_of(scheme)
    return save(panels, f"{titled(spec)}\n{facts_of(scheme.shape)}", path) if panels else None


def save(panels: list[Panel], title: str, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 6.2 * columns, 4.8 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.spines[["top", "right"]].set_visible(False)
        panel(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def facts_of(shape: Shape) -> str:
    return f"{shape.heads} heads of {shape.head_dim} channels, trained on {shape.train_length} tokens"


def titled(spec: Spec) -> str:
    name = with_options(spec)
    return name if len(name) <= 90 else name[:89] + "…"


@torch.no_grad()
def panels_of(scheme: Scheme) -> list[Panel]:
    found = [in_training(scheme), *lanes(scheme), table(scheme), sizes(scheme), turn(scheme), given(scheme)]
    return [panel for panel in (*found, *penalties(scheme), *sights(scheme)) if panel is not None]


def table(scheme: Scheme) -> Panel | None:
    """What is added to an embedding of zeros, by position and channel."""
    if not members(scheme, "embed"):
        return None
    tokens = min(scheme.shape.train_length, scheme.limit or scheme.shape.train_length)
    added = scheme.embed(torch.zeros(1, tokens, scheme.shape.width), Positions.first(tokens))[0].numpy()  # (T, C)
    most = abs(added).max() or 1.0
    learned = any(list(one.parameters()) for one in members(scheme, "embed"))

    def panel(axes) -> None:
        image = axes.imshow(
            added, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most, origin="lower", interpolation="nearest"
        )
        axes.figure.colorbar(image, ax=axes, label="added to the embedding")
        axes.set_xlabel("channel")
        axes.set_ylabel("position in tokens")
        title = "The first vectors, which nothing has trained" if learned else "What is added to each embedding"
        axes.set_title(title, loc="left", fontsize=10)

    return panel


def in_training(scheme: Scheme) -> Panel | None:
    """Where a few inputs of the train length are placed in training."""
    if not members(scheme, "place"):
        return None
    draws, tokens = [], scheme.shape.train_length
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(5):
            draws.append(placed(scheme, Positions.first(tokens)).ids[0].numpy())

    def panel(axes) -> None:
        for ids in draws:
            axes.plot(ids, linewidth=1.2)
        axes.plot(np.arange(tokens), color="0.2", linewidth=0.9, linestyle="--", label="as when it is run")
        axes.set_xlabel("token of the input")
        axes.set_ylabel("position it is given")
        axes.set_title("Positions in training, five inputs", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)

    return panel
