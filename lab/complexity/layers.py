"""One layer of each kind, as it stands in the model, without norm, residual and MLP."""

# B batch · n tokens · C width

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lab.attention import obstacle, order
from lab.model.config import LabConfig
from lab.model.layers import layers_of
from positional import Positions, Scores

FLASH = "flash2", "flash3", "flash4", "varlen"
"""Backends of attention that are FlashAttention; each is a layer of its own on machines that run it."""


@dataclass(frozen=True)
class Sizes:
    """What stays the same while the input grows."""

    width: int = 256  # d: of the representation, and of a recurrence's state
    heads: int = 4
    window: int = 128  # r
    kernel: int = 3  # k


class Mixing(nn.Module):
    """The layer of this name; the n-th of several, for a convolution's dilation grows from one to the next.

    name: `attention eager` or another backend of it, `window`, `lstm`, `gru` or `convolution`.
    """

    def __init__(self, name: str, sizes: Sizes, number: int = 0):
        super().__init__()
        kind, _, backend = name.partition(" ")
        mixer = {
            "attention": "attention",
            "window": {"kind": "window", "window": sizes.window},
            "convolution": {"kind": "convolution", "kernel": sizes.kernel, "growth": sizes.kernel, "size": sizes.width},
        }.get(kind, {"kind": kind, "size": sizes.width})
        config = LabConfig(
            vocab_size=2,
            width=sizes.width,
            heads=sizes.heads,
            layers=number + 1,
            hidden=1,
            positional="nope",
            mixer=mixer,
            attention=backend or "auto",
        )
        self.layer = layers_of(config)[number]
        self.scheme = config.built("nope").at(number)

    @property
    def mixer(self) -> nn.Module | None:
        """What stands in the place of attention, if anything does."""
        return getattr(self.layer, "mixer", None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, C) -> (B, n, C)."""
        pos = Positions.first(x.shape[1], device=x.device)
        if self.mixer is not None:
            return self.mixer(x, pos, 0)
        return self.layer.attention(x, pos, self.scheme)


def names(sizes: Sizes) -> list[str]:
    """The layers that run on this machine."""
    device, dtype = here()
    q = torch.zeros(1, sizes.heads, 8, sizes.width // sizes.heads, device=device, dtype=dtype, requires_grad=True)
    pos = Positions.first(8, device=device)
    can = [one for one in order(Scores(), q, pos) if one in FLASH and obstacle(one, Scores(), q, q, pos) is None]
    backends = [f"attention {name}" for name in ("sdpa", "eager", *can)]
    return [*backends, "window", "lstm", "gru", "convolution"]


def here() -> tuple[str, torch.dtype]:
    """The device of this machine and what its kernels are made for."""
    return ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
