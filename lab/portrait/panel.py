"""What the panels of an encoding's picture have in common: how far they go, whose hooks they ask, lines by head."""

from collections.abc import Callable
from typing import Any

import numpy as np

from positional import Scheme
from positional.stack import Stack

Panel = Callable[[Any], None]
"""Draws on the axes it is handed."""

LONGER = 8
"""How many train lengths are run, where the encoding names no factor of its own."""


def members(scheme: Scheme, hook: str) -> list[Scheme]:
    """The schemes within it, itself among them, that override a hook themselves."""
    every = [one for one in scheme.modules() if isinstance(one, Scheme) and not isinstance(one, Stack)]
    return [one for one in every if getattr(type(one), hook) is not getattr(Scheme, hook)]


def run_length(*schemes: Scheme) -> int:
    """The length to show them at: the largest factor times the train length, or eight times."""
    every = [one for scheme in schemes for one in scheme.modules()]
    factors = [one.factor for one in every if isinstance(getattr(one, "factor", None), int | float)]
    longest = round(schemes[0].shape.train_length * (max(factors) if factors and max(factors) > 1 else LONGER))
    return min([longest, *(scheme.limit for scheme in schemes if scheme.limit is not None)])


def of_some(what: str, chosen: list[int], of: int) -> str:
    return "" if len(chosen) == of else f", {what} {', '.join(map(str, chosen))} of {of}"


def per_head(axes, x: np.ndarray, lines: np.ndarray, what: str | None, **style: Any) -> None:
    """A line for each head; one for all where they are alike. what: its name in the legend; None: none."""
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0.05, 0.9, len(lines)))
    if np.array_equal(lines, np.broadcast_to(lines[:1], lines.shape), equal_nan=True):
        name = "every head" if what == "head" else what
        axes.plot(x, lines[0], color=colours[0], label=name, **{"linewidth": 1.6} | style)
        return
    few = set(np.linspace(0, len(lines) - 1, min(len(lines), 8)).round().astype(int).tolist())
    for head, line in enumerate(lines):
        name = None if what is None or head not in few else f"head {head}" if what == "head" else f"{what}, head {head}"
        axes.plot(x, line, color=colours[head], label=name, **{"linewidth": 1.4} | style)


def mark_train_length(axes, scheme: Scheme) -> None:
    axes.axvline(scheme.shape.train_length, color="0.7", linewidth=0.9, zorder=0)
    where = scheme.shape.train_length, 0.5
    options = {"rotation": 90, "ha": "right", "va": "center", "fontsize": 8, "color": "0.4"}
    axes.text(*where, "train length ", transform=axes.get_xaxis_transform(), **options)


def mark_lengths(axes, trained: int, run: int) -> None:
    """Lines across, in a panel of wavelengths."""
    right = axes.get_yaxis_transform()
    axes.axhline(trained, color="0.2", linewidth=0.9)
    axes.axhline(run, color="0.2", linewidth=0.9, linestyle="--")
    axes.text(0.99, trained * 0.94, f"train length {trained}", transform=right, ha="right", va="top", fontsize=8)
    axes.text(0.99, run * 1.06, f"run: {run}", transform=right, ha="right", va="bottom", fontsize=8)
