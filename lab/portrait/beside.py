"""Several RoPEs in one picture, lane by lane: what each turns once in, and how far from plain RoPE that is."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lab import LabError
from lab.portrait import facts_of, save, titled
from lab.portrait.panel import Panel, mark_lengths, run_length
from positional import Scheme
from positional.build import Spec, name_of
from positional.rope import Rope

Lanes = list[tuple[str, np.ndarray]]
"""Of each encoding its name, and tokens for one turn of each lane; nan: it stands still."""


def draw_beside(specs: list[Spec], schemes: list[Scheme], path: Path) -> Path:
    """Write a PNG of the lanes of each, at the longest length that a factor names; plain RoPE has the first one's base.

    Raises LabError for an encoding without lanes.
    """
    ropes = [rope_of(spec, scheme) for spec, scheme in zip(specs, schemes, strict=True)]
    shape, length = schemes[0].shape, run_length(*schemes)
    lanes = [(titled(spec), waves(rope.frequencies(length))) for spec, rope in zip(specs, ropes, strict=True)]
    plain = waves(Rope.frequencies(ropes[0], length))
    panels = [wavelengths(lanes, plain, shape.train_length, length), slowing(lanes, plain)]
    return save(panels, f"{facts_of(shape)}, run at {length}", path)


def rope_of(spec: Spec, scheme: Scheme) -> Rope:
    """The RoPE within it, the first of several."""
    for one in scheme.modules():
        if isinstance(one, Rope):
            return one
    raise LabError(
        f"--beside compares the lanes of RoPEs, and `{name_of(spec)}` has none: show it by itself, or give encodings "
        "such as rope-linear and rope-ntk",
        code=2,
    )


def waves(frequencies: Tensor) -> np.ndarray:
    return torch.where(frequencies > 0, 2 * math.pi / frequencies, torch.nan).numpy()


def wavelengths(lanes: Lanes, plain: np.ndarray, trained: int, length: int) -> Panel:
    def panel(axes) -> None:
        axes.plot(plain, color="0.65", linewidth=1.4, label="plain RoPE")
        for name, found in lanes:
            axes.plot(found, "o-", markersize=3.5, linewidth=1.0, label=name)
        mark_lengths(axes, trained, length)
        axes.set_yscale("log")
        axes.set_xlabel("lane (a pair of channels of a head)")
        axes.set_ylabel("wavelength in tokens")
        axes.set_title("What each lane turns once in", loc="left", fontsize=10)
        axes.legend(fontsize=8, loc="upper left", frameon=False)

    return panel


def slowing(lanes: Lanes, plain: np.ndarray) -> Panel:
    def panel(axes) -> None:
        axes.axhline(1, color="0.65", linewidth=1.4)
        for name, found in lanes:
            axes.plot(found / plain[: len(found)], "o-", markersize=3.5, linewidth=1.0, label=name)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g} ×")
        axes.set_xlabel("lane (a pair of channels of a head)")
        axes.set_ylabel("wavelength ÷ that of plain RoPE")
        axes.set_title("How much slower each lane turns than in plain RoPE", loc="left", fontsize=10)

    return panel
