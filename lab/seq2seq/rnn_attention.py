"""Attention before Transformers: how a recurrent decoder sees its source (Bahdanau et al. 2014, arXiv:1409.0473)."""

# B batch · S source tokens · T target tokens · C width · A what a source token has become, 2C of two directions

import torch
from torch import Tensor, nn

from lab.mixers.recurrent import through


class Additive(nn.Module):
    """Bahdanau: score = v·tanh(W s + U h), with the state s before the step; what is seen enters the step.

    So a target is read step by step, also in training.
    """

    def __init__(self, rnn: type[nn.RNNBase], width: int, source: int):
        super().__init__()
        self.of_state, self.of_source = nn.Linear(width, width, bias=False), nn.Linear(source, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.rnn = rnn(width + source, width, batch_first=True)
        self.out = nn.Linear(2 * width + source, width)

    def forward(self, x: Tensor, state: Tensor | tuple, source: Tensor, real: Tensor):
        """(B, T, C) embedded target and torch's state before it -> (B, T, C), the state after it."""
        keys, made = self.of_source(source), []  # (B, S, C)
        for token in x.split(1, 1):
            before = (state[0] if isinstance(state, tuple) else state).transpose(0, 1)  # (B, 1, C)
            scores = self.score(torch.tanh(self.of_state(before) + keys))[..., 0]  # (B, S)
            context = seen(scores[:, None], source, real)  # (B, 1, A)
            y, state = self.rnn(torch.cat([token, context], -1), state)
            made.append(torch.tanh(self.out(torch.cat([y, token, context], -1))))
        return torch.cat(made, 1), state


class Multiplicative(nn.Module):
    """Luong, general (Luong et al. 2015, arXiv:1508.04025): score = s·W h, with the state s after the step.

    What is seen enters no step (no input feeding), so a target is read at once in training.
    """

    def __init__(self, rnn: type[nn.RNNBase], width: int, source: int):
        super().__init__()
        self.rnn = rnn(width, width, batch_first=True)
        self.of_source = nn.Linear(source, width, bias=False)
        self.out = nn.Linear(width + source, width, bias=False)

    def forward(self, x: Tensor, state: Tensor | tuple, source: Tensor, real: Tensor):
        """(B, T, C) embedded target and torch's state before it -> (B, T, C), the state after it."""
        y, state = through(self.rnn, x, state)
        context = seen(y @ self.of_source(source).transpose(1, 2), source, real)  # (B, T, A)
        return torch.tanh(self.out(torch.cat([context, y], -1))), state


def seen(scores: Tensor, source: Tensor, real: Tensor) -> Tensor:
    """(B, T, S) scores -> (B, T, A): the mean of the source's real tokens, each by its share of the exponentials."""
    exact = torch.promote_types(scores.dtype, torch.float32)
    shares = scores.masked_fill(~real[:, None], float("-inf")).softmax(-1, dtype=exact)
    return shares.to(source.dtype) @ source


ATTENTION = {"bahdanau": Additive, "luong": Multiplicative}
