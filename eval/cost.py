"""cost: what a plan will take, told before it runs: forward passes, FLOPs, seconds, bytes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from eval.plan import Forward
from eval.score import score, vocabulary
from eval.scorer import Budget


@dataclass(frozen=True)
class Size:
    """What the cost of a model depends on."""

    weights: int  # parameters that every token passes through; embeddings are looked up, the head counts apart
    layers: int  # that have attention
    width: int  # of all query heads of a layer
    hidden: int  # of what enters the head
    vocabulary: int
    bytes: int  # of one number
    both_ways: bool = False  # whether a token also sees those after it
    windows: tuple[int, ...] = ()  # how many tokens one sees, in those of the layers where it does not see all
    mixed: int | None = None  # numbers a token that the mixing of a layer makes. None: queries, keys, values, output

    @classmethod
    def of(cls, model: nn.Module) -> "Size":
        config = getattr(model, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        if head is not None:
            embedded |= {id(p) for p in head.parameters()}
        weights = sum(p.numel() for p in model.parameters() if id(p) not in embedded)
        width = hidden = getattr(text, "hidden_size", 0) or 0
        if heads := getattr(text, "num_attention_heads", None):
            width = heads * (getattr(text, "head_dim", None) or width // heads)
        layers = getattr(text, "num_hidden_layers", 0) or 0
        size = next(model.parameters()).element_size()
        return cls(weights, layers, width, hidden, vocabulary(model), size)

    def flops(self, length: int, scored: int) -> float:
        """Of one forward pass: weights, attention's two products or their causal half, the head where it is scored."""
        pairs = self.pairs(length) * (2 if self.both_ways else 1)
        return 2.0 * self.weights * length + 4.0 * self.width * pairs + self.head(scored)

    def pairs(self, length: int) -> float:
        """Of a token and one before it that it sees, in all layers."""
        whole = [length] * (self.layers - len(self.windows))
        return sum(seen * length - seen**2 / 2 for seen in (*whole, *(min(window, length) for window in self.windows)))

    def head(self, scored: int) -> float:
        return 2.0 * self.hidden * self.vocabulary * scored


@dataclass(frozen=True)
class Cost:
    forwards: int
    tokens: int
    scored: int
    flops: float
    bytes: float  # beside the weights, roughly: hidden states of a batch and the logits held at once


def cost(size: Size, runs: Sequence[Forward], budget: Budget) -> Cost:
    """Of these forward passes."""
    scored = [run.scored for run in runs]
    flops = sum(size.flops(run.length, count) for run, count in zip(runs, scored, strict=True))
    wanted = sum(piece.stop - piece.first for run in runs for piece in run.pieces)
    longest = max((run.length for run in runs), default=0)
    batch = max(longest, min(budget.tokens, sum(run.length for run in runs)))
    # Of a layer at a time: input and norm, what mixes tokens, and the inner width, some 3 × 3 more.
    mixed = 4 * size.hidden if size.mixed is None else size.mixed
    held = batch * (size.hidden * 11 + mixed) * size.bytes + min(budget.logits, batch * size.vocabulary) * 4 * 2
    return Cost(len(runs), sum(run.length for run in runs), wanted, flops, held)


def seconds(model: nn.Module, size: Size, runs: Sequence[Forward], budget: Budget) -> float:
    """Expected, from short forward passes timed here: so many FLOPs a second in short and in long windows."""
    if not runs:
        return 0.0
    longest = max(run.length for run in runs)
    near, far = min(longest, 256), min(longest, 2048)
    rates = {length: rate(model, size, length, max(1, min(budget.tokens, 4096) // length)) for length in {near, far}}
    return sum(
        size.flops(run.length, run.scored) / rates[near if run.length < (near + far) / 2 else far] for run in runs
    )


def rate(model: nn.Module, size: Size, length: int, batch: int) -> float:
    """FLOPs a second of forward passes of this size, the best of three, of which the first may only warm up."""
    device = next(model.parameters()).device
    ids = torch.zeros(batch, length + 1, dtype=torch.int64, device=device)
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        score(model, ids[:, :-1], ids[:, 1:], length // 2).sum().item()  # the sum waits for the device
        took.append(time.perf_counter() - begun)
        if device.type == "cpu" and took[-1] > 0.5:
            break  # nothing warms up for so long there, and the estimate must not take as long as the work
    return batch * size.flops(length, length - length // 2) / min(took)
