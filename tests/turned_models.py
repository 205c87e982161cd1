"""A transformers model that turns by a scheme of the lab: its rotary module replaced, everything else as it was."""

import torch
from torch import nn

from lab.rope.config import Rotation, described
from lab.rope.left_out import resolved
from lab.rope.modules import rotary_modules


class Turned(nn.Module):
    """Cosines and sines of a scheme, as a model of transformers asks for them."""

    def __init__(self, other: nn.Module, rotation: Rotation, main: str):
        super().__init__()
        self.other, self.scheme, self.main = other, rotation.scheme(), main

    def forward(self, x, position_ids, layer_type=None):
        if layer_type is not None and layer_type != self.main:
            return self.other(x, position_ids, layer_type=layer_type)
        cos, sin = self.scheme.turn(position_ids, int(position_ids.max()) + 1)
        return tuple(torch.cat([one, one], -1)[:, 0].to(x.dtype) for one in (cos, sin))


def turned(model: nn.Module, spec, target: int) -> nn.Module:
    """The same model, changed in place: it turns by `spec` in the layers that see the whole input."""
    said = described(model.config)
    own = said.rotations[said.main]
    rotation = Rotation(resolved(spec, own, target), own.size, own.shape, own.head)
    for name, module, _ in list(rotary_modules(model)):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Turned(module, rotation, said.main))
    return model
