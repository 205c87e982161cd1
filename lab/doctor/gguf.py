"""The metadata of a .gguf file as the fields of a config.json; nothing of its weights but the table of lane factors."""

import math
from pathlib import Path
from typing import Any

from lab import LabError
from lab.doctor.keys import LENGTH

FIELDS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "rotary_dim": "rope.dimension_count",
}
SCALING = {
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    LENGTH: "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
TABLES = {
    "short_factor": ("rope_factors_short.weight", "rope_freqs.weight"),
    "long_factor": ("rope_factors_long.weight", "rope_freqs.weight"),
}
"""Where lanes are slowed by numbers of their own, these stand in a tensor: LongRoPE's, and Llama 3.1's, worked out."""


def metadata(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields, and what the file calls each. Raises LabError without the package gguf, or if it is no such file."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise LabError(f"{path} needs the package gguf to be read: pip install gguf") from None
    try:
        reader = GGUFReader(path)
        arch = reader.fields["general.architecture"].contents()
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise LabError(f"{path} is no GGUF file that can be read: {error}") from None
    found = {key: field.contents() for key, field in reader.fields.items() if key.startswith(f"{arch}.")}
    names = {"model_type": "general.architecture"} | {
        ours: f"{arch}.{theirs}" for ours, theirs in (FIELDS | SCALING).items()
    }
    raw = {"model_type": arch} | {ours: found[names[ours]] for ours in FIELDS if names[ours] in found}
    raw["num_attention_heads"] = largest(raw.get("num_attention_heads"))
    scaling = {ours: found[names[ours]] for ours in SCALING if names[ours] in found}
    tables = tables_of(reader, names)
    if tables:
        scaling = {LENGTH: raw.get("max_position_embeddings")} | scaling | tables | {"rope_type": "longrope"}
        scaling.setdefault("attention_factor", 1.0)
    if scaling.get("rope_type") == "yarn" and "attention_factor" in scaling and scaling.get("factor", 0) >= 1:
        scaling["attention_factor"] *= 0.1 * math.log(scaling["factor"]) + 1  # where transformers' would replace it
    if scaling.get("rope_type", "none") != "none":
        raw["rope_parameters"] = {"rope_theta": raw.get("rope_theta", 10000.0)} | scaling
    return {key: value for key, value in raw.items() if value is not None}, names


def largest(heads: Any) -> Any:
    """Some models have another number of heads in each layer."""
    return max(heads) if isinstance(heads, list) and heads else heads


def tables_of(reader: Any, names: dict[str, str]) -> dict[str, list[float]]:
    tensors, found = {tensor.name: tensor for tensor in reader.tensors}, {}
    for ours, theirs in TABLES.items():
        if name := next((one for one in theirs if one in tensors), None):
            found[ours], names[ours] = [float(one) for one in tensors[name].data.flatten()], name
    return found
