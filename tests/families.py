"""Tiny random models of the families of transformers that a scheme is put into, each built in milliseconds."""

from collections.abc import Callable
from functools import partial

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    OlmoConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from eval.cap import keep_cap

# With weights ten times what they are usually drawn from, so that it makes a difference where a token sits.
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SHARED_KEYS = {"num_key_value_heads": 2}
ALTERNATING = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16}
GEMMA = SHARED_KEYS | ALTERNATING | {"head_dim": 16, "query_pre_attn_scalar": 16}

OWN: dict[str, tuple[type[PreTrainedConfig], dict]] = {
    "llama": (LlamaConfig, SHARED_KEYS),
    "mistral": (MistralConfig, SHARED_KEYS | {"sliding_window": None}),
    "qwen2": (Qwen2Config, SHARED_KEYS),
    "qwen3": (Qwen3Config, SHARED_KEYS | {"head_dim": 16}),
    "gemma2": (Gemma2Config, GEMMA | {"attn_logit_softcapping": 5.0}),
    "gemma3": (Gemma3TextConfig, GEMMA),
    "gemma4": (
        Gemma4TextConfig,
        SHARED_KEYS
        | ALTERNATING
        | {
            "head_dim": 16,
            "global_head_dim": 32,
            "vocab_size_per_layer_input": 128,
            "hidden_size_per_layer_input": 8,
        },
    ),
    "phi3": (Phi3Config, SHARED_KEYS | {"original_max_position_embeddings": 64}),
    "gpt_neox": (GPTNeoXConfig, {"rotary_pct": 0.5}),
    "olmo": (OlmoConfig, SHARED_KEYS),
    "olmo2": (Olmo2Config, SHARED_KEYS),
    "smollm3": (SmolLM3Config, SHARED_KEYS | {"num_hidden_layers": 4}),
}
"""What each family has of its own beside the sizes: the last layer of SmolLM3 has no positions, Gemma 2 caps its scores
(at 50 as published, which the scores of so small a model hardly reach)."""


def config(family: str, **changes) -> PreTrainedConfig:
    """The family's configuration, with some fields changed."""
    cls, own = OWN[family]
    return cls(**SIZES | own | changes)


def built(config: PreTrainedConfig) -> PreTrainedModel:
    """The same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return keep_cap(AutoModelForCausalLM.from_config(config)).eval()


def model(family: str, **changes) -> PreTrainedModel:
    return built(config(family, **changes))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {family: partial(model, family) for family in OWN}
"""Width 64, 2 or 4 layers, 4 heads on 2 key heads where the family shares them, 128 words, 64 positions."""
