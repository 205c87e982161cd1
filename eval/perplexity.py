"""Perplexity on equal tokens: the mean loss at each length over the same targets, and the loss by position."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eval.plan import Window, equal_token
from eval.score import score
from eval.store import Store


@dataclass(frozen=True)
class Point:
    """One number: `value` is the mean in nats over `count` tokens, None where the model cannot take this length."""

    probe: str  # perplexity: the targets common to all lengths; position: by place in one run of the longest length
    length: int  # tokens of context; for position, the end of the octave [length/2, length)
    value: float | None
    count: int
    note: str = ""


def measure(
    model: nn.Module,
    documents: Sequence[tuple[str, Tensor]],
    lengths: Sequence[int],
    *,
    store: Store,
    identity: str,
    limit: int | None = None,
    batch_tokens: int = 16384,
    mine: slice = slice(None),
    meet: Callable[[], None] = lambda: None,
    advance: Callable[[int], None] = lambda tokens: None,
) -> Iterator[Point]:
    """The points of one model, each as soon as it is known, shortest length first.

    documents: (name, ids) with at least max(lengths) + 1 ids each.   lengths: even, in tokens.
    store, identity: where losses are kept, and what names model, weights and scheme there: found again, not run again.
    limit: the longest input that the model takes; beyond it a point has no value.   batch_tokens: tokens a forward.
    mine, meet: this process's share of the documents, and a call that returns once every process has done its share.
    advance: told how many tokens were run.
    """
    longest = max(lengths)
    reachable = [length for length in sorted(lengths) if limit is None or length <= limit]
    for length in sorted(lengths):
        if length not in reachable:
            yield Point("perplexity", length, None, 0, f"takes at most {limit} tokens")
            continue
        whole = length == reachable[-1]
        keys = [key_of(identity, ids, length, longest, whole) for _, ids in documents]
        todo = [n for n in range(len(documents))[mine] if store.get(keys[n]) is None]
        group = max(1, batch_tokens // longest)
        for start in range(0, len(todo), group):
            part = todo[start : start + group]
            sums = scored(model, [documents[n][1] for n in part], length, longest, batch_tokens, whole)
            store.put({keys[n]: {"document": documents[n][0], **sums[at]} for at, n in enumerate(part)})
            advance(longest * len(part))
        meet()
        store.read()
        found = [store.get(key) for key in keys]
        yield mean("perplexity", length, [(one["total"], one["count"]) for one in found])
        if whole:
            yield from by_position([one["octaves"] for one in found], longest, limit)


def scored(
    model: nn.Module, documents: list[Tensor], length: int, longest: int, batch_tokens: int, whole: bool
) -> list[dict]:
    """Sums of losses of each document at one length. whole: also by octave of position, in a window at its start.

    The sums are made in float64, on the CPU: an order of addition that no batch size and no device changes.
    """
    jobs = [(n, window) for n in range(len(documents)) for window in equal_token(length, longest)]
    device = next(model.parameters()).device
    sums = [{"total": 0.0, "count": 0} for _ in documents]
    size = max(1, batch_tokens // length)
    for start in range(0, len(jobs), size):
        part = jobs[start : start + size]
        first = 0 if whole and length == longest else min(window.first for _, window in part)
        losses = run(model, [(documents[n], window) for n, window in part], first, device)
        for (n, window), row in zip(part, losses, strict=True):
            target = row[window.first - first :]
            sums[n]["total"] += float(target.sum())
            sums[n]["count"] += len(target)
            if whole and length == longest:
                sums[n]["octaves"] = octaves(row)
    if whole and length < longest:  # the windows above do not start where the document starts
        for n, ids in enumerate(documents):
            sums[n]["octaves"] = octaves(run(model, [(ids, Window(0, length, 0))], 0, device)[0])
    return sums


def run(model: nn.Module, jobs: list[tuple[Tensor, Window]], first: int, device) -> Tensor:
    """(windows, length - first) float64 losses."""
    ids = torch.stack([ids[w.start : w.start + w.length + 1] for ids, w in jobs]).to(device)
    return score(model, ids[:, :-1], ids[:, 1:], first).double().cpu()


def octaves(losses: Tensor) -> dict[str, list]:
    """Sum and count of (L,) losses by octave of place: `2^k` holds the places [2^(k-1), 2^k), `1` the first place."""
    ends = [1]
    while ends[-1] < len(losses):
        ends.append(2 * ends[-1])
    starts = [0, *ends[:-1]]
    return {str(z): [float(losses[a:z].sum()), len(losses[a:z])] for a, z in zip(starts, ends, strict=True)}


def by_position(documents: list[dict[str, list]], longest: int, limit: int | None) -> Iterator[Point]:
    for end in documents[0]:
        yield mean("position", int(end), [tuple(one[end]) for one in documents])
    end = 2 * int(max(documents[0], key=int))
    while end < 2 * longest:
        yield Point("position", end, None, 0, f"takes at most {limit} tokens")
        end *= 2


def mean(probe: str, length: int, parts: list[tuple[float, int]]) -> Point:
    total, count = sum(t for t, _ in parts), sum(c for _, c in parts)
    return Point(probe, length, total / count, count)


def key_of(identity: str, ids: Tensor, length: int, longest: int, whole: bool) -> str:
    """Everything that a document's sums depend on."""
    content = hashlib.sha256(ids[: longest + 1].numpy().tobytes()).hexdigest()
    return hashlib.sha256(json.dumps([identity, content, length, longest, whole]).encode()).hexdigest()[:32]
