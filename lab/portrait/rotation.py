"""Panels of what an encoding does to queries and keys: wavelengths, factors, angles, the distances they are given."""

# T tokens (keys) · H query heads · D head size

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lab.attention import eager
from lab.portrait.panel import Panel, mark_lengths, mark_train_length, members, per_head, run_length
from lab.probe import hidden
from lab.rope.lanes import kinds_of
from positional import Positions, Scheme
from positional.rope import Rope


def lanes(scheme: Scheme) -> list[Panel]:
    """Wavelengths of each RoPE within, those that are alike once."""
    found: dict[tuple, Panel] = {}
    length = run_length(scheme)
    for one in scheme.modules():
        if isinstance(one, Rope):
            found.setdefault(tuple(one.frequencies(length).tolist()), wavelengths(one, length))
    return list(found.values())


def wavelengths(rope: Rope, length: int) -> Panel:
    """2π/frequency of each lane, in plain RoPE and as it is at this length."""
    now = rope.frequencies(length)
    plain = rope.base ** (-torch.arange(len(now), dtype=torch.float64) / len(now))  # of as many lanes
    trained, gain = rope.shape.train_length, rope.gain(length)
    kinds, idle = kinds_of(now, plain), rope.shape.head_dim // 2 - int((now > 0).sum())

    def panel(axes) -> None:
        lane = np.arange(len(now))
        turning = (now > 0).numpy()
        waves = np.divide(2 * math.pi, now.numpy(), where=turning, out=np.full(len(now), np.nan))
        axes.plot(np.arange(len(plain)), 2 * math.pi / plain.numpy(), color="0.65", linewidth=1.2, label="plain RoPE")
        for name, colour, chosen in kinds:
            if chosen.any():
                axes.scatter(lane[chosen], waves[chosen], s=22, color=colour, label=f"{name}: {counted(chosen.sum())}")
        if idle:
            axes.plot([], [], " ", label=f"not turned: {counted(idle)}")
        mark_lengths(axes, trained, length)
        axes.set_yscale("log")
        axes.set_xlabel("lane (a pair of channels of a head)")
        axes.set_ylabel("wavelength in tokens")
        strength = "" if gain == 1 else f"; scores × {gain**2:.4g}"
        axes.set_title(f"What each lane turns once in, at {length} tokens{strength}", loc="left", fontsize=10)
        axes.legend(fontsize=8, loc="upper left", frameon=False)

    return panel


def counted(lanes: int) -> str:
    return "1 lane" if lanes == 1 else f"{lanes} lanes"


def rotated(scheme: Scheme, length: int, layer: int = 0) -> tuple[Tensor, Tensor, Positions]:
    """Queries and keys of ones, all alike before the encoding: (H, T, D) and (G, T, D)."""
    shape = scheme.shape
    own, pos = scheme.at(layer), replace(Positions.first(length), layer=layer)
    if own.notes:
        pos = replace(pos, notes=own.note(hidden(shape, length, dtype=torch.float32), pos))
    ones = [torch.ones(1, heads, length, shape.head_dim) for heads in (shape.heads, shape.kv_heads)]
    q, k = own.rotate(*ones, pos)
    return q[0], k[0], pos


def sizes(scheme: Scheme) -> Panel | None:
    """How much longer queries and keys become with their position, where they do."""
    if not members(scheme, "rotate"):
        return None
    length = run_length(scheme)
    q, k, _ = rotated(scheme, length)
    q, k = (x.norm(dim=-1) / scheme.shape.head_dim**0.5 for x in (q, k))  # (H, T)
    if all((x - x[:, :1]).abs().max() < 1e-4 * x.max() for x in (q, k)):
        return None

    def panel(axes) -> None:
        per_head(axes, np.arange(length), q.numpy(), "queries")
        if (k - k[:, :1]).abs().max() >= 1e-4 * k.max():
            axes.plot(np.arange(length), k[0].numpy(), "k--", linewidth=1.4, label="keys")
        mark_train_length(axes, scheme)
        axes.set_xlabel("position in tokens")
        axes.set_ylabel("factor on their length")
        axes.set_title("What queries and keys are multiplied by", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)

    return panel


def turn(scheme: Scheme) -> Panel | None:
    """For what turns queries and keys in a way of its own: the product of two that were alike, by distance."""
    if not members(scheme, "rotate") or any(isinstance(one, Rope) for one in scheme.modules()):
        return None
    length = run_length(scheme)
    q, k, _ = rotated(scheme, length)
    alike = q[:, -1:] @ k.repeat_interleave(len(q) // len(k), 0).transpose(-1, -2)  # (H, 1, T)
    alike = alike[:, 0].flip(-1) / (q[:, -1:].norm(dim=-1) * k[0].norm(dim=-1).flip(-1))
    if (alike - 1).abs().max() < 1e-4:
        return None

    def panel(axes) -> None:
        per_head(axes, np.arange(length), alike.numpy(), "head")
        mark_train_length(axes, scheme)
        axes.set_xlabel("distance in tokens")
        axes.set_ylabel("cosine of the angle between them")
        axes.set_title("A query and a key that were alike before", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)

    return panel


def given(scheme: Scheme) -> Panel | None:
    """For keys in parts: the distance at which the rotation has put each, as its slowest lane tells."""
    ropes = [one for one in scheme.modules() if isinstance(one, Rope)]
    if not ropes or not members(scheme, "parts"):
        return None
    rope, length = ropes[0], run_length(scheme)
    slowest = int(torch.where(rope.frequencies(length) > 0, rope.frequencies(length), torch.inf).argmin())
    pair = [slowest, slowest + len(rope.frequencies(length))]
    pair = pair if rope.layout == "half" else [2 * slowest, 2 * slowest + 1]
    lines = []
    shape, pos = scheme.shape, Positions.first(length, queries=1)
    q, k = torch.ones(1, shape.heads, 1, shape.head_dim), torch.ones(1, shape.kv_heads, length, shape.head_dim)
    for q_turned, k_turned, said in scheme.at(0).parts(q, k, pos):
        of_q, of_k = (torch.atan2(x[0, 0, :, pair[1]].double(), x[0, 0, :, pair[0]]) for x in (q_turned, k_turned))
        angle = torch.remainder(of_q - of_k + math.pi, 2 * math.pi) - math.pi  # (T,)
        seen = eager.visible(said, pos, *eager.grid(1, 1, 1, length, "cpu"))[0, 0, 0]
        distance = angle / rope.frequencies(length)[slowest]
        lines.append(distance.masked_fill(~seen, torch.nan).flip(0).numpy())

    def panel(axes) -> None:
        for number, line in enumerate(lines):
            axes.plot(line, color=f"C{number}", linewidth=1.8, label=f"part {number + 1}")
        axes.plot(np.arange(length), color="0.7", linewidth=0.9, linestyle="--", label="as in plain RoPE", zorder=0)
        axes.axhline(shape.train_length, color="0.2", linewidth=0.9)
        axes.text(length, shape.train_length * 1.02, "train length", ha="right", va="bottom", fontsize=8)
        axes.set_xlabel("distance in tokens, from the last of them")
        axes.set_ylabel("distance that the rotation is given")
        axes.set_title("How far away a key is made to look", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)

    return panel
