"""What the installed transformers knows of a family: its defaults and its layers; and families that have no RoPE."""

from typing import Any

from lab.doctor.finding import whole

WHOLE_HEAD = frozenset(
    "llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text olmo olmo2 smollm3 phimoe "
    "gpt_oss falcon".split()
)
"""Families whose plain RoPE, in transformers, turns the whole head whatever partial_rotary_factor says."""
SWITCHES_CACHE = ("phi3", "phimoe", "phi4_multimodal")
"""Families that drop the cache of keys where LongRoPE's lists switch."""
SCALES_SOFTMAX = frozenset(
    "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 longcat_flash "
    "minicpm3 mistral4 mistral_large4 youtu".split()
)
"""Families that multiply the softmax scale by (0.1·mscale_all_dim·ln s + 1)² themselves."""
MOST = 10000
"""Layers that are still believed."""
LAYERS = (
    "num_hidden_layers",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "no_rope_layers",
    "no_rope_layer_interval",
)


def defaults(family: str) -> Any:
    """A configuration of the family with nothing but its defaults; None: transformers does not know the family.

    Only the configuration's class is imported: no model, no code from outside.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[family]()
    except Exception:  # a family may need arguments, and its class may raise anything
        return None


def layer_types(usual: Any, raw: dict[str, Any]) -> list[str]:
    """The type of each layer as the family's own class derives it from the file; empty: it has no such types."""
    given = {name: raw[name] for name in LAYERS if raw.get(name) is not None}
    if not 0 < (whole(given.get("num_hidden_layers", 1)) or 0) <= MOST:
        return []  # the class would count them one by one
    try:
        found = type(usual)(**given).layer_types
    except Exception:  # what the file says may be broken in any way
        found = given.get("layer_types")
    return list(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else []


def labels(usual: Any, types: list[str]) -> list[str]:
    """The names that RoPEs may be nested under."""
    return list(getattr(usual, "_rope_type_labels", None) or dict.fromkeys(types))
