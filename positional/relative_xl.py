"""Relative (Transformer-XL): products with keys and with projected sinusoids (Dai et al. 2019, arXiv:1901.02860)."""

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Scores, Shape


class RelativeXL(Scheme):
    """score = ((q + u)·k + (q + v)·W·r[distance]) / √D, with r[x] the sines, then the cosines of x / 10000^(2i/C).

    W is of each layer, the vectors u and v of each head are shared by all layers.
    """

    def __init__(self, shape: Shape):
        super().__init__(shape)
        if shape.width % 2:
            raise SchemeError(
                f"relative-xl needs an even width, got {shape.width}: sines and cosines of a distance come in pairs"
            )
        self.u = nn.Parameter(torch.zeros(shape.heads, shape.head_dim))
        self.v = nn.Parameter(torch.zeros(shape.heads, shape.head_dim))
        drawn = torch.randn(shape.layers, shape.heads, shape.head_dim, shape.width)
        self.weight = nn.Parameter(drawn * shape.width**-0.5)

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        exact, scale = torch.promote_types(q.dtype, torch.float32), q.shape[-1] ** -0.5
        q = q.to(exact) + self.v[:, None].to(exact)
        content = (k.to(exact).repeat_interleave(q.shape[1] // k.shape[1], 1) * self.u[:, None].to(exact)).sum(-1)
        farthest = (pos.tokens if pos.contiguous else pos.length) - 1
        nearest = 0 if pos.causal else -farthest
        distances = torch.arange(nearest, farthest + 1, device=q.device)
        sinusoids = pos.once((self, "sinusoids"), lambda: self.sinusoids(distances)).to(exact)  # (N, C)
        with torch.autocast(q.device.type, enabled=False):
            vectors = sinusoids @ self.weight[pos.layer].to(exact).transpose(-1, -2)  # (H, N, D)

        @torch.autocast(q.device.type, enabled=False)
        def rows(i: Tensor, j: Tensor) -> Tensor:
            distance = pos.of_queries[:, i, None] - pos.ids[:, None, j]  # (B or 1, c, K)
            known, first = vectors, nearest
            if pos.contiguous:  # then these queries and keys are c + K - 1 distances apart, and the same in every row
                distance, first = distance[:1], distance[0, 0, -1]
                these = first - nearest + torch.arange(len(i) + len(j) - 1, device=q.device)
                known = vectors[:, these.clamp(min=0)]
            products = q[:, :, i] @ known.transpose(-1, -2)  # (B, H, c, c + K - 1)
            index = (distance - first).clamp(min=0)[:, None]  # below are keys ahead, which a causal query does not see
            return (products.gather(-1, index.expand(*products.shape[:3], -1)) + content[:, :, None, j]) * scale

        return Scores(rows=rows)

    def sinusoids(self, distance: Tensor) -> Tensor:
        """(N,) distances -> (N, C) fp32."""
        width = self.shape.width
        lanes = torch.arange(0, width, 2, dtype=torch.float64, device=distance.device)
        angles = distance[:, None] * 10000.0 ** (-lanes / width)
        return torch.cat([angles.sin(), angles.cos()], -1).float()
