"""Log-n: queries grow with the logarithm of how many tokens they see, past the train length (Su 2021, Kexue)."""

import math

from torch import Tensor

from positional.base import Positions, Scheme, SchemeError, Shape


class LogN(Scheme):
    """q ·= max(1, log n / log L0) for the n-th token of a text, L0 the train length: nothing changes within it.

    With n keys instead of L0, softmax is as concentrated as before if scores grow so (kexue.fm/archives/8823; the
    factor log n alone: Chiang and Cholak 2022, arXiv:2202.12172). It tells no order: `[rope, logn]` does.
    """

    causal_only = "it takes a query to see as many tokens as lie up to it"

    def __init__(self, shape: Shape):
        super().__init__(shape)
        if shape.train_length < 2:
            raise SchemeError(
                f"logn needs a train length of at least 2 tokens, got {shape.train_length}: log 1 is zero"
            )

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        if pos.length <= self.shape.train_length:
            return q, k
        factor = pos.once((self, "factor"), lambda: self.factor(pos.of_queries)[:, None, :, None])
        return (q * factor).to(q.dtype), k

    def factor(self, position: Tensor) -> Tensor:
        """What queries at these positions, counted from 0, are multiplied by: fp32."""
        return ((position + 1).double().log() / math.log(self.shape.train_length)).clamp(min=1).float()
