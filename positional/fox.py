"""FoX: each token says by a gate how much of what came before is forgotten (Lin et al. 2025, arXiv:2503.02130)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from positional.base import Positions, Scheme, Scores, Shape


class Fox(Scheme):
    """score += log f over the tokens after the key, up to the query, with f = σ(w[h]·x + b[h]) of each layer.

    x is what enters the layer's attention. As in the paper b starts at 0, all gates at about a half, and there is no
    other encoding; `[rope, fox]` has both.
    """

    causal_only = "a token's gate says how much is forgotten of what came before it"

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.notes = shape.heads
        self.weight = nn.Parameter(torch.randn(shape.layers, shape.heads, shape.width) * 0.02)
        self.bias = nn.Parameter(torch.zeros(shape.layers, shape.heads))

    def note(self, x: Tensor, pos: Positions) -> Tensor:
        return F.logsigmoid(self.gate(x, pos.layer))

    def gate(self, x: Tensor, layer: int) -> Tensor:
        """w·x + b in a layer, (B, Q, H): its rounding would add up from token to token, so at least in fp32."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(exact), self.weight[layer].to(exact), self.bias[layer].to(exact))

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        return Scores(decay=-summed(pos.notes, pos.segments).transpose(1, 2))


def summed(notes: Tensor, segments: Tensor | None) -> Tensor:
    """(B, T, N) sums over each token and those before it in its own segment."""
    if segments is None:
        return notes.cumsum(1)
    # Sums of 2, 4, 8, … tokens: a difference of sums over the whole row would let one document's rounding into another.
    step = 1
    while step < notes.shape[1]:
        same = (segments[:, step:] == segments[:, :-step])[..., None]
        more = torch.where(same, notes[:, :-step], 0)
        notes, step = torch.cat([notes[:, :step], notes[:, step:] + more], 1), 2 * step
    return notes
