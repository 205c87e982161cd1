"""FIRE: a small network of distance relative to the query's position (Li et al. 2024, arXiv:2310.04418)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Scores, Shape

HIDDEN = 32


class Fire(Scheme):
    """score += MLP(ψ(distance) / ψ(max(position, threshold))), ψ(x) = log(c·x + 1), position that of the query.

    threshold: tokens, where it starts (paper: 512 for a train length of 2048, and so by default a quarter of it). From
    there on a token stretches what it sees to what was seen in training, however long the input.
    Each layer has an MLP (1 → 32 → heads), c and threshold of its own. The MLP has no last bias: softmax ignores it.
    """

    causal_only = "a query's own position bounds the distances behind it alone, and the network has seen no others"

    def __init__(self, shape: Shape, *, threshold: float | None = None):
        super().__init__(shape)
        if threshold is not None and threshold <= 0:
            raise SchemeError(
                f"fire: threshold must be above 0 tokens, got {threshold}; the paper's is a quarter of the train length"
            )
        self.threshold = shape.train_length / 4 if threshold is None else threshold
        layers = shape.layers
        self.c = nn.Parameter(torch.full((layers,), 0.1))
        self.stretch = nn.Parameter(torch.ones(layers))  # what the threshold is multiplied by
        self.hidden = nn.Parameter(torch.rand(2, layers, HIDDEN) * 2 - 1)  # weight and bias
        self.out = nn.Parameter((torch.rand(layers, HIDDEN, shape.heads) * 2 - 1) * HIDDEN**-0.5)

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        exact = torch.promote_types(q.dtype, torch.float32)
        c, threshold = (x[pos.layer].to(exact).abs() for x in (self.c, self.stretch * self.threshold))
        with torch.autocast(q.device.type, enabled=False):
            points, slope, height = lines(*self.hidden[:, pos.layer].to(exact), self.out[pos.layer].to(exact))

        def rows(i: Tensor, j: Tensor) -> Tensor:
            query, key = pos.of_queries[:, i, None], pos.ids[:, None, j]
            whole = (c * query.to(exact).maximum(threshold)).log1p() + 1e-6  # as the paper's own; for position 0
            part = (c * (query - key).abs()).log1p() / whole  # (B or 1, c, K)
            line = torch.searchsorted(points, part.detach())
            return (F.embedding(line, slope) * part[..., None] + F.embedding(line, height)).movedim(-1, 1)

        return Scores(rows=rows)


def lines(weight: Tensor, bias: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """relu(x · weight + bias) @ out as the lines it consists of: where the next begins, and their slope and height.

    weight, bias: (N,).   out: (N, H).   Returns (N,), (N + 1, H), (N + 1, H).
    For every pair of tokens the hidden units themselves would take eight times the memory of the scores of 4 heads.
    """
    points = (-bias / weight).detach().sort().values
    within = torch.cat([points[:1] - 1, (points[1:] + points[:-1]) / 2, points[-1:] + 1])
    active = (within[:, None] * weight + bias > 0).to(out.dtype)  # (N + 1, N)
    return points, active @ (weight[:, None] * out), active @ (bias[:, None] * out)
