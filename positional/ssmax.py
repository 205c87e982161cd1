"""SSMax: queries scaled by the logarithm of how many tokens they see, learned (Nakanishi 2025, arXiv:2501.19399)."""

import math

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Shape


class SSMax(Scheme):
    """q ·= s · log n for the n-th token of a text, with an s for each head of each layer; without the paper's bias.

    All s start at 1 over the mean of log n in a text of the train length (0.168 for 1024), so that scores are then as
    large as without. The first token sees itself alone, with a score of 0. It tells no order: `[rope, ssmax]` does.
    """

    causal_only = "it takes a query to see as many tokens as lie up to it"

    def __init__(self, shape: Shape):
        super().__init__(shape)
        if shape.train_length < 2:
            raise SchemeError(
                f"ssmax needs a train length of at least 2 tokens, got {shape.train_length}: log 1 is zero"
            )
        start = shape.train_length / math.lgamma(shape.train_length + 1)  # lgamma(n + 1): log 1 + … + log n
        self.s = nn.Parameter(torch.full((shape.layers, shape.heads), start))

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        log = pos.once((self, "log"), lambda: (pos.of_queries + 1).double().log().float()[:, None, :, None])
        return (q * (self.s[pos.layer].float()[:, None, None] * log)).to(q.dtype), k
