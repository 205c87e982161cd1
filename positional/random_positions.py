"""Random positions: in training, tokens sit at random rising positions (Ruoss et al. 2023, arXiv:2305.16843)."""

import torch
from torch import Tensor

from positional.base import Positions, Scheme, SchemeError, Shape


class RandomPositions(Scheme):
    """Of the positions below `longest`, every set of as many as a row has is as likely as any other. It tells no order:
    `[{kind: random-positions, longest: 2048}, rope]` does.

    longest: tokens; the paper's 2048 is for inputs of up to 40 in training and 500 after it.
    Rows draw apart, where the paper draws once a batch. Evaluation takes the positions it is given, 0, 1, 2 … unless it
    is given others; the paper draws there too. Documents packed in a row share its draw, each from the first of it on.
    """

    def __init__(self, shape: Shape, *, longest: int):
        super().__init__(shape)
        self.longest = checked_longest(longest, shape)

    def place(self, pos: Positions, rows: int) -> Positions:
        refuse_longer(pos, self.longest)
        return pos.renumbered(subset(torch.rand(rows, self.longest, dtype=torch.float64), pos.length), self.longest)


def subset(chances: Tensor, size: int) -> Tensor:
    """The places of the `size` largest of (B, N) random numbers, rising: each set of places is as likely."""
    return chances.topk(size).indices.sort().values


def checked_longest(longest: int, shape: Shape) -> int:
    """The option that schemes which place tokens have in common."""
    if longest < shape.train_length:
        raise SchemeError(
            f"longest must be at least the train length {shape.train_length}, got {longest} tokens: it is the length "
            "to train for"
        )
    return longest


def refuse_longer(pos: Positions, longest: int) -> None:
    if pos.length > longest:
        raise SchemeError(f"there are {longest} positions to place {pos.length} tokens at: raise `longest`")
