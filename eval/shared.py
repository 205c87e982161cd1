"""shared: whether a shorter window may be read off a longer one, found out by trying."""

import torch
from torch import Tensor, nn

from eval.plan import Document, Plan
from eval.scorer import DEFAULT, Budget, Job, Scorer, alike


def may_share(model: nn.Module, plan: Plan, budget: Budget = DEFAULT) -> tuple[bool, str]:
    """Whether a shorter window may be read off a longer one, tried on one document, and why."""
    if len(list(plan.records())) < 2:
        return False, "there is one length, and nothing to share"
    document = max(plan.documents, key=lambda one: len(one.ids))
    apart = differences(model, document, plan.reachable, budget)
    largest = float(apart.abs().max())
    if not alike(model, apart):
        return False, (
            f"each length is run by itself: on {document.name}, later tokens change earlier losses by up to "
            f"{largest:.1e} nats"
        )
    return True, f"short windows are read off long ones: on {document.name} they differ by {largest:.0e} nats at most"


def prefix_consistent(model: nn.Module, ids: Tensor, lengths: list[int], budget: Budget = DEFAULT) -> bool:
    """Whether what the model makes of a token depends on nothing after it, tried on (L,) ids at these lengths."""
    return alike(model, differences(model, Document("a haystack", ids), lengths, budget))


def differences(model: nn.Module, document: Document, lengths: list[int], budget: Budget = DEFAULT) -> Tensor:
    """What later tokens do to the losses before them, in nats: of the shortest window, and of one half as long as the
    longest, each minus the longest one's."""
    scorer, longest = Scorer(model, budget), max(lengths)
    shorter = [losses(scorer, document, n) for n in sorted({min(lengths), longest // 2} - {longest})]
    whole = losses(scorer, document, longest)  # last: a model that remembers its longest input would look alike
    return torch.cat([one - whole[: len(one)] for one in shorter])


def losses(scorer: Scorer, document: Document, length: int) -> Tensor:
    """(≤ length,) losses of the first window of a document."""
    return next(scorer.losses([Job(document.ids[: length + 1], name=document.name)]))[1]
