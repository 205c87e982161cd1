"""Panels of what an encoding does to scores: what it adds to them by distance, and which keys a query sees."""

# T tokens (keys) · H query heads · D head size

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lab.attention import eager
from lab.portrait.panel import Panel, mark_train_length, of_some, per_head
from lab.probe import hidden
from positional import Positions, Scheme, Scores

HIDDEN = "#2b2d33"
SHADES = "#f2c14e", "#7fb7be", "#d3785a", "#b5b0d8"
"""Of the parts that a query's keys are split into."""


def penalties(scheme: Scheme) -> list[Panel]:
    """What the last query's scores have added, by distance: a panel for each way that layers have of it."""
    found: dict[bytes, tuple[Tensor, Tensor, list[int], str]] = {}
    length = 4 * scheme.shape.train_length
    length = length if scheme.limit is None else min(length, scheme.limit)
    for layer in range(scheme.shape.layers):
        for said, pos, about in asked(scheme, layer, length, queries=1):
            if said.needs & {"slopes", "decay", "bias", "rows"}:
                line, seen = added(said, pos, scheme.shape.heads)  # (H, T) each
                found.setdefault(line.numpy().tobytes(), (line, seen, [], about))[2].append(layer)
    return [penalty(scheme, *one, alone=len(found) == 1) for one in list(found.values())[:3]]


def asked(scheme: Scheme, layer: int, length: int, queries: int) -> list[tuple[Scores, Positions, str]]:
    """What each part of a layer says of the scores of the last queries, which are all ones, and what it has read."""
    shape, own = scheme.shape, scheme.at(layer)
    every = replace(Positions.first(length), layer=layer)
    pos, about = replace(Positions.first(length, queries=queries), layer=layer), ""
    if own.notes:
        pos = replace(pos, notes=own.note(hidden(shape, length, dtype=torch.float32), every))
        about = ", for random hidden states"
    q = torch.ones(1, shape.heads, queries, shape.head_dim)
    k = torch.ones(1, shape.kv_heads, length, shape.head_dim)
    return [(scores, pos, about) for *_, scores in own.parts(q, k, pos)]


def added(said: Scores, pos: Positions, heads: int) -> tuple[Tensor, Tensor]:
    """(H, T) what the last query's scores have added, by distance from 0 on, and which keys it sees."""
    b, h, i, j = eager.grid(1, heads, 1, pos.tokens, "cpu")
    total = torch.zeros(1, heads, 1, pos.tokens)
    if said.slopes is not None:
        total = total - said.slopes[h] * pos.distance(b, i, j).abs()
    if said.decay is not None:
        total = total - (said.decay[..., -1:, None] - said.decay[..., None, :])
    if said.bias is not None:
        total = total + said.bias(b, h, i, j)
    if said.rows is not None:
        total = total + said.rows(i.flatten(), j.flatten())
    seen = eager.visible(said, pos, b, h, i, j).expand_as(total)
    return total.float()[0, :, 0].flip(-1), seen[0, :, 0].flip(-1)


def penalty(scheme: Scheme, line: Tensor, seen: Tensor, layers: list[int], about: str, alone: bool) -> Panel:
    def panel(axes) -> None:
        values, distances = line.numpy(), np.arange(line.shape[1])
        if not seen.all():
            per_head(axes, distances, values, None, alpha=0.3, linestyle=":")
            axes.plot([], [], ":", color="0.6", label="of keys that are hidden")
        per_head(axes, distances, np.where(seen.numpy(), values, np.nan), "head")
        mark_train_length(axes, scheme)
        if not values.any():
            axes.text(0.5, 0.6, "all zero until it is trained", transform=axes.transAxes, ha="center", color="0.4")
        axes.set_xlabel("distance in tokens")
        axes.set_ylabel("added to the score q·k/√D")
        where = "" if alone else of_some("layer", layers, scheme.shape.layers)
        axes.set_title(f"What each head adds by distance{where}{about}", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)

    return panel


# what is seen


def sights(scheme: Scheme) -> list[Panel]:
    """Which tokens each query sees: a panel for each way that layers have of it."""
    found: dict[bytes, tuple[Tensor, list[int]]] = {}
    for layer in range(scheme.shape.layers):
        tokens = telling(asked(scheme, layer, min(64, scheme.limit or 64), queries=1))
        tokens = tokens if scheme.limit is None else min(tokens, scheme.limit)
        parts = asked(scheme, layer, tokens, queries=tokens)
        if len(parts) > 1 or any(said.needs & {"window", "sinks", "beyond", "keep"} for said, *_ in parts):
            picture = seen_by(parts, scheme.shape.heads)  # (H, T, T)
            for head in different(picture):
                one = picture[head]
                found.setdefault(one.numpy().tobytes(), (one, []))[1].append((layer, head))
    return [sight(one, where, scheme) for one, where in list(found.values())[:3]]


def telling(parts: list[tuple[Scores, Positions, str]]) -> int:
    """How many tokens show all of it: two windows and a half."""
    widest = max([said.window or 0 for said, *_ in parts] + [said.beyond or 0 for said, *_ in parts])
    return min(max(24, widest * 5 // 2), 2048) if widest else 48


def seen_by(parts: list[tuple[Scores, Positions, str]], heads: int) -> Tensor:
    """(H, T, T) 0 where a key is hidden from a query, else the number of the part that shows it, from 1 on."""
    _, pos, _ = parts[0]
    picture = torch.zeros(heads, pos.tokens, pos.tokens, dtype=torch.uint8)
    for number, (said, where, _) in enumerate(parts):
        seen = eager.visible(said, where, *eager.grid(1, heads, where.queries, where.tokens, "cpu"))
        picture[seen[0].expand_as(picture)] = number + 1
    return picture


def different(picture: Tensor) -> list[int]:
    """The heads that see what none before them does."""
    return [head for head in range(len(picture)) if not any(torch.equal(picture[head], one) for one in picture[:head])]


def sight(picture: Tensor, where: list[tuple[int, int]], scheme: Scheme) -> Panel:
    def panel(axes) -> None:
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        parts = int(picture.max())
        shades = [HIDDEN, *(SHADES[n % len(SHADES)] for n in range(max(parts, 1)))]
        axes.imshow(
            picture.numpy(), cmap=ListedColormap(shades), vmin=-0.5, vmax=len(shades) - 0.5, interpolation="nearest"
        )
        names = ["hidden", "seen"] if parts == 1 else ["hidden", *(f"seen in part {n + 1}" for n in range(parts))]
        patches = [Patch(color=shade, label=name) for shade, name in zip(shades, names, strict=True)]
        axes.legend(handles=patches, fontsize=8, loc="upper right", framealpha=0.9)
        axes.set_xlabel("key, token")
        axes.set_ylabel("query, token")
        layers = sorted({layer for layer, _ in where})
        heads = sorted({head for _, head in where})
        title = f"Who sees whom{of_some('layer', layers, scheme.shape.layers)}"
        axes.set_title(title + ("" if heads == [0] else f", head {heads[0]}"), loc="left", fontsize=10)

    return panel
