"""The model's layers: attention that knows of positions the scheme alone, or another mixer, and an MLP."""

# B batch · T tokens · Q queries (the last Q of T) · H query heads · G key heads · D head size · C width

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache

from lab.attention import attend_parts
from lab.cache import note_down
from lab.linear import linear
from lab.mixers import Mixer
from lab.mixers import build as mixer_for
from lab.model.config import LabConfig
from positional import Positions, Scheme


class Attention(nn.Module):
    """Self-attention. All that it knows about positions is the scheme it is handed."""

    def __init__(self, config: LabConfig, number: int):
        super().__init__()
        self.number, self.layers = number, config.layers  # which of how many
        self.size, self.backend = config.width // config.heads, config.attention
        self.split = [config.heads * self.size, config.kv_heads * self.size, config.kv_heads * self.size]
        self.qkv = linear(config.width, sum(self.split))
        self.out = linear(config.width, config.width, (2 * config.layers) ** -0.5)
        self.q_norm = nn.RMSNorm(self.size, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.size, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, pos: Positions, scheme: Scheme, cache: Cache | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in self.qkv(x).split(self.split, -1))
        q, k = self.q_norm(q), self.k_norm(k)
        v = v.contiguous()  # lets go of the memory of qkv, of which rotated q and k are no longer views
        notes = scheme.note(x, replace(pos, layer=self.number)) if scheme.notes else None  # (B, Q, N)
        if cache is not None:
            k, v = cache.update(k, v, self.number)  # (B, G, T, D), or as far back as the scheme reaches
            notes = note_down(cache, self.layers, self.number, notes)  # (B, T, N)
            pos = pos.last(k.shape[2])
        pos = replace(pos, layer=self.number, notes=notes)
        parts = scheme.parts(q, k, pos)  # mostly one of (B, H, Q, D), (B, G, T, D), Scores
        y = attend_parts(parts, v, pos, self.backend)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: LabConfig):
        super().__init__()
        # Two matrices: the gradient of one that held both would for a moment be a third copy of what is largest here.
        self.gate = linear(config.width, config.hidden)
        self.up = linear(config.width, config.hidden)
        self.down = linear(config.hidden, config.width, (2 * config.layers) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, config: LabConfig, number: int):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config, number)
        self.mlp_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, pos: Positions, scheme: Scheme, cache: Cache | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), pos, scheme, cache)
        return x + self.mlp(self.mlp_norm(x))


class MixerLayer(nn.Module):
    """The same block with another mixer in the place of attention."""

    def __init__(self, config: LabConfig, number: int, mixer: Mixer):
        super().__init__()
        self.number = number
        self.mixer_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.mixer = mixer
        self.mlp_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, pos: Positions, scheme: Scheme, cache: Cache | None = None) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x), pos, self.number, cache)
        return x + self.mlp(self.mlp_norm(x))


def layers_of(config: LabConfig) -> nn.ModuleList:
    """The layers that `mixer` describes."""
    mixers = [mixer_for(config.mixers, number, config.shape) for number in range(config.layers)]
    return nn.ModuleList(
        Layer(config, number) if mixer is None else MixerLayer(config, number, mixer)
        for number, mixer in enumerate(mixers)
    )
