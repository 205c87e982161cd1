"""Whether a pretrained model fits into memory at a length, said before its weights are loaded."""

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from eval.cost import Size, cost
from eval.plan import Forward, Piece
from eval.scorer import Budget
from lab import LabError

GIB = 2**30


def refuse_unfitting(
    config: PreTrainedConfig, length: int, dtype: torch.dtype, device: str, scored: int, *, remote_code: bool = False
) -> None:
    """Raise LabError, saying what would fit, where weights, one forward pass and its cache exceed what is free.

    length: tokens of the longest input, of which `scored` are scored.   An estimate: it may be off by a fifth.
    """

    def taken(tokens: int) -> float:
        return needed(config, tokens, dtype, scored, remote_code=remote_code)

    free = free_bytes(device)
    if taken(length) <= free:
        return
    fitting = length
    while fitting > 64 and taken(fitting) > free:
        fitting //= 2
    what = f"{length} tokens through {config.model_type} take about {taken(length) / GIB:.1f} GiB"
    if taken(fitting) > free:
        rest = "its weights alone do not fit: take a smaller model, a GPU with more memory, or dtype: bfloat16"
    else:
        rest = f"{fitting} tokens would fit; or take a smaller model, or dtype: bfloat16"
    raise LabError(f"{what}, and {free / GIB:.1f} GiB are free: {rest}")


def needed(
    config: PreTrainedConfig, length: int, dtype: torch.dtype, scored: int, *, remote_code: bool = False
) -> float:
    """Bytes of weights, of one forward pass and of the keys and values of all layers."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=remote_code)
    run = Forward(0, length, (Piece(("equal", length), length - min(scored, length), length, 0),), bos=False)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cached = 2 * text.num_hidden_layers * heads * head * length * dtype.itemsize
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    return weights + cost(Size.of(model), [run], Budget(length)).bytes + cached


def free_bytes(device: str) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else psutil.virtual_memory().available
