"""Sequence to sequence before the paper: a bidirectional encoder, a recurrent decoder, attention between the two."""

# B batch · S source tokens · T target tokens · C width · V vocabulary

from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from lab import LabError
from lab.cache import StateLayer, state_of
from lab.mixers.recurrent import through
from lab.seq2seq.base import Translator, TranslatorConfig
from lab.seq2seq.rnn_attention import ATTENTION

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


@strict
class RNNSeq2SeqConfig(TranslatorConfig):
    """Sizes of a recurrent encoder–decoder of one layer a side. Bahdanau's own has a GRU, Luong's an LSTM."""

    model_type = "context-lab-rnn-seq2seq"
    attribute_map = {"hidden_size": "width"}

    vocab_size: int = 256
    width: int = 256  # of embeddings, and of the state of each direction of the encoder and of the decoder
    cell: Literal["lstm", "gru"] = "gru"
    attention: Literal["bahdanau", "luong"] = "bahdanau"
    label_smoothing: float = 0.0  # dropout is of embeddings


class Encoder(nn.Module):
    """Source ids -> (B, S, 2C), each token with what is before it and what comes after."""

    main_input_name = "input_ids"  # `generate` asks

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.rnn = CELLS[config.cell](config.width, config.width, batch_first=True, bidirectional=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """attention_mask: (B, S), 0 for padding, wherever it is: it is put behind, read by neither direction."""
        real = real_of(input_ids, attention_mask)
        if bool((empty := ~real.any(-1)).any()):
            raise LabError(f"source {int(empty.nonzero()[0])} of the batch is empty: leave it out")
        order = (~real).long().argsort(dim=-1, stable=True)
        x = self.dropout(self.embed(input_ids.gather(1, order)))
        y, _ = through(self.rnn, x, None, real.sum(-1))
        back = order.argsort(dim=-1)[..., None].expand_as(y)
        return BaseModelOutput(last_hidden_state=y.gather(1, back))


def real_of(ids: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones(ids.shape[:2], dtype=torch.bool, device=ids.device) if mask is None else mask.bool()


class RNNSeq2Seq(Translator):
    """The recurrent encoder–decoder."""

    config_class = RNNSeq2SeqConfig
    _tied_weights_keys = {"embed.weight": "encoder.embed.weight", "head.weight": "encoder.embed.weight"}

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.encoder = Encoder(config)
        self.embed = nn.Embedding(config.vocab_size, config.width)  # of the target
        self.first = nn.Linear(config.width, config.width)
        self.decoder = ATTENTION[config.attention](CELLS[config.cell], config.width, 2 * config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def decoded(
        self,
        ids: Tensor,
        target_mask: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> Tensor:
        """The state is the cache's, or what the encoder came to when it had read back to the first token."""
        if target_mask is not None and not bool(target_mask.all()):
            raise LabError("a recurrent decoder reads its target from the first token: put padding behind, as -100")
        kept = None if cache is None else state_of(cache.self_attention_cache, 0)
        real = real_of(source, source_mask)
        x = self.dropout(self.embed(ids))
        h, c = self.begin(source, real) if kept is None or kept.state is None else kept.state
        h, c = h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()  # (1, B, C)
        lstm = self.config.cell == "lstm"
        hidden, state = self.decoder(x, (h, c) if lstm else h, source, real)
        if kept is not None:
            h, c = state if lstm else (state, c)
            kept.put((h.transpose(0, 1), c.transpose(0, 1)), ids.shape[1])
        return hidden

    def begin(self, source: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, C) twice: Bahdanau's tanh(W h), h of the backward direction at the first token; and an empty cell."""
        at = real.int().argmax(-1)  # of several largest, the first
        back = source[torch.arange(len(source), device=source.device), at, self.config.width :]
        h = torch.tanh(self.first(back))[:, None]
        return h, torch.zeros_like(h)

    def new_cache(self) -> EncoderDecoderCache:
        return EncoderDecoderCache(Cache(layers=[StateLayer()]), DynamicCache())

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the embedding; the rest begins as torch draws it."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.width**-0.5)


AutoConfig.register(RNNSeq2SeqConfig.model_type, RNNSeq2SeqConfig)
AutoModelForSeq2SeqLM.register(RNNSeq2SeqConfig, RNNSeq2Seq)
