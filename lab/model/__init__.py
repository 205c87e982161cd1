"""The model: a pre-norm decoder whose positions come from one pluggable scheme; a transformers model."""

# B batch · T tokens · Q queries (the last Q of T) · C width · V vocabulary

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from lab.cache import NAME, cache_for, usable
from lab.linear import linear
from lab.loss import loss_sum
from lab.model.config import LabConfig
from lab.model.layers import MixerLayer, layers_of
from lab.places import positions
from positional import Positions, Scheme, SchemeError
from positional.build import name_of

LOSS_LOGITS = 2**23
"""The most logits that the loss holds at once (32 MiB); more are made by chunks, and again for the gradient."""


class Decoder(nn.Module):
    """Token ids -> hidden states."""

    def __init__(self, config: LabConfig):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.embed._first_std = config.width**-0.5
        self.layers = layers_of(config)
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.spec = config.positional
        with torch.random.fork_rng(devices=[]):  # whatever the scheme draws, the weights around it stay the same
            self.scheme = config.built(config.positional)

    def forward(
        self, input_ids: Tensor, pos: Positions | None = None, kept: Cache | None = None, **_: Any
    ) -> BaseModelOutputWithPast:
        pos = Positions.first(input_ids.shape[1], device=input_ids.device) if pos is None else pos
        if self.scheme.limit is not None and pos.length > self.scheme.limit:
            raise SchemeError(
                f"{name_of(self.spec)} takes at most {self.scheme.limit} tokens, got {pos.length}: "
                "shorten the input or train at a longer length"
            )
        if self.training and kept is None:  # what a cache holds sits where it sits
            pos = self.scheme.place(pos, len(input_ids))
        # Unit variance, so that what a scheme adds at its paper's scale neither drowns the tokens nor is drowned.
        x = self.embed(input_ids) * self.embed.embedding_dim**0.5  # (B, Q, C)
        x = self.scheme.embed(x, pos)
        for number, layer in enumerate(self.layers):
            x = layer(x, pos, self.scheme.at(number), kept)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


class LabModel(PreTrainedModel, GenerationMixin):
    """A causal language model; save_pretrained, from_pretrained and the Auto classes work as for any other."""

    config_class = LabConfig
    body = Decoder
    base_model_prefix = "model"
    _tied_weights_keys = {"head.weight": "model.embed.weight"}
    _no_split_modules = ["Layer", "MixerLayer"]

    def __init__(self, config: LabConfig):
        super().__init__(config)
        self.model = self.body(config)
        self.head = linear(config.width, config.vocab_size)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, config=None, trust_remote_code=None, **kwargs):
        """As in transformers. A scheme that is not built in is code: it is run only with trust_remote_code=True."""
        if not isinstance(config, LabConfig):
            source = config or pretrained_model_name_or_path
            config, kwargs = cls.config_class.from_pretrained(source, return_unused_kwargs=True, **kwargs)
        if not trust_remote_code:
            with torch.device("meta"):
                config.built(config.positional, trust=False)
        return super().from_pretrained(pretrained_model_name_or_path, *args, config=config, **kwargs)

    @property
    def scheme(self) -> Scheme:
        return self.model.scheme

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segments: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, or with labels the mean loss alone: (B, T, V) logits are never held to make a loss.

        input_ids: (B, T).   attention_mask: (B, T), 0 for padding.   position_ids: (B, T), default 0 … T-1.
        segments: (B, T), numbers of packed documents or the like: a token sees only tokens of its own number.
        labels: (B, T), the token at each place, -100 for none; place p predicts label p+1.
        shift_labels: (B, T), the token that place p itself predicts.   num_items_in_batch: what to divide the loss by.
        logits_to_keep: how many of the last places, or which places, to make logits for; 0 is all.
        cache, or past_key_values: what earlier calls kept of earlier tokens. input_ids, position_ids and segments are
        then of the new tokens alone, attention_mask of all.   use_cache: make one, except in training.
        The output has the cache under the name that this version of transformers has for it.
        """
        kept = self.kept(past_key_values if cache is None else cache, use_cache)
        pos = positions(input_ids, attention_mask, position_ids, segments, kept, self.config.layers)
        hidden = self.model(input_ids, pos, kept).last_hidden_state  # (B, T, C)
        if labels is not None and shift_labels is None:
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=-100)
        if shift_labels is not None:
            total, count = self.loss_sum(hidden.flatten(0, 1), shift_labels.flatten())
            loss = total / (count if num_items_in_batch is None else num_items_in_batch)
            return CausalLMOutputWithPast(loss=loss, **{NAME: kept})
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.head(hidden[:, keep]), **{NAME: kept})

    def new_cache(self) -> Cache:
        carrying = [number for number, layer in enumerate(self.model.layers) if isinstance(layer, MixerLayer)]
        return cache_for(self.scheme, self.config.layers, carrying)

    def kept(self, cache: Cache | None, make: bool | None) -> Cache | None:
        """The cache to use, a new one if there is none and `make` asks for it. Raises LabError where it cannot be."""
        if cache is None and make and not self.training:
            cache = self.new_cache()
        return None if cache is None else usable(cache, self.scheme, name_of(self.model.spec))

    def _prepare_cache_for_generation(self, generation_config, model_kwargs: dict, *rest: Any) -> None:
        """Where `generate` gets its cache: ours, which knows how far each layer sees, or none where none is exact."""
        for name in {"cache", "past_key_values"} & model_kwargs.keys():
            model_kwargs[NAME] = model_kwargs.pop(name)
        given = model_kwargs.get(NAME) is not None
        if not given and not self.scheme.prefix_consistent:
            generation_config.use_cache = False
        plain = generation_config.cache_implementation in (None, "dynamic") and not generation_config.is_assistant
        if generation_config.use_cache and plain and not given:
            model_kwargs[NAME] = self.new_cache()  # in training too: it was asked for
        else:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest)

    def loss_sum(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the fp32 losses of (N, C) hidden states at (N,) targets, and how many targets there are."""
        return loss_sum(self.head, hidden, targets, rows=max(1, LOSS_LOGITS // self.config.vocab_size))

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the matrices that say how; norms start at one by themselves, and a scheme sets its own first weights."""
        if hasattr(module, "_first_std"):
            nn.init.normal_(module.weight, std=module._first_std)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.head = value


def swap(model: LabModel, spec: Any) -> list[str]:
    """Put another scheme into a model; its other weights stay. Returns the new scheme's parameters that are untrained.

    A parameter is kept where the old scheme has one of the same name and shape.
    """
    old = dict(model.scheme.named_parameters())
    new = model.config.built(spec).to(model.device).train(model.training)
    untrained = []
    for name, parameter in new.named_parameters():
        if name in old and old[name].shape == parameter.shape:
            parameter.data = old[name].data
        else:
            untrained.append(name)
    model.model.scheme, model.model.spec, model.config.positional = new, spec, spec
    return untrained


AutoConfig.register(LabConfig.model_type, LabConfig)
AutoModelForCausalLM.register(LabConfig, LabModel)
