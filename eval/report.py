"""report: what a plan says before it runs, in words."""

from collections.abc import Iterable, Sequence

from eval.cost import Cost
from eval.entries import Asked
from eval.lengths import ruler
from eval.plan import Forward, Plan
from eval.points import SEEN, Point

READS_ON = ["reads on to, in tokens", "shown", "by the means", "95 % interval"]
MEANINGS = {
    "L_ppl": "the longest length at which a token costs at most so many nats more than at the training length",
    "L_gain": "the longest length at which a token costs less than at half of it",
    "L_ret": "the longest length whose share of exact answers is at least so many times that at the training length",
}
"""Of the rules by which a length is read."""


def described(plan: Plan, cost: Cost, seconds: float, why: str) -> str:
    """A few lines. why: whether shorter windows are read off longer ones, and the reason."""
    names = ", ".join(protocol.name for protocol in plan.protocols)
    beyond = [length for length in plan.lengths if length not in plan.reachable]
    lines = [
        f"{names} at {', '.join(map(str, plan.reachable))} tokens on {len(plan.documents)} documents",
        f"{cost.forwards} forward passes, {cost.tokens:,} tokens run, {cost.scored:,} scored, {cost.flops:.1e} FLOPs, "
        f"about {duration(seconds)}, {cost.bytes / 2**20:,.0f} MiB beside the weights (estimates)",
        why,
    ]
    if not cost.forwards:
        lines[1:] = ["nothing is left to run"]
    if beyond:
        lines.append(f"not at {', '.join(map(str, beyond))}: the model takes at most {plan.limit} tokens")
    return "\n".join(lines)


def asking(tasks: Sequence[Asked], lengths: Sequence[int], runs: Sequence[Forward]) -> str:
    """What is asked, and the forward passes that are still to come of it."""
    said = ", ".join(f"{one.count} × {one.name}" for one in tasks) + f" at {', '.join(map(str, lengths))} tokens"
    if not runs:
        return f"{said}: all is answered"
    return f"{said}: {len(runs)} forward passes, {sum(run.length for run in runs):,} tokens run"


def duration(seconds: float) -> str:
    if seconds < 1:
        return "1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tables(found: list[Point]) -> str:
    """Every number with its interval: by context length, a line a probe and metric; by place; answers; how far."""
    answers = [point for point in found if point.metric.startswith("exact")]
    by_place = [point for point in found if point.probe == "position"]
    others = [point for point in found if point.probe not in ("position", "reach") and "nats at" not in point.metric]
    parts = [table([point for point in others if point not in answers], "tokens of context")]
    if by_place:
        parts.append(table(by_place, "places up to"))
    parts.append("± is a 95 % interval over documents.")
    if answers:
        parts += ["", table(answers, "share of exact answers"), "± is a 95 % interval over samples."]
    reasons = dict.fromkeys(f"– {point.note}" for point in found if point.note)
    return "\n".join([*parts, *reasons, *reaches(found)])


def reaches(found: list[Point]) -> list[str]:
    """How far the model reads, by each rule."""
    by_rule = {point.metric: point for point in found if point.probe == "reach"}
    rules = [rule for rule in by_rule if not rule.endswith(SEEN)]
    if not rules:
        return []
    body = [
        [rule, f"{one.value:g}", f"{by_rule[rule + SEEN].value:g}", between(one.low, one.high)]
        for rule, one in by_rule.items()
        if rule in rules
    ]
    return ["", aligned([READS_ON, *body]), "", *meanings(rules)]


def meanings(rules: Iterable[str]) -> list[str]:
    """What the rules say, each once, and what the columns do."""
    chosen = dict.fromkeys(rule.partition("(")[0] for rule in rules if not rule.endswith(SEEN))
    told = "shown: with the bound of its interval, as all shorter ones do; 0: not even the shortest measured."
    return [*(f"{rule}: {MEANINGS[rule]}." for rule in chosen), told]


def between(low: float | None, high: float | None) -> str:
    return "–" if low is None else f"{low:g}–{high:g}"


def by_ruler(found: list[Point], tasks: Sequence[Asked]) -> str | None:
    """RULER's rule on the mean of these tasks; None where fewer than two can be read well."""
    names = [one.name for one in tasks if not one.control]
    shares: dict[int, list[float]] = {}
    for point in found:
        if point.probe in names and point.metric == "exact" and point.value is not None:
            shares.setdefault(point.length, []).append(point.value)
    if len(names) < 2:
        return None
    longest = ruler({length: sum(some) / len(some) for length, some in shares.items() if len(some) == len(names)})
    return (
        f"RULER's rule, the longest length whose mean accuracy is above 85.6 %: {longest or 'none'}. "
        f"That threshold is of RULER's 13 tasks; this is a mean of others ({', '.join(names)})."
    )


def table(found: list[Point], over: str) -> str:
    """A column a length."""
    lines: dict[tuple[str, str], dict[int, Point]] = {}
    for point in found:
        lines.setdefault((point.probe, point.metric), {})[point.length] = point
    columns = sorted({point.length for point in found})
    header = [over, *map(str, columns)]
    body = [[f"{probe} ({metric})", *(cell(line.get(n)) for n in columns)] for (probe, metric), line in lines.items()]
    return aligned([header, *body]) + "\n"


def aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


def cell(point: Point | None) -> str:
    if point is None:
        return ""
    if point.value is None:
        return "–"
    reach = "" if point.low is None else f" ±{max(point.value - point.low, point.high - point.value):.3f}"
    return f"{point.value:.3f}{reach}"
