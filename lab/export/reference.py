"""What a model computes, written down for another process to compare with: logits in two precisions, and angles."""

# T tokens · K the last places, of which logits are kept · V vocabulary

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lab.rope.config import Rotation

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LONGEST = 8192
"""Tokens that are run at most: beyond, angles alone are compared."""
PLACES = 64
"""How many of the last places have their logits kept."""


class Reference:
    """Tensors by name, and the growth of queries and keys at each length."""

    def __init__(self, tensors: dict[str, Tensor], growth: dict[str, float]):
        self.tensors, self.growth = tensors, growth

    def write(self, path: Path) -> None:
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        save_file(tensors, path, {"growth": json.dumps(self.growth)})


def reference_of(model: nn.Module, target: int, train_length: int, wanted: Rotation | None) -> Reference:
    """wanted: what the layers that see the whole input turn by; None: angles are not compared.

    Runs the model on a short input, on half the train length, and on one that exceeds it.
    """
    random = torch.Generator().manual_seed(0)
    tensors, growth = {}, {}
    lengths = {"short": max(1, train_length // 2), "long": train_length + max(16, train_length // 8)}
    for name, length in lengths.items():
        ids = torch.randint(model.config.vocab_size, (1, min(length, target, LONGEST)), generator=random)
        tensors[f"ids {name}"] = ids
        for precision, dtype in DTYPES.items():
            with cast(model, dtype):
                tensors[f"logits {precision} {name}"] = logits(model, ids)
    if wanted is not None:
        scheme = wanted.scheme()
        for length in sorted({1, train_length, train_length + 1, target}):
            tensors[f"angles {length}"] = scheme.frequencies(length)
            growth[str(length)] = scheme.gain(length)
    return Reference(tensors, growth)


@torch.no_grad()
def logits(model: nn.Module, ids: Tensor) -> Tensor:
    """(1, T) ids -> (K, V) fp32 at the last places."""
    out = model(input_ids=ids.to(model.device), use_cache=False, logits_to_keep=PLACES)
    return out.logits[0].float().cpu()


@contextmanager
def cast(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """The model with its weights in this precision for a while, in evaluation mode.

    Only what a checkpoint holds is cast, as in loading: `model.to` would round the angles too.
    """
    held = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    tensors = [one for one in [*model.parameters(), *model.buffers()] if id(one) in held and one.is_floating_point()]
    before, training = [one.data for one in tensors], model.training
    try:
        model.eval()
        for one in tensors:
            one.data = one.data.to(dtype)
        yield
    finally:
        for one, data in zip(tensors, before, strict=True):
            one.data = data
        model.train(training)
