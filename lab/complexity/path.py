"""Maximum path length, measured: how many layers or steps the last token needs to depend on the first."""

# n tokens · C width

from dataclasses import replace

import torch
from torch import Tensor

from lab.complexity.counts import words
from lab.complexity.layers import Mixing, Sizes

WIDTH = 8
"""Of the layers whose path is measured: no path hangs on the width."""


def between(name: str, tokens: int, sizes: Sizes) -> dict[str, int]:
    """What lies between the first and the last of so many tokens: layers, and in a recurrence steps."""
    sizes = replace(sizes, width=WIDTH, heads=2)
    kind, _, backend = name.partition(" ")
    found = {"path_tokens": tokens, "path_layers": layers_between(f"{kind} sdpa" if backend else kind, tokens, sizes)}
    if words(name)[1] == "n":
        found["path_steps"] = steps_between(name, tokens, sizes)
    return found


def layers_between(name: str, tokens: int, sizes: Sizes) -> int:
    """The fewest layers, one on the other, with which the gradient from the first of n tokens to the last is not zero.

    In fp64, where it would take hundreds of steps of a recurrence to round a gradient down to zero.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, layers = torch.randn(1, tokens, sizes.width, dtype=torch.float64, requires_grad=True), []
        while True:
            layers.append(Mixing(name, sizes, len(layers)).double())
            if reaches(layers, x):
                return len(layers)


def reaches(layers: list[Mixing], x: Tensor) -> bool:
    y = x
    for layer in layers:
        y = layer(y)
    return bool(torch.autograd.grad(y[0, -1].sum(), x)[0][0, 0].any())


def steps_between(name: str, tokens: int, sizes: Sizes) -> int:
    """How many states of a recurrence, one made of the other, lie on the way from the first of n tokens to the last."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixer = Mixing(name, sizes).double().mixer
        x = torch.randn(1, tokens, sizes.width, dtype=torch.float64, requires_grad=True)
    state, states = mixer.begin(1, x), []
    for token in x.split(1, 1):
        y, state = mixer.read(token, state)
        state[0].retain_grad()
        states.append(state[0])
    y.sum().backward()
    assert x.grad[0, 0].any(), "the last token does not depend on the first"
    return 1 + sum(state.grad is not None and bool(state.grad.any()) for state in states[:-1])
