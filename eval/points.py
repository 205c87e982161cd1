"""Points: every number of a measurement, with its 95 % interval, as a reduction over token losses that are there."""

# D documents · L lengths

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.context import by_key_tokens, copyable
from eval.lengths import Reach
from eval.perplexity import Measured
from eval.plan import Plan
from eval.stats import Curve, bits_per_byte, curve, paired

SEEN = ", by the means alone"
"""How the metric of a reach ends that no interval vouches for."""


@dataclass(frozen=True)
class Point:
    """One number: a mean over `count` tokens, or bytes; `value` is None where the model cannot take this length."""

    probe: str
    metric: str
    length: int  # tokens of context; for position, the end of the octave [length/2, length)
    value: float | None
    low: float | None  # the 95 % interval over documents; None where there is none
    high: float | None
    count: int
    note: str = ""


def points(measured: Measured) -> Iterator[Point]:
    """All of them, probe by probe."""
    plan = measured.plan
    for protocol in plan.protocols:
        if protocol.name == "position":
            yield from by_position(measured)
            continue
        sums, counts = measured.sums(protocol.name)
        yield from of_curve(
            probe_of(protocol.name), "nats", plan, curve(sums, counts), scored_tokens(plan, protocol.name)
        )
        if protocol.name == "equal":
            if (sizes := scored_bytes(plan)) is not None:
                sizes = np.broadcast_to(sizes[:, None], sums.shape)
                yield from of_curve("perplexity", "bits per byte", plan, bits_per_byte(sums, sizes), sizes.sum(0))
            yield from context_use(measured, sums, counts)


def probe_of(protocol: str) -> str:
    """What the numbers of a protocol go by."""
    return "perplexity" if protocol == "equal" else protocol


def of_curve(probe: str, metric: str, plan: Plan, made: Curve, counts: NDArray) -> Iterator[Point]:
    for at, length in enumerate(plan.lengths):
        if length in plan.reachable:
            yield point(probe, metric, length, made, at, counts[at])
        else:
            yield Point(probe, metric, length, None, None, None, 0, f"takes at most {plan.limit} tokens")


def point(probe: str, metric: str, length: int, made: Curve, at: int, count: float) -> Point:
    low, high = (None if np.isnan(end[at]) else float(end[at]) for end in (made.low, made.high))
    return Point(probe, metric, length, float(made.value[at]), low, high, int(count))


def of_reach(name: str, made: Reach, longest: int, count: float) -> Iterator[Point]:
    """How far a rule says that a model reads, of lengths up to `longest`: as shown, and by the means alone."""
    yield Point("reach", name, longest, made.shown, made.low, made.high, int(count))
    yield Point("reach", f"{name}{SEEN}", longest, made.seen, made.low, made.high, int(count))


def scored_tokens(plan: Plan, protocol: str) -> NDArray[np.int64]:
    """(L,) how many tokens are scored at each length, over all documents; more than once where windows overlap."""
    counts = np.zeros(len(plan.lengths), np.int64)
    for record in plan.records():
        if record[0] == protocol:
            counts[plan.lengths.index(record[1])] = sum(plan.count(record, one) for one in plan.documents)
    return counts


def scored_bytes(plan: Plan) -> NDArray[np.int64] | None:
    """(D,) bytes of the tokens that `equal` scores, the same at every length; None where they are not known."""
    if any(one.bytes is None for one in plan.documents):
        return None
    targets = [plan.targets(("equal", plan.longest), one)[0] for one in plan.documents]
    return np.array([one.bytes[at].sum(dtype=np.int64) for one, at in zip(plan.documents, targets, strict=True)])


def context_use(measured: Measured, sums: NDArray, counts: NDArray) -> Iterator[Point]:
    """What doubling the context gains: on all scored tokens, and on those that could be copied from the new half."""
    plan = measured.plan
    for length in plan.reachable:
        if length // 2 not in plan.reachable:
            continue
        here, half = plan.lengths.index(length), plan.lengths.index(length // 2)
        made = paired(sums[:, [half]], sums[:, [here]], counts[:, [here]])
        yield point("gain", "nats", length, made, 0, counts[:, here].sum())
    for length, (here, half, count) in copyable(measured).items():
        if not count.sum():
            yield Point("copyable", "nats", length, None, None, None, 0, "no scored token could be copied from so far")
            continue
        yield point("copyable", "nats", length, curve(here[:, None], count[:, None]), 0, count.sum())
        yield point("copyable", "gain", length, paired(half[:, None], here[:, None], count[:, None]), 0, count.sum())


def on_key_tokens(measured: Measured, reference: Measured) -> Iterator[Point]:
    """The mean loss at each length on the tokens that a long context helps the reference with."""
    sums, counts = by_key_tokens(measured, reference)
    if counts.sum(0).all():
        made = curve(np.where(np.isnan(sums).any(0), np.nan, sums), counts)
        yield from of_curve("key tokens", "nats", measured.plan, made, counts.sum(0))
    else:
        for length in measured.plan.lengths:
            yield Point("key tokens", "nats", length, None, None, None, 0, "the reference has no key token here")


def by_position(measured: Measured) -> Iterator[Point]:
    """The mean loss of each octave of places in one long window, from the start of the document."""
    plan, longest = measured.plan, measured.plan.reachable[-1:]
    if longest:
        losses = [measured.losses(("position", longest[0]), n) for n in range(len(plan.documents))]
        ends = [1]
        while ends[-1] < longest[0]:
            ends.append(2 * ends[-1])
        bounds = list(zip([0, *ends[:-1]], ends, strict=True))
        sums = np.array([[one[a:z].sum(dtype=np.float64) for a, z in bounds] for one in losses])
        counts = np.array([[len(one[a:z]) for a, z in bounds] for one in losses])
        made = curve(sums, counts)
        yield from (point("position", "nats", end, made, at, counts[:, at].sum()) for at, end in enumerate(ends))
    end = 2 * ends[-1] if longest else 2
    while longest != [plan.longest] and end < 2 * plan.longest:
        yield Point("position", "nats", end, None, None, None, 0, f"takes at most {plan.limit} tokens")
        end *= 2
