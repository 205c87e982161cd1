"""Convolution: gated, causal, dilated, after those of language models (Dauphin et al. 2017, arXiv:1612.08083)."""

# N documents · L tokens of the longest · C width · K kernel · S = (K-1)·dilation, how far back a token sees

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab import LabError
from lab.mixers.base import Mixer, Place, State, fitting, nothing


class Convolution(Mixer):
    """torch.nn.Conv1d and a gated linear unit. From step to step it carries its last S = (kernel-1)·dilation inputs.

    kernel: tokens that one token is made of, at least 2.   growth: the dilation of the n-th convolution of a model,
    counted from 0, is growth to the n-th: with 2 it doubles, with `kernel` n layers see kernel to the n-th tokens.
    size: channels. null: so that it has as many weights as attention in its place.
    """

    gates = 2

    def __init__(self, place: Place, *, kernel: int = 3, growth: int = 2, size: int | None = None):
        if kernel < 2 or growth < 1:
            raise LabError(
                f"mixer convolution: kernel must be at least 2 and growth at least 1, got kernel {kernel} and growth "
                f"{growth}; a kernel of 1 sees no other token"
            )
        if size is None:
            size = fitting(lambda channels: weights(place.width, channels, kernel), place.weights)
        super().__init__(place, size)
        self.conv = nn.Conv1d(place.width, 2 * self.size, kernel, dilation=growth**place.number)
        self.span = (kernel - 1) * self.conv.dilation[0]

    @property
    def made(self) -> int:
        return super().made + self.conv.in_channels  # with what was before them, the inputs are copied

    def begin(self, rows: int, like: Tensor) -> State:
        width = self.conv.in_channels
        return torch.zeros(rows, self.span, width, dtype=like.dtype, device=like.device), nothing(rows, like)

    def read(self, x: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        seen = torch.cat([state[0].to(x.dtype), x], 1)  # (N, S + L, C)
        y = F.glu(self.conv(seen.transpose(1, 2)).transpose(1, 2), -1)  # (N, L, size)
        if lengths is None:
            return y, (seen[:, -self.span :], state[1])
        ends = lengths[:, None] + torch.arange(self.span, device=x.device)  # (N, S)
        return y, (seen.gather(1, ends[..., None].expand(-1, -1, x.shape[-1])), state[1])


def weights(width: int, size: int, kernel: int) -> int:
    """Of values and gates with their biases, and of the way back to the width."""
    return 2 * size * (kernel * width + 1) + size * width
