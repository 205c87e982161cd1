"""The loss of hidden states by chunks of logits, which are made again for the gradient and never held together."""

# N targets · C width · V vocabulary

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def loss_sum(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, *, rows: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Sum of the fp32 losses of (N, C) hidden states at (N,) targets, -100 for none, and how many targets there are.

    head: (n, C) -> (n, V) logits.   rows: the most that are made at once.
    smoothing: how much of each target is spread evenly over the vocabulary (Szegedy et al. 2015, arXiv:1512.00567).
    """

    def of_chunk(h: Tensor, t: Tensor) -> Tensor:
        logits = head(h).float()
        return F.cross_entropy(logits, t, ignore_index=-100, reduction="sum", label_smoothing=smoothing)

    chunks = list(zip(hidden.split(rows), targets.split(rows), strict=True))
    if len(chunks) == 1:
        total = of_chunk(*chunks[0])
    else:
        total = sum(checkpoint(of_chunk, h, t, use_reentrant=False) for h, t in chunks)
    return total, (targets != -100).sum()
