"""PoSE: in training, positions skip ahead between two chunks of a row (Zhu et al. 2024, arXiv:2309.10400)."""

import torch

from positional.base import Positions, Scheme, SchemeError, Shape
from positional.random_positions import checked_longest, refuse_longer, subset


class PoSE(Scheme):
    """A row is cut into chunks at random; chunk i sits u_i positions further, u_0 = 0 and each next one uniform between
    the one before and what leaves the last token below `longest`. It tells no order:
    `[{kind: pose, longest: 16384}, {kind: rope-linear, factor: 8}]` does.

    longest: tokens, the length to train for; the paper's are 16384 and up from 2048.   chunks: of a row (paper: 2).
    Each way to cut is as likely; the authors' code cuts two chunks in the first half. Evaluation is as without it.
    Documents packed in a row share its draw, each from position 0 on.
    """

    def __init__(self, shape: Shape, *, longest: int, chunks: int = 2):
        super().__init__(shape)
        self.longest, self.chunks = checked_longest(longest, shape), chunks
        if not 1 <= chunks <= shape.train_length:
            raise SchemeError(
                f"chunks must be between 1 and the train length {shape.train_length}, got {chunks}; the paper has 2"
            )

    def place(self, pos: Positions, rows: int) -> Positions:
        refuse_longer(pos, self.longest)
        tokens, room = pos.length, self.longest - pos.length
        cuts = min(self.chunks, tokens) - 1
        chances = torch.rand(rows, tokens - 1 + cuts, dtype=torch.float64)
        first = torch.zeros(rows, tokens, dtype=torch.int64)  # 1 where a chunk but the first begins
        first.scatter_(1, 1 + subset(chances[:, : tokens - 1], cuts), 1)
        skips = [torch.zeros(rows, dtype=torch.int64)]
        for chance in chances[:, tokens - 1 :].unbind(1):
            skips.append(skips[-1] + (chance * (room + 1 - skips[-1])).long())
        numbers = torch.arange(tokens) + torch.stack(skips, 1).gather(1, first.cumsum(1))
        return pos.renumbered(numbers, self.longest)
