"""hidden: losses of tokens that a model which reads both ways is not shown, in fp32, through the model's own head."""

# B windows · L tokens a window · N hidden tokens of them all · C width · V vocabulary

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from eval import EvalError
from eval.score import LOGITS, answering, body_of, nats, vocabulary
from eval.scorer import DEFAULT, Budget, Job, Scorer


@dataclass(frozen=True)
class Hiding(Job):
    """A window, all of whose (L,) ids are run, those at `places` hidden."""

    places: range = range(0)

    @property
    def length(self) -> int:
        return len(self.ids)


class HidingScorer(Scorer):
    """A scorer of windows with hidden tokens, of which it makes the losses, in the order of their places."""

    def __init__(self, model: nn.Module, mask: int, budget: Budget = DEFAULT):
        """mask: the token that stands for a hidden one."""
        super().__init__(model, budget)
        self.mask = mask

    def attempt(self, batch: list[Hiding]) -> tuple[Tensor, ...] | None:
        """(B, the most places) losses, NaN after a window's last; None where the batch did not fit."""
        device = next(self.model.parameters()).device
        ids = torch.stack([job.ids for job in batch]).to(device)
        sizes = [len(job.places) for job in batch]
        rows = torch.arange(len(batch)).repeat_interleave(torch.tensor(sizes)).to(device)
        places = torch.tensor([place for job in batch for place in job.places], device=device)
        make = partial(told, self.model, ids, rows, places, self.mask)
        # Without words: such a model has no cache to read a window with piece by piece.
        losses = self.fitting(make, len(batch), batch[0].length, max(sizes), 0)
        if losses is None:
            return None
        if len(wrong := (~losses.isfinite()).nonzero()):
            at = int(wrong[0])
            raise EvalError(not_finite(batch[int(rows[at])], int(places[at]), float(losses[at])))
        parts = losses.cpu().split(sizes)
        return (nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=torch.nan),)


@torch.no_grad()
def told(model: nn.Module, ids: Tensor, rows: Tensor, places: Tensor, mask: int, *, logits: int = LOGITS) -> Tensor:
    """How many nats the tokens ids[rows, places] cost a model that is shown `mask` in the place of all of them.

    model: any whose output has `.logits`, those of place p about token p.   ids: (B, L).   rows, places: (N,).
    logits: the most held at once, where the model tells its body from its head.   Returns (N,) fp32.
    Raises EvalError where the model makes no logits.
    """
    wanted = ids[rows, places]
    shown = ids.index_put((rows, places), torch.full_like(wanted, mask))
    body = body_of(model)
    if body is None:  # nothing is known of its parts
        return nats(logits_of(model(shown), model)[rows, places][None], wanted[None])[0]
    seen, losses = body(input_ids=shown), []
    count = max(1, logits // vocabulary(model))
    for hidden, targets in zip(seen.last_hidden_state[rows, places].split(count), wanted.split(count), strict=True):
        answer = type(seen)(last_hidden_state=hidden[None])
        # The model's own forward on a body that answers with these rows: whatever stands before its head included.
        with answering(body, lambda *_, answer=answer, **__: answer):
            losses.append(nats(logits_of(model(input_ids=targets[None]), model), targets[None])[0])
    return torch.cat(losses)


def logits_of(out, model: nn.Module) -> Tensor:
    logits = getattr(out, "logits", None)
    if logits is None:
        raise EvalError(f"{type(model).__name__} makes no logits: load a masked language model (AutoModelForMaskedLM)")
    return logits


def not_finite(job: Hiding, place: int, value: float) -> str:
    return (
        f"{job.name}: the loss of token {job.start + place} (id {int(job.ids[place])}), hidden at place {place} of a "
        f"window of {job.length} tokens, is {value}: the model's logits are not finite there"
    )
