"""The encoder–decoder of the paper, whole (Vaswani et al. 2017, arXiv:1706.03762); a transformers model.

As published: three sub-layers in a decoder layer and two in an encoder layer, LayerNorm after each residual sum, ReLU
between two matrices, one embedding for source, target and output, scaled by √C, dropout on what each sub-layer makes
and on the sums of embeddings and positions, smoothed labels. The layers are in `lab.seq2seq.layers`. Of choice are the
positions: any scheme on the self-attention of the encoder, of the decoder or of both; cross-attention knows none.
"""

# B batch · S source tokens · T target tokens · Q those of them that ask · H heads · D key size · C width · V vocabulary

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from lab import LabError
from lab.cache import cache_for, usable
from lab.places import positions
from lab.seq2seq.base import Translator
from lab.seq2seq.config import Seq2SeqConfig
from lab.seq2seq.layers import DecoderLayer, EncoderLayer
from positional import Positions, SchemeError
from positional.build import Spec, name_of


class Side(nn.Module):
    """What encoder and decoder have in common: embeddings with positions, section 3.4, and where their layers end."""

    def __init__(self, config: Seq2SeqConfig, side: Literal["encoder", "decoder"]):
        super().__init__()
        self.reads = {"encoder": "source", "decoder": "target"}[side]
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.spec = getattr(config, f"{side}_positional")
        with torch.random.fork_rng(devices=[]):  # whatever the scheme draws, the weights around it stay the same
            self.scheme = config.built(side)
        self.last = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def embedded(self, ids: Tensor, pos: Positions) -> Tensor:
        """(B, Q) ids -> (B, Q, C). Raises SchemeError for positions beyond what the scheme has."""
        if self.scheme.limit is not None and pos.length > self.scheme.limit:
            raise SchemeError(
                f"{name_of(self.spec)} takes at most {self.scheme.limit} tokens, the {self.reads} has {pos.length}: "
                "shorten it or train at a longer length"
            )
        return self.dropout(self.scheme.embed(self.embed(ids) * self.embed.embedding_dim**0.5, pos))


class Encoder(Side):
    """Source ids -> hidden states."""

    main_input_name = "input_ids"  # `generate` asks

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(config, "encoder")
        self.layers = nn.ModuleList(EncoderLayer(config, number) for number in range(config.encoder_layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """input_ids: (B, S).   attention_mask: (B, S), 0 for padding, on which no output hangs."""
        refuse_empty(input_ids, attention_mask)
        pos = replace(positions(input_ids, attention_mask, None, None), causal=False)
        if self.training:
            pos = self.scheme.place(pos, len(input_ids))
        x = self.embedded(input_ids, pos)  # (B, S, C)
        for number, layer in enumerate(self.layers):
            x = layer(x, pos, self.scheme.at(number))
        return BaseModelOutput(last_hidden_state=self.last(x))


class Decoder(Side):
    """Target ids and the encoder's hidden states -> hidden states."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(config, "decoder")
        self.layers = nn.ModuleList(DecoderLayer(config, number) for number in range(config.decoder_layers))

    def forward(
        self,
        input_ids: Tensor,
        source: Tensor,
        attention_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """input_ids: (B, Q), those that are not in the cache.   source: (B, S, C).   masks: (B, T) and (B, S)."""
        own = None if cache is None else cache.self_attention_cache
        pos = positions(input_ids, attention_mask, None, None, own, len(self.layers))
        if self.training and cache is None:  # what a cache holds sits where it sits
            pos = self.scheme.place(pos, len(input_ids))
        places = torch.arange(source.shape[1], device=source.device)[None]
        seen = None if source_mask is None or bool(source_mask.all()) else source_mask
        across = Positions.across(pos.of_queries, places, max(pos.length, source.shape[1]), seen=seen)
        x = self.embedded(input_ids, pos)  # (B, Q, C)
        for number, layer in enumerate(self.layers):
            x = layer(x, pos, self.scheme.at(number), source, across, cache)
        return self.last(x)


def refuse_empty(input_ids: Tensor, mask: Tensor | None) -> None:
    """A source without tokens leaves cross-attention nothing to look at."""
    if not input_ids.shape[1]:
        raise LabError("the source is empty: give it at least an end token")
    if mask is not None and len(empty := (mask.sum(-1) == 0).nonzero()):
        raise LabError(f"row {int(empty[0])} of the source is empty: leave it out, or end it with an end token")


class Seq2Seq(Translator):
    """The encoder–decoder of the paper."""

    config_class = Seq2SeqConfig
    _tied_weights_keys = {"decoder.embed.weight": "encoder.embed.weight", "head.weight": "encoder.embed.weight"}
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(config)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, config=None, trust_remote_code=None, **kwargs):
        """As in transformers. A scheme that is not built in is code: it is run only with trust_remote_code=True."""
        if not isinstance(config, Seq2SeqConfig):
            source = config or pretrained_model_name_or_path
            config, kwargs = Seq2SeqConfig.from_pretrained(source, return_unused_kwargs=True, **kwargs)
        if not trust_remote_code:
            with torch.device("meta"):
                config.built("encoder", trust=False), config.built("decoder", trust=False)
        return super().from_pretrained(pretrained_model_name_or_path, *args, config=config, **kwargs)

    def decoded(
        self,
        ids: Tensor,
        target_mask: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> Tensor:
        return self.decoder(ids, source, target_mask, source_mask, cache)

    @property
    def limits(self) -> tuple[int | None, int | None]:
        return self.encoder.scheme.limit, self.decoder.scheme.limit

    @property
    def prefix_consistent(self) -> bool:
        return self.decoder.scheme.prefix_consistent

    def kept(self, cache: EncoderDecoderCache | None, make: bool | None) -> EncoderDecoderCache | None:
        """As of any. Raises LabError for a cache that would not be exact."""
        cache = super().kept(cache, make)
        if cache is not None:
            usable(cache.self_attention_cache, self.decoder.scheme, name_of(self.decoder.spec))
        return cache

    def new_cache(self) -> EncoderDecoderCache:
        return EncoderDecoderCache(cache_for(self.decoder.scheme, self.config.decoder_layers), DynamicCache())

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the matrices; norms start at one by themselves, and a scheme sets its own first weights."""
        if isinstance(module, nn.Embedding) or module is self.head:
            nn.init.normal_(module.weight, std=self.config.width**-0.5)
        elif hasattr(module, "_glorot"):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def swap(model: Seq2Seq, specs: dict[Literal["encoder", "decoder"], Spec]) -> list[str]:
    """Put other schemes into sides of a model; its other weights stay. Returns the parameters that are untrained.

    A parameter is kept where the old scheme of its side has one of the same name and shape.
    """
    untrained = []
    for side, spec in specs.items():
        place = getattr(model, side)
        setattr(model.config, f"{side}_positional", spec)
        old, new = dict(place.scheme.named_parameters()), model.config.built(side).to(model.device)
        for name, parameter in new.named_parameters():
            if name in old and old[name].shape == parameter.shape:
                parameter.data = old[name].data
            else:
                untrained.append(f"{side}.{name}")
        place.scheme, place.spec = new.train(model.training), spec
    return untrained


AutoConfig.register(Seq2SeqConfig.model_type, Seq2SeqConfig)
AutoModelForSeq2SeqLM.register(Seq2SeqConfig, Seq2Seq)
