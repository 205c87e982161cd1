"""Documents of packed rows, each taken out as a row of its own, and put back where its tokens were."""

# B batch · Q new tokens · T all tokens, those in a cache first · N documents · L tokens of the longest

from dataclasses import dataclass

import torch
from torch import Tensor

from lab import LabError
from positional import Positions

PADDING = -1
"""The segment of padding, which no token sees; see `lab.places`."""


@dataclass(frozen=True)
class Documents:
    """The new tokens of each segment of each row, in order: a document, or what has come of one by now."""

    order: Tensor  # (B·Q,) the tokens, document by document, as places in the flattened batch
    places: Tensor  # (N, L) the same, a row a document; what is beyond its end is any token
    real: Tensor  # (N, L) False beyond the end
    lengths: Tensor  # (N,)
    rows: Tensor  # (N,) the row of the batch that it is in
    goes_on: Tensor  # (N,) whether it began in the cache
    last: Tensor  # (N,) whether its row, padding aside, ends in it

    @classmethod
    def of(cls, pos: Positions, batch: int) -> "Documents":
        """Of positions with segments. Raises LabError for a document that goes on after another one of its row."""
        segments, queries = pos.segments.expand(batch, -1), pos.queries
        earlier, new = segments[:, : segments.shape[1] - queries], segments[:, segments.shape[1] - queries :]
        order = new.argsort(dim=-1, stable=True)
        sorted_ = new.gather(1, order)  # (B, Q)
        begins = torch.ones_like(sorted_, dtype=torch.bool)
        begins[:, 1:] = sorted_[:, 1:] != sorted_[:, :-1]
        starts = begins.flatten().nonzero()[:, 0]  # (N,)
        lengths = torch.diff(starts, append=starts.new_tensor([new.numel()]))
        rows, numbers = starts // queries, sorted_.flatten()[starts]
        order = (order + queries * torch.arange(batch, device=order.device)[:, None]).flatten()
        within = torch.arange(int(lengths.max()), device=order.device)[None]
        places = order[(starts[:, None] + within).clamp(max=new.numel() - 1)]
        goes_on = (numbers == ends_in(earlier)[rows]) & (numbers != PADDING)
        refuse_return(earlier[rows], numbers, goes_on)
        last = (numbers == ends_in(segments)[rows]) & (numbers != PADDING)
        return cls(order, places, within < lengths[:, None], lengths, rows, goes_on, last)

    def split(self, x: Tensor) -> Tensor:
        """(B, Q, C) -> (N, L, C)."""
        return x.flatten(0, 1)[self.places]

    def joined(self, y: Tensor) -> Tensor:
        """(N, L, C) -> (B, Q, C)."""
        return y[self.real][self.order.argsort()].view(int(self.rows.max()) + 1, -1, y.shape[-1])

    def begun(self, before: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, S, H) states of the rows -> (N, S, H): zero for those that begin here."""
        return tuple(x[self.rows] * self.goes_on[:, None, None] for x in before)

    def ended(self, after: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(N, S, H) -> (B, S, H): of the document that each row ends in; of a row of padding alone, what it was."""
        rows = self.rows[self.last]
        return tuple(
            old.to(new.dtype).index_copy(0, rows, new[self.last]) for new, old in zip(after, before, strict=True)
        )


def ends_in(segments: Tensor) -> Tensor:
    """(B, T) -> (B,): the segment of each row's last token that is no padding; `PADDING` where there is none."""
    if not segments.shape[1]:
        return segments.new_full((len(segments),), PADDING)
    places = torch.arange(segments.shape[1], device=segments.device)
    last = torch.where(segments != PADDING, places, -1).amax(-1)
    return torch.where(last < 0, PADDING, segments.gather(1, last.clamp(min=0)[:, None])[:, 0])


def refuse_return(earlier: Tensor, numbers: Tensor, goes_on: Tensor) -> None:
    """A state is kept of the last document alone."""
    back = (earlier == numbers[:, None]).any(-1) & ~goes_on & (numbers != PADDING)
    if bool(back.any()):
        raise LabError(
            f"segment {int(numbers[back][0])} goes on after another one of its row, and a layer that carries a state "
            "has kept only that of the last: read a document to its end, or pass all tokens at once without a cache"
        )
