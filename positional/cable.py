"""CABLE: a penalty that each token adds to whatever is looked at past it (Veisi et al. 2025, arXiv:2503.08067)."""

import torch.nn.functional as F
from torch import Tensor

from positional.base import Positions
from positional.fox import Fox


class Cable(Fox):
    """score -= softplus(w[h]·x + b[h]), summed over the tokens after the key, up to the query, in each layer.

    x is what enters the layer's attention. As -softplus(z) = log σ(-z), this is FoX with w and b of the other sign.
    """

    def note(self, x: Tensor, pos: Positions) -> Tensor:
        return -F.softplus(self.gate(x, pos.layer))
