"""LSTM: a recurrence with gates and a memory cell (Hochreiter and Schmidhuber 1997, NeuralComputation)."""

# N documents · L tokens of the longest · C width · H hidden size

import torch
from torch import Tensor, nn

from lab.mixers.base import Mixer, Place, State, fitting
from lab.mixers.recurrent import through


class LSTM(Mixer):
    """torch.nn.LSTM of one layer. From step to step it carries 2·H numbers, hidden state and cell, whatever the length.

    size: H. null: so that it has as many weights as attention in its place.
    """

    gates = 4

    def __init__(self, place: Place, *, size: int | None = None):
        super().__init__(place, fitting(lambda h: weights(place.width, h), place.weights) if size is None else size)
        self.lstm = nn.LSTM(place.width, self.size, batch_first=True)
        with torch.no_grad():  # remember at first (Jozefowicz et al. 2015); torch draws around 0
            self.lstm.bias_ih_l0[self.size : 2 * self.size] = 1

    def begin(self, rows: int, like: Tensor) -> State:
        zeros = torch.zeros(rows, 1, self.size, dtype=like.dtype, device=like.device)
        return zeros, zeros

    def read(self, x: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        state = tuple(part.transpose(0, 1).contiguous() for part in state)  # (1, N, H)
        y, state = through(self.lstm, x, state, lengths)
        return y, tuple(part.transpose(0, 1) for part in state)


def weights(width: int, size: int) -> int:
    """Of four gates, each from token and state, with torch's two biases; and of the way back to the width."""
    return 4 * size * (width + size + 2) + size * width
