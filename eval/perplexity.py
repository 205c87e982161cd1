"""perplexity: token losses of one model under one or several protocols, made once, kept, and reduced to sums."""

# D documents

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from eval import EvalError
from eval.hidden import Hiding, HidingScorer
from eval.plan import Document, Forward, Plan, Record
from eval.scorer import DEFAULT, Budget, Job, Scorer
from eval.store import Store

Work = list[tuple[Document, list[Record]]]
"""Documents, and what is to be made of each."""


@dataclass(frozen=True)
class Measured:
    """The token losses of a plan, read from the store when asked for."""

    plan: Plan
    store: Store
    identity: str

    def losses(self, record: Record, document: int) -> NDArray[np.float32]:
        """(targets,) nats of one document, in the order of the protocol's windows."""
        found = self.store.get(self.plan.key(self.identity, self.plan.documents[document], record))
        if found is None:
            raise EvalError(
                f"{self.store.folder}: losses of {self.plan.documents[document].name} are missing or damaged; is "
                "another process writing there? The same command measures them again"
            )
        return found

    def sums(self, protocol: str = "equal") -> tuple[NDArray, NDArray]:
        """(D, lengths) sums and weights whose quotient is the protocol's mean; NaN where a length cannot be taken.

        Summed nats and scored tokens; where the protocol takes a mean of means, these means and how many they are.
        """
        shape = len(self.plan.documents), len(self.plan.lengths)
        sums, counts = np.full(shape, np.nan), np.zeros(shape)
        for record in self.plan.records():
            if record[0] == protocol:
                at = self.plan.lengths.index(record[1])
                for n in range(shape[0]):
                    sums[n, at], counts[n, at] = self.sum(record, n)
        return sums, counts

    def sum(self, record: Record, document: int) -> tuple[float, int]:
        losses, kind = self.losses(record, document), self.plan.protocol(record).mean
        if kind == "tokens":
            return float(losses.sum(dtype=np.float64)), len(losses)
        if kind == "documents":
            return float(losses.mean(dtype=np.float64)), 1
        sizes = [window.scored for window in self.plan.windows(record, self.plan.documents[document])]
        windows = np.split(losses, np.cumsum(sizes)[:-1])
        return float(sum(window.mean(dtype=np.float64) for window in windows)), len(windows)

    def targets(self, record: Record, document: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(targets,) which token of the document each loss is of, and how many others were seen."""
        return self.plan.targets(record, self.plan.documents[document])


def missing(plan: Plan, store: Store, identity: str, documents: Sequence[Document] | None = None) -> Work:
    """What the store does not hold yet, of those documents (default: of all) that lack anything."""
    work = [
        (one, [record for record in plan.records() if store.get(plan.key(identity, one, record)) is None])
        for one in (plan.documents if documents is None else documents)
    ]
    return [(one, records) for one, records in work if records]


def measure(
    model: nn.Module,
    plan: Plan,
    *,
    store: Store,
    identity: str,
    budget: Budget = DEFAULT,
    mine: slice = slice(None),
    meet: Callable[[], None] = lambda: None,
    advance: Callable[[int], None] = lambda tokens: None,
) -> Measured:
    """Make the token losses of a plan that are not there yet.

    store, identity: where losses are kept, and what names model, weights and scheme there: found again, not run again.
    mine, meet: this process's share of the documents, and a call that returns once every process has done its share.
    advance: told how many tokens are run, or found.
    """
    scorer = scorer_for(model, plan, budget)
    for group in groups(plan, plan.documents[mine], 4 * budget.tokens):
        work = missing(plan, store, identity, group)
        advance(sum(map(plan.tokens, group)) - sum(plan.tokens(*one) for one in work))
        if work:
            store.put(losses_of(scorer, plan, identity, work, advance))
    meet()
    store.read()
    return Measured(plan, store, identity)


def groups(plan: Plan, documents: Sequence[Document], tokens: int) -> Iterator[list[Document]]:
    """Documents that are run, and kept, together. The same whatever is there already: so are the batches, and therefore
    the last digit of every loss, after an interruption as without one."""
    group, size = [], 0
    for one in documents:
        more = plan.tokens(one)
        if group and size + more > tokens:
            yield group
            group, size = [], 0
        group.append(one)
        size += more
    if group:
        yield group


def losses_of(
    scorer: Scorer, plan: Plan, identity: str, work: Work, advance: Callable[[int], None] = lambda tokens: None
) -> dict[str, NDArray[np.float32]]:
    """What the store takes in: key -> the losses of one document in the order of the protocol's windows."""
    wanted = [(one, record) for one, records in work for record in records]
    made = {(one, record): np.full(plan.count(record, one), np.nan, np.float32) for one, record in wanted}
    runs = [(one, run) for one, records in work for run in plan.runs(one, records)]
    for n, losses in scorer.losses([job(plan, one, run) for one, run in runs]):
        one, run = runs[n]
        for piece in run.pieces:
            part = losses[piece.first - run.first : piece.stop - run.first].numpy()
            made[one, piece.record][piece.at : piece.at + len(part)] = part
        advance(run.length)
    assert not any(np.isnan(losses).any() for losses in made.values()), "a target that no window scored"
    return {plan.key(identity, one, record): losses for (one, record), losses in made.items()}


def scorer_for(model: nn.Module, plan: Plan, budget: Budget = DEFAULT) -> Scorer:
    """What makes the losses of this plan."""
    return Scorer(model, budget) if plan.mask is None else HidingScorer(model, plan.mask, budget)


def job(plan: Plan, one: Document, run: Forward) -> Job:
    if run.hidden is not None:
        return Hiding(one.ids[run.start : run.start + run.length], name=one.name, start=run.start, places=run.hidden)
    ids = one.ids[run.start : run.start + run.length + 1]
    return Job(ids, run.first, plan.bos if run.bos else None, one.name, run.start)
