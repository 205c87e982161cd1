"""GRU: a recurrence with two gates and no cell (Cho et al. 2014, arXiv:1406.1078)."""

# N documents · L tokens of the longest · C width · H hidden size

import torch
from torch import Tensor, nn

from lab.mixers.base import Mixer, Place, State, fitting, nothing
from lab.mixers.recurrent import through


class GRU(Mixer):
    """torch.nn.GRU of one layer. From step to step it carries H numbers, its hidden state, whatever the length.

    size: H. null: so that it has as many weights as attention in its place.
    """

    gates = 3

    def __init__(self, place: Place, *, size: int | None = None):
        super().__init__(place, fitting(lambda h: weights(place.width, h), place.weights) if size is None else size)
        self.gru = nn.GRU(place.width, self.size, batch_first=True)

    def begin(self, rows: int, like: Tensor) -> State:
        return torch.zeros(rows, 1, self.size, dtype=like.dtype, device=like.device), nothing(rows, like)

    def read(self, x: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        h = state[0].transpose(0, 1).contiguous()  # (1, N, H)
        y, h = through(self.gru, x, h, lengths)
        return y, (h.transpose(0, 1), state[1])


def weights(width: int, size: int) -> int:
    """Of three gates, each from token and state, with torch's two biases; and of the way back to the width."""
    return 3 * size * (width + size + 2) + size * width
