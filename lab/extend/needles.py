"""Needles by where they lie: what their answers cost at the length to reach, beside the model where it was trained."""

from collections.abc import Sequence

from lab.rows import Row

AT = "answer nats at depth "


def by_depth(rows: Sequence[Row], train_length: int, to: int) -> str:
    """A table in Markdown, empty where no needle was asked for: a line a method, a column a depth, nats a token.

    Few needles find few exact answers and tell little; what the right ones cost shows which a method has read at all.
    """
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        if row.metric.startswith(AT):
            found.setdefault((row.scheme, row.length), {})[row.metric.removeprefix(AT)] = row
    raw = next(iter(found), (None, 0))[0]
    shown = [key for key in found if key == (raw, train_length) or key[1] == to]
    if not shown:
        return ""
    depths = sorted({depth for key in shown for depth in found[key]}, key=float)
    header = ["answers to needles, nats per token, by depth", *depths]
    body = [
        [f"{name} at {length}", *(f"{found[name, length][depth].value:.3f}" for depth in depths)]
        for name, length in shown
    ]
    lines = ["| " + " | ".join(line) + " |" for line in [header, ["---", *("---:" for _ in depths)], *body]]
    count = found[shown[0]][depths[0]].count
    note = f"{count} needles a depth: 0 is the beginning of the text, 1 its end. A guessed digit costs ln 10 = 2.303."
    return "\n".join([*lines, "", note]) + "\n"
