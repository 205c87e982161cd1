"""Torch's recurrences over documents of different lengths."""

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def through(rnn: nn.RNNBase, x: Tensor, state, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | tuple]:
    """(N, L, C) tokens and torch's state before them -> (N, L, H), and torch's state after the last of each row.

    lengths: (N,) how many of the L places are tokens. None: all.
    """
    if lengths is None:
        return rnn(x, state)
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    y, state = rnn(packed, state)
    return pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0], state
