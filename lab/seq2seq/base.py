"""What every encoder–decoder of the lab is, whatever its layers: sizes, labels and loss, a cache, decoding."""

# B batch · S source tokens · T target tokens · C width · V vocabulary · A what a source token has become

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from lab import LabError
from lab.cache import NAME
from lab.loss import loss_sum

LOSS_LOGITS = 2**23
"""The most logits that the loss holds at once (32 MiB); more are made by chunks, and again for the gradient."""


@strict
class TranslatorConfig(PreTrainedConfig):
    """What the configurations of all have."""

    vocab_size: int = 37000
    width: int = 512
    dropout: float = 0.1
    label_smoothing: float = 0.1  # in training alone, as dropout
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True  # for `generate`; a call of the model keeps nothing unless it is asked to
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1


class Translator(PreTrainedModel, GenerationMixin):
    """An encoder–decoder; save_pretrained, from_pretrained, generate and the Auto classes work as for any other.

    It has an `encoder`, whose `embed` is the source's, and a `head`.
    """

    def decoded(
        self,
        ids: Tensor,
        target_mask: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> Tensor:
        """(B, T) target ids and (B, S, A) of the encoder -> (B, T, C) hidden states.   masks: (B, T) and (B, S)."""
        raise NotImplementedError

    def new_cache(self) -> EncoderDecoderCache:
        raise NotImplementedError

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The most tokens of a source and of a target that it can take. None: any."""
        return None, None

    @property
    def prefix_consistent(self) -> bool:
        """Whether what it makes of a target's token hangs on nothing after it, so that a cache is exact."""
        return True

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
        """Logits, or with labels the mean loss alone: (B, T, V) logits are never held to make a loss.

        input_ids: (B, S), the source, or encoder_outputs: what the encoder has made of it.
        attention_mask: (B, S), 0 for padding of the source, on which no output hangs.
        labels: (B, T), the target with its end token, -100 for none; the decoder is given them one place later.
        decoder_input_ids: (B, T), instead of labels, from the start token on; with a cache the new ones alone.
        decoder_attention_mask: (B, T), 0 for padding of the target, at its beginning.
        num_items_in_batch: what to divide the loss by.   cache, or past_key_values: of earlier calls.
        use_cache: make one, except in training.
        """
        kept = self.kept(past_key_values if cache is None else cache, use_cache)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        source = encoder_outputs[0]  # (B, S, A)
        if decoder_input_ids is None:
            decoder_input_ids = self.shifted(labels)
        hidden = self.decoded(decoder_input_ids, decoder_attention_mask, source, attention_mask, kept)  # (B, T, C)
        if labels is None:
            return Seq2SeqLMOutput(logits=self.head(hidden), encoder_last_hidden_state=source, **{NAME: kept})
        total, count = self.loss_sum(hidden.flatten(0, 1), labels.flatten())
        loss = total / (count if num_items_in_batch is None else num_items_in_batch)
        return Seq2SeqLMOutput(loss=loss, encoder_last_hidden_state=source, **{NAME: kept})

    def shifted(self, labels: Tensor) -> Tensor:
        """(B, T) targets -> what the decoder reads to predict them: the start token, then all but the last."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] < 0, self.config.pad_token_id)], 1)

    def loss_sum(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the fp32 losses of (N, C) hidden states at (N,) targets, smoothed in training, and how many."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        rows = max(1, LOSS_LOGITS // self.config.vocab_size)
        return loss_sum(self.head, hidden, targets, rows=rows, smoothing=smoothing)

    def kept(self, cache: EncoderDecoderCache | None, make: bool | None) -> EncoderDecoderCache | None:
        """The cache to use, a new one if there is none and `make` asks for it."""
        return self.new_cache() if cache is None and make and not self.training else cache

    @torch.no_grad()
    def generate(self, *args, **options):
        """As in transformers. Raises LabError for more beams than there are tokens to begin them with."""
        config = options.get("generation_config") or self.generation_config
        beams = options.get("num_beams") or config.num_beams or 1
        if beams > self.config.vocab_size:
            raise LabError(
                f"{beams} beams begin with {beams} different tokens, and the vocabulary has {self.config.vocab_size}: "
                "ask for fewer beams",
                code=2,
            )
        return super().generate(*args, **options)

    def _prepare_cache_for_generation(self, generation_config, model_kwargs: dict, *rest: Any) -> None:
        """Where `generate` gets its cache: ours, which knows what is kept of a target, or none where none is exact."""
        for name in {"cache", "past_key_values"} & model_kwargs.keys():
            model_kwargs[NAME] = model_kwargs.pop(name)
        given = model_kwargs.get(NAME) is not None
        if not given and not self.prefix_consistent:
            generation_config.use_cache = False
        if generation_config.use_cache and not given and generation_config.cache_implementation in (None, "dynamic"):
            model_kwargs[NAME] = self.new_cache()  # in training too: it was asked for
        else:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.head = value
