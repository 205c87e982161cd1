"""Sequence to sequence before the paper: a bidirectional encoder, a recurrent decoder, attention between the two."""

# B batch · S source tokens · T target tokens · C width · V vocabulary

from typing import Any, Literal

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from lab import LabError
from lab.cache import NAME, StateLayer, state_of
from lab.mixers.recurrent import through
from lab.seq2seq.rnn_attention import ATTENTION

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


@strict
class RNNSeq2SeqConfig(PreTrainedConfig):
    """Sizes of a recurrent encoder–decoder of one layer a side. Bahdanau's own has a GRU, Luong's an LSTM."""

    model_type = "context-lab-rnn-seq2seq"
    attribute_map = {"hidden_size": "width"}

    vocab_size: int = 256
    width: int = 256  # of embeddings, and of the state of each direction of the encoder and of the decoder
    cell: Literal["lstm", "gru"] = "gru"
    attention: Literal["bahdanau", "luong"] = "bahdanau"
    dropout: float = 0.1  # of embeddings
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True  # for `generate`; a call of the model keeps nothing unless it is asked to
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1


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


class RNNSeq2Seq(PreTrainedModel, GenerationMixin):
    """save_pretrained, from_pretrained, generate with greedy and beam search, and the Auto classes work as usual."""

    config_class = RNNSeq2SeqConfig
    _tied_weights_keys = {"head.weight": "encoder.embed.weight"}

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.encoder = Encoder(config)
        self.first = nn.Linear(config.width, config.width)
        self.decoder = ATTENTION[config.attention](CELLS[config.cell], config.width, 2 * config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | float | None = None,
        cache: EncoderDecoderCache | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Logits, and with labels the mean loss.

        input_ids: (B, S), the source, or encoder_outputs: what the encoder has made of it.
        attention_mask: (B, S), 0 for padding of the source, on which no output hangs.
        labels: (B, T), the target with its end token, -100 for none; the decoder is given them one place later.
        decoder_input_ids: (B, T), instead of labels, from the start token on; with a cache the new ones alone.
        num_items_in_batch: what to divide the loss by.   cache, or past_key_values: of earlier calls.
        use_cache: make one, except in training.
        """
        if decoder_attention_mask is not None and not bool(decoder_attention_mask.all()):
            raise LabError("a recurrent decoder reads its target from the first token: put padding behind, as -100")
        cache = past_key_values if cache is None else cache
        if cache is None and use_cache and not self.training:
            cache = self.new_cache()
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        source = encoder_outputs[0]  # (B, S, 2C)
        if decoder_input_ids is None:
            decoder_input_ids = self.shifted(labels)
        hidden = self.decoded(decoder_input_ids, source, real_of(source, attention_mask), cache)
        logits, loss = self.head(hidden), None
        if labels is not None:
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
            loss = loss / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)
        return Seq2SeqLMOutput(loss=loss, logits=logits, encoder_last_hidden_state=source, **{NAME: cache})

    def decoded(self, ids: Tensor, source: Tensor, real: Tensor, cache: EncoderDecoderCache | None) -> Tensor:
        """(B, T, C). The state is the cache's, or what the encoder came to when it had read back to the first token."""
        kept = None if cache is None else state_of(cache.self_attention_cache, 0)
        x = self.dropout(self.encoder.embed(ids))
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

    def shifted(self, labels: Tensor) -> Tensor:
        """(B, T) targets -> what the decoder reads to predict them: the start token, then all but the last."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] < 0, self.config.pad_token_id)], 1)

    def new_cache(self) -> EncoderDecoderCache:
        return EncoderDecoderCache(Cache(layers=[StateLayer()]), DynamicCache())

    def _prepare_cache_for_generation(self, generation_config, model_kwargs: dict, *rest: Any) -> None:
        """Where `generate` gets its cache: a state, and nothing of the source, whose annotations it holds already."""
        for name in {"cache", "past_key_values"} & model_kwargs.keys():
            model_kwargs[NAME] = model_kwargs.pop(name)
        if generation_config.use_cache and model_kwargs.get(NAME) is None:
            model_kwargs[NAME] = self.new_cache()

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the embedding; the rest begins as torch draws it."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.width**-0.5)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.head = value


AutoConfig.register(RNNSeq2SeqConfig.model_type, RNNSeq2SeqConfig)
AutoModelForSeq2SeqLM.register(RNNSeq2SeqConfig, RNNSeq2Seq)
