"""The rotary modules of a live transformers model: what each turns by, at an input of a given length."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def rotary_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, list[str]]]:
    """Name, module and types of layers of each module that turns queries and keys; the type is "" where all share it.

    They are known by transformers' own names: `inv_freq`, or `full_attention_inv_freq` and so on.
    """
    for name, module in model.named_modules():
        buffers = [buffer for buffer, _ in module.named_buffers(recurse=False) if buffer.endswith("inv_freq")]
        types = [buffer.removesuffix("inv_freq").removesuffix("_") for buffer in buffers if "original_" not in buffer]
        if types and hasattr(module, "config"):
            yield name, module, types


@torch.no_grad()
def turns(module: nn.Module, layer_type: str, length: int) -> tuple[Tensor, float]:
    """Radians a token of each lane, (lanes,) fp32, and the growth of queries and keys, when `length` tokens are run.

    Runs the module, as some change what they turn by when they are run.
    """
    prefix, told = (f"{layer_type}_", {"layer_type": layer_type}) if layer_type else ("", {})
    device = getattr(module, f"{prefix}inv_freq").device
    module(torch.zeros(1, device=device), torch.arange(length, device=device)[None], **told)
    return getattr(module, f"{prefix}inv_freq"), float(getattr(module, f"{prefix}attention_scaling"))
