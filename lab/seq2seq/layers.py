"""The layers of the paper, section by section (Vaswani et al. 2017, arXiv:1706.03762): attention, MLP, sums."""

# B batch · S source tokens · T target tokens · Q those of them that ask · H heads · D key size · C width

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from lab.attention import Part, attend_parts
from lab.cache import note_down
from lab.seq2seq.config import Seq2SeqConfig
from positional import Positions, Scheme, Scores

Inputs = tuple[list[Part], Tensor, Positions]


def matrix(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """A matrix whose first weights are drawn as Glorot and Bengio (2010) say; the paper does not tell its own."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    layer._glorot = True
    return layer


class Attention(nn.Module):
    """Multi-head attention, section 3.2.2: of a side's tokens on one another, with its scheme."""

    def __init__(self, config: Seq2SeqConfig, number: int, layers: int):
        super().__init__()
        self.number, self.layers, self.heads = number, layers, config.heads  # which of how many
        # Torch's own kernels alone take values of another size.
        self.backend = config.attention if config.key_size == config.value_size else "sdpa"
        self.query = matrix(config.width, config.heads * config.key_size)
        self.key = matrix(config.width, config.heads * config.key_size)
        self.value = matrix(config.width, config.heads * config.value_size)
        self.out = matrix(config.heads * config.value_size, config.width)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H·D) -> (B, H, T, D)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def joined(self, y: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, C)."""
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, *about: Any) -> Tensor:
        parts, v, pos = self.inputs(x, *about)
        return self.joined(attend_parts(parts, v, pos, self.backend))

    def inputs(self, x: Tensor, pos: Positions, scheme: Scheme, cache: Cache | None = None) -> Inputs:
        """What softmax is taken of: queries, keys and what their scores undergo; values; and where tokens sit."""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        notes = scheme.note(x, replace(pos, layer=self.number)) if scheme.notes else None  # (B, Q, N)
        if cache is not None:
            k, v = cache.update(k, v, self.number)  # (B, H, T, D), or as far back as the scheme reaches
            notes = note_down(cache, self.layers, self.number, notes)  # (B, T, N)
            pos = pos.last(k.shape[2])
        pos = replace(pos, layer=self.number, notes=notes)
        return scheme.parts(q, k, pos), v, pos


class CrossAttention(Attention):
    """Multi-head attention of the decoder on what the encoder has made of the source; no scheme, no order."""

    def inputs(self, x: Tensor, source: Tensor, pos: Positions, cache: EncoderDecoderCache | None = None) -> Inputs:
        k, v = self.of_source(source, cache)  # (B, H, S, D)
        return [(self.split(self.query(x)), k, Scores())], v, pos

    def of_source(self, source: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, made once for all target tokens where there is a cache."""
        if cache is not None and cache.is_updated.get(self.number):
            kept = cache.cross_attention_cache.layers[self.number]
            return kept.keys, kept.values
        k, v = self.split(self.key(source)), self.split(self.value(source))
        if cache is not None:
            k, v = cache.cross_attention_cache.update(k, v, self.number)
            cache.is_updated[self.number] = True
        return k, v


class FeedForward(nn.Module):
    """max(0, x·W1 + b1)·W2 + b2, section 3.3."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.up = matrix(config.width, config.hidden, bias=True)
        self.down = matrix(config.hidden, config.width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Residual(nn.Module):
    """What is around a sub-layer: LayerNorm(x + dropout(sub-layer(x))), sections 3.1 and 5.4; pre: see `forward`."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(config.width), nn.Dropout(config.dropout)
        self.before = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.before:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    def __init__(self, config: Seq2SeqConfig, number: int):
        super().__init__()
        self.attention, self.around_attention = Attention(config, number, config.encoder_layers), Residual(config)
        self.feed_forward, self.around_feed_forward = FeedForward(config), Residual(config)

    def forward(self, x: Tensor, pos: Positions, scheme: Scheme) -> Tensor:
        x = self.around_attention(x, lambda x: self.attention(x, pos, scheme))
        return self.around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, config: Seq2SeqConfig, number: int):
        super().__init__()
        self.attention, self.around_attention = Attention(config, number, config.decoder_layers), Residual(config)
        self.cross, self.around_cross = CrossAttention(config, number, config.decoder_layers), Residual(config)
        self.feed_forward, self.around_feed_forward = FeedForward(config), Residual(config)

    def forward(
        self,
        x: Tensor,
        pos: Positions,
        scheme: Scheme,
        source: Tensor,
        across: Positions,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        own = None if cache is None else cache.self_attention_cache
        x = self.around_attention(x, lambda x: self.attention(x, pos, scheme, own))
        x = self.around_cross(x, lambda x: self.cross(x, source, across, cache))
        return self.around_feed_forward(x, self.feed_forward)
