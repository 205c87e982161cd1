"""score: the one place where token losses are made, in fp32, through the model's own head, chunk by chunk."""

# B windows · L tokens a window · V vocabulary

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval import EvalError

LOGITS = 2**24
"""The most logits held at once: 64 MiB in fp32. A window of 32k tokens with 128k words would need 16 GB whole."""


class NotFinite(EvalError):
    """A loss that is no number: of which window of a batch, at which place."""

    def __init__(self, ids: Tensor, losses: Tensor, first: int):
        self.window, at = (~losses.isfinite()).nonzero()[0].tolist()
        self.place, self.value = first + at, float(losses[self.window, at])
        super().__init__(
            f"the loss at place {self.place} of window {self.window} ({ids.shape[1]} tokens) is {self.value}: the "
            f"model's logits are not finite there; the token is {int(ids[self.window, self.place])}"
        )


@torch.no_grad()
def score(
    model: nn.Module, ids: Tensor, targets: Tensor, first: int = 0, *, logits: int = LOGITS, piece: int | None = None
) -> Tensor:
    """How many nats each target costs: -log p(targets[:, p] | ids[:, : p+1]) for the places p from `first` on.

    model: any causal language model whose output has `.logits`.   ids, targets: (B, L) int64, targets[:, p] following
    ids[:, p].   logits: the most held at once.   piece: tokens at a time, through a cache; None: the window whole.
    Returns (B, L - first) fp32.
    Raises EvalError where a loss is not finite, naming the place, and where the model makes no logits.
    """
    beside = beside_targets(model, ids, targets, first, logits, piece)
    losses = torch.cat([nats(made, wanted) for made, wanted in beside], 1)
    if not losses.isfinite().all():
        raise NotFinite(ids, losses, first)
    return losses


@torch.no_grad()
def judge(
    model: nn.Module, ids: Tensor, targets: Tensor, first: int = 0, *, logits: int = LOGITS, piece: int | None = None
) -> tuple[Tensor, Tensor]:
    """The losses of `score`, finite or not, and whether each target is the likeliest token: what greedy decoding says.

    Returns (B, L - first) fp32 and (B, L - first) bool.
    """
    parts = []
    for made, wanted in beside_targets(model, ids, targets, first, logits, piece):
        parts.append((nats(made, wanted), made.argmax(-1) == wanted))
    losses, right = zip(*parts, strict=True)
    return torch.cat(losses, 1), torch.cat(right, 1)


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")


def beside_targets(
    model: nn.Module, ids: Tensor, targets: Tensor, first: int, logits: int, piece: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits chunk by chunk, (B, n, V), and the targets (B, n) that stand there."""
    rows = max(1, logits // (ids.shape[0] * vocabulary(model)))
    for start, made in logits_by_chunk(model, ids, first, rows, piece):
        yield made, targets[:, start : start + made.shape[1]]


def logits_by_chunk(
    model: nn.Module, ids: Tensor, first: int, rows: int, piece: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """(place of the first row, (B, ≤ rows, V) logits) over the places from `first` on; the body runs once."""
    body = body_of(model)
    if body is None:  # nothing is known of its parts
        made = logits_of(model(ids), model)
        yield from ((start, made[:, start : start + rows]) for start in range(first, ids.shape[1], rows))
        return
    for begun, seen in hidden_states(model, body, ids, piece):
        hidden = seen.last_hidden_state
        for start in range(max(first, begun), begun + hidden.shape[1], rows):
            part = hidden[:, start - begun : start - begun + rows]
            answer = type(seen)(last_hidden_state=part)
            # The model's own forward on a body that answers with these rows: soft-capping, scales, tied heads included.
            with answering(body, lambda *_, answer=answer, **__: answer):
                made = logits_of(model(input_ids=ids[:, start : start + part.shape[1]], use_cache=False), model)
            yield start, made


def hidden_states(model: nn.Module, body: nn.Module, ids: Tensor, piece: int | None) -> Iterator[tuple[int, object]]:
    """(place of the first token, what the body returns) of the window whole, or of one piece of it after the other."""
    if piece is None:
        yield 0, body(input_ids=ids, use_cache=False)
        return
    seen = []
    hook = body.register_forward_hook(lambda module, inputs, out: seen.append(out))
    try:
        # The model's own forward, which knows what the body has to be told of a cache.
        for start, *_ in in_pieces(model, ids, piece, "it cannot be given a window piece by piece"):
            yield start, seen[0]
            seen.clear()
    finally:
        hook.remove()


def body_of(model: nn.Module) -> nn.Module | None:
    """What makes hidden states in a model of transformers; None in any other, which is run as it is."""
    body = getattr(model, getattr(model, "base_model_prefix", "") or "", None)
    return body if isinstance(body, nn.Module) and body is not model else None


def in_pieces(model: nn.Module, ids: Tensor, piece: int, instead: str) -> Iterator[tuple[int, str, object]]:
    """Run (B, L) ids so many at a time, and tell after each: (place of its first token, the cache's name, the cache).

    The name is that under which the model hands its cache out and takes it back: `cache` from transformers 5.24 on.
    instead: what to tell where there is none. Raises EvalError then.
    """
    # A head on all of a long text can take more memory than all the rest; one row of logits is least.
    least = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    kept = {}
    for start in range(0, ids.shape[1], piece):
        out = model(input_ids=ids[:, start : start + piece], use_cache=True, **least, **kept)
        name = next((name for name in ("cache", "past_key_values") if getattr(out, name, None) is not None), None)
        if name is None:
            raise EvalError(f"{type(model).__name__} returns no cache: {instead}")
        kept = {name: getattr(out, name)}
        yield start, name, kept[name]


def logits_of(out, model: nn.Module) -> Tensor:
    logits = getattr(out, "logits", None)
    if logits is None:
        raise EvalError(f"{type(model).__name__} makes no logits: load a causal language model (AutoModelForCausalLM)")
    return logits


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
    """How many logits a place has; 1 where the model does not say."""
    config = getattr(model, "config", None)
    return config.get_text_config().vocab_size if hasattr(config, "get_text_config") else 1
