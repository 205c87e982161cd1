"""A matrix of a model, and the scale of its first weights."""

from torch import nn


def linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    """A matrix whose first weights keep the variance of its inputs, times scale²; see `LabModel._init_weights`."""
    layer = nn.Linear(inputs, outputs, bias=False)
    layer._first_std = scale * inputs**-0.5
    return layer
