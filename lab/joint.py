"""A comparison as a whole: intervals over seeds and documents, paired differences, how far context reaches."""

# S seeds · D documents · L lengths

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from eval.asked import retention
from eval.lengths import l_gain, l_ppl
from eval.points import Point, of_curve, of_reach, scored_tokens
from eval.stats import cautions, curve, paired, verdict
from lab.outcome import Outcome
from lab.rows import Row
from lab.table import label

Lines = dict[tuple[str, str], list[Outcome]]
"""(trained_as, scheme) -> what came of it with each seed, where the same tokens were scored at every length."""


def lines_of(outcomes: list[Outcome]) -> Lines:
    return {key: line for key, line in by_name(outcomes).items() if all(comparable(one) for one in line)}


def by_name(outcomes: list[Outcome]) -> Lines:
    found: Lines = {}
    for outcome in outcomes:
        found.setdefault((outcome.trained_as, outcome.scheme), []).append(outcome)
    return found


def comparable(one: Outcome) -> bool:
    return one.measured is not None and one.measured.plan.has("equal") and bool(one.measured.plan.reachable)


def stacked(line: list[Outcome]) -> tuple[NDArray, NDArray]:
    """(S, D, L) sums and counts of the equal-token protocol."""
    sums, counts = zip(*(one.measured.sums("equal") for one in line), strict=True)
    return np.stack(sums), np.stack(counts)


def joint_rows(name: str, lines: Lines) -> Iterator[Row]:
    """Where there are several seeds, a row over all of them: documents and seeds are drawn anew for its interval."""
    for (trained_as, scheme), line in lines.items():
        if len(line) < 2:
            continue
        blank = Row(name, scheme, trained_as, None, "perplexity", "nats", 0, None, 0)
        made, plan = curve(*stacked(line)), line[0].measured.plan
        for point in of_curve("perplexity", "nats", plan, made, len(line) * scored_tokens(plan, "equal")):
            yield replace(blank, **vars(point))


def reach_rows(name: str, outcomes: list[Outcome], train_length: int, eps: float = 0.02) -> Iterator[Row]:
    """How far each reads: the longest length at which a token costs at most `eps` nats more than at the train length,
    the longest at which it costs less than at half of it, and the longest at which answers hold."""
    for (trained_as, scheme), line in by_name(outcomes).items():
        blank = Row(name, scheme, trained_as, line[0].seed if len(line) == 1 else None, "reach", "", 0, None, 0)
        found = [*by_losses(line, train_length, eps), *by_answers(line, train_length)]
        yield from (replace(blank, **vars(point)) for point in found)


def by_losses(line: list[Outcome], train_length: int, eps: float) -> Iterator[Point]:
    if not all(comparable(one) for one in line):
        return
    sums, counts = stacked(line)
    plan = line[0].measured.plan
    lengths, count = plan.lengths, counts.sum((0, 1)).max()
    if train_length in plan.reachable:
        made = l_ppl(sums, counts, lengths, train_length, eps)
        yield from of_reach(f"L_ppl({eps:g})", made, plan.longest, count)
    if any(length // 2 in lengths for length in lengths):
        yield from of_reach("L_gain", l_gain(sums, counts, lengths), plan.longest, count)


def by_answers(line: list[Outcome], train_length: int) -> Iterator[Point]:
    """Seeds are asked the same: their answers to one sample are drawn together. Seeds themselves are not drawn anew."""
    for answers in zip(*(one.answers.hits for one in line), strict=True):
        [asked, *_], hits = zip(*answers, strict=True)
        yield from retention(asked, hits, train_length)


def verdicts(lines: Lines) -> list[str]:
    """A sentence for each length: which encoding loses least, and which cannot be told from it on these tokens.

    By paired differences on the same tokens; an encoding is only said to be worse where the interval excludes zero.
    """
    if len(lines) < 2:
        return []
    named = {label(*key): stacked(line) for key, line in lines.items()}
    plan = next(iter(lines.values()))[0].measured.plan
    said = []
    for at, length in enumerate(plan.lengths):
        here = {
            name: (sums[..., [at]], counts[..., [at]])
            for name, (sums, counts) in named.items()
            if not np.isnan(sums[..., at]).any()
        }
        if len(here) < 2:
            continue
        best = min(here, key=lambda name: here[name][0].sum() / here[name][1].sum())
        alike = [name for name in here if name != best and undecided(here[best], here[name])]
        rest = f"not told apart from it: {', '.join(alike)}" if alike else "the others all lose more"
        said.append(f"{length} tokens: {best} loses least; {rest}.")
    return said


def undecided(a: tuple[NDArray, NDArray], b: tuple[NDArray, NDArray]) -> bool:
    made = paired(a[0], b[0], a[1])
    return verdict(float(made.low[0]), float(made.high[0])) == "undecided"


def notes(lines: Lines) -> list[str]:
    """What a reader has to be told of intervals from so little."""
    if not lines:
        return []
    line = next(iter(lines.values()))
    return cautions(len(line[0].measured.plan.documents), len(line))
