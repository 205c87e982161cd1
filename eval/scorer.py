"""scorer: windows in batches that fit memory; what does not is tried with less, never with the same again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from eval import EvalError
from eval.score import LOGITS, NotFinite, body_of, score, vocabulary

LEAST = 64
"""Tokens. Below, less at once saves no memory that matters."""
SIGNS = "out of memory", "can't allocate memory", "ALLOC_FAILED"
Made = TypeVar("Made")


@dataclass(frozen=True)
class Budget:
    """How much runs at once."""

    tokens: int = 16384  # of a batch; a longer window runs alone
    logits: int = LOGITS
    piece: int | None = None  # tokens at a time, through a cache, of a window longer than that; None: windows run whole

    def less(self, batch: int, length: int, scored: int, vocabulary: int) -> "Budget | None":
        """The next step down from a batch of this size; None: there is none.

        scored: places of a window.   vocabulary: 0 for a model that makes all logits at once whatever it is asked.
        """
        rows = min(self.logits // (batch * vocabulary), scored, self.piece or scored) if vocabulary else 0
        if rows > LEAST:
            return replace(self, logits=batch * vocabulary * (rows // 2))
        if batch > 1:
            return replace(self, tokens=length * (batch // 2))
        piece = min(self.piece or length, length) // 2
        return replace(self, piece=piece) if piece >= LEAST and vocabulary else None


DEFAULT = Budget()


@dataclass(frozen=True)
class Job:
    """A window to score, and what to call it where that fails."""

    ids: Tensor  # (L + 1,), of which all but the last are run
    first: int = 0  # the losses wanted are those of ids[first+1 :]
    begin: int | None = None  # a token to put in the place of the first
    name: str = "the window"
    start: int = 0  # which token of `name` the first one is

    @property
    def length(self) -> int:
        return len(self.ids) - 1


class Scorer:
    """A model and how much of it fits. Windows run long first, so that what does not fit shows at once."""

    def __init__(self, model: nn.Module, budget: Budget = DEFAULT):
        self.model, self.budget = model, budget
        self.tried = budget.piece is not None  # whether the model is known to give the same piece by piece

    def losses(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Tensor]]:
        """Each window's number and its (L - first,) fp32 losses on the CPU, in the order in which they are made.

        Windows of one length share a batch; nothing is padded.
        """
        return ((n, losses) for n, (losses, *_) in self.made(jobs))

    def made(self, jobs: Sequence[Job]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Each window's number and all that `run` makes of its places, on the CPU."""
        order = sorted(range(len(jobs)), key=lambda n: -jobs[n].length)
        while order:
            length = jobs[order[0]].length
            size = max(1, self.budget.tokens // length)
            part = [n for n in order[:size] if jobs[n].length == length]
            made = self.attempt([jobs[n] for n in part])
            if made is None:
                continue  # with a smaller budget
            order = order[len(part) :]
            first = min(jobs[n].first for n in part)
            for row, n in enumerate(part):
                yield n, tuple(one[row, jobs[n].first - first :] for one in made)

    def attempt(self, batch: list[Job]) -> tuple[Tensor, ...] | None:
        """What is made of a batch; None where it did not fit."""
        ids = torch.stack([job.ids for job in batch]).to(next(self.model.parameters()).device)
        for row, job in zip(ids, batch, strict=True):
            if job.begin is not None:
                row[0] = job.begin
        length, first = batch[0].length, min(job.first for job in batch)
        words = vocabulary(self.model) if body_of(self.model) else 0
        try:
            return self.fitting(partial(self.scored, ids, first), len(batch), length, length - first, words)
        except NotFinite as error:
            raise EvalError(told(error, batch[error.window])) from None

    def fitting(self, make: Callable[[], Made], batch: int, length: int, scored: int, words: int) -> Made | None:
        """What `make` returns; None where it did not fit, and the budget is smaller now. Raises EvalError at its end.

        batch, length, scored, words: how large the call is, as `Budget.less` takes it.
        """
        try:
            return make()
        except Exception as error:  # a model may put it into an error of its own
            if not is_of_memory(error):
                raise
        # Outside the handler: the error holds on to the memory of the call.
        less = self.budget.less(batch, length, scored, words)
        if less is None:
            whole = self.budget.piece is None or not words
            least = "" if whole else f", not even {self.budget.piece} tokens at a time"
            raise EvalError(
                f"a window of {length} tokens does not fit into memory{least}: take shorter lengths or a smaller model"
            )
        self.budget = less
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None

    def scored(self, ids: Tensor, first: int) -> tuple[Tensor, ...]:
        length = ids.shape[1] - 1
        piece = self.budget.piece if self.budget.piece and self.budget.piece < length else None
        losses, *others = self.run(ids, first, piece)
        if piece and not self.tried:
            # By halves of the pieces: a model that reads the same in both does not follow the length that is run.
            other, *_ = self.run(ids, first, piece // 2)
            if not alike(self.model, losses - other):
                raise EvalError(
                    f"a window of {length} tokens does not fit into memory whole, and piece by piece the model loses "
                    f"something else (by up to {(losses - other).abs().max():.1e} nats): take shorter lengths"
                )
            self.tried = True
        return tuple(one.cpu() for one in (losses, *others))

    def run(self, ids: Tensor, first: int, piece: int | None) -> tuple[Tensor, ...]:
        """(B, places) losses; a scorer of another kind makes more of each place, and tells it after them."""
        return (score(self.model, ids[:, :-1], ids[:, 1:], first, logits=self.budget.logits, piece=piece),)


def is_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in str(error) for sign in SIGNS)


def told(error: NotFinite, job: Job) -> str:
    token = int(job.ids[error.place + 1])
    return (
        f"{job.name}: the loss of token {job.start + error.place + 1} (id {token}) is {error.value}, at place "
        f"{error.place} of a window of {job.length} tokens: the model's logits are not finite there"
    )


ROUNDING = 1e-3
"""Nats by which a loss may differ between two fp32 forward passes that see the same."""
ROUNDING_HALF = 0.02
"""The same in half precision, on average: single losses round by more."""


def alike(model: nn.Module, apart: Tensor) -> bool:
    """Whether losses that differ by so much are the same but for rounding."""
    parameter = next(model.parameters())
    if parameter.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(parameter.device.type):
        return float(apart.abs().max()) <= ROUNDING
    return float(apart.abs().mean()) <= ROUNDING_HALF
