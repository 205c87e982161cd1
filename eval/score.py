"""score: the one place where token losses are made, in fp32, through the model's own head, chunk by chunk."""

# B windows · L tokens a window · V vocabulary

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval import EvalError

LOGITS = 2**24
"""The most logits held at once: 64 MiB in fp32. A window of 32k tokens with 128k words would need 16 GB whole."""


@torch.no_grad()
def score(model: nn.Module, ids: Tensor, targets: Tensor, first: int = 0) -> Tensor:
    """How many nats each target costs: -log p(targets[:, p] | ids[:, : p+1]) for the places p from `first` on.

    model: any causal language model whose output has `.logits`.   ids, targets: (B, L) int64, targets[:, p] following
    ids[:, p].   Returns (B, L - first) fp32.
    Raises EvalError where a loss is not finite, naming the place.
    """
    rows = max(1, LOGITS // (ids.shape[0] * vocabulary(model)))
    parts = []
    for start, logits in logits_by_chunk(model, ids, first, rows):
        wanted = targets[:, start : start + logits.shape[1]]
        parts.append(F.cross_entropy(logits.float().transpose(1, 2), wanted, reduction="none"))
    losses = torch.cat(parts, 1)
    if not losses.isfinite().all():
        window, place = (~losses.isfinite()).nonzero()[0].tolist()
        raise EvalError(
            f"the loss at place {first + place} of window {window} ({ids.shape[1]} tokens) is {losses[window, place]}: "
            "the model's logits are not finite there"
        )
    return losses


def logits_by_chunk(model: nn.Module, ids: Tensor, first: int, rows: int) -> Iterator[tuple[int, Tensor]]:
    """(place of the first row, (B, ≤ rows, V) logits) over the places from `first` on; the body runs once."""
    body = getattr(model, getattr(model, "base_model_prefix", "") or "", None)
    if not isinstance(body, nn.Module) or body is model:
        logits = model(ids).logits  # nothing is known of its parts
        yield from ((start, logits[:, start : start + rows]) for start in range(first, ids.shape[1], rows))
        return
    seen = body(input_ids=ids, use_cache=False)
    for start in range(first, ids.shape[1], rows):
        part = slice(start, start + rows)
        # The model's own forward on a body that answers with these rows: soft-capping, scales and tied heads included.
        with answering(body, lambda *_, part=part, **__: type(seen)(last_hidden_state=seen.last_hidden_state[:, part])):
            yield start, model(input_ids=ids[:, part], use_cache=False).logits


@contextmanager
def answering(body: nn.Module, answer: Callable) -> Iterator[None]:
    """For as long as this lasts, `body` returns what `answer` returns."""
    before = vars(body).get("forward")  # accelerate lays one over the class's to move inputs between devices
    body.forward = answer
    try:
        yield
    finally:
        if before is None:
            del body.forward
        else:
            body.forward = before


def vocabulary(model: nn.Module) -> int:
    """How many logits a place has; 1 where the model does not say, so that it is asked for all places at once."""
    config = getattr(model, "config", None)
    return config.get_text_config().vocab_size if hasattr(config, "get_text_config") else 1
