"""Outcome: what came of one scheme of a run, as rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from eval.perplexity import Measured
from eval.points import points, probe_of
from lab.rows import Row
from lab.settings import Run, tokens
from lab.tasks import Answers


@dataclass(frozen=True)
class Outcome:
    """What came of one scheme: its token losses, or the reason why there are none."""

    scheme: str
    trained_as: str
    seed: int
    measured: Measured | None
    note: str = ""
    answers: Answers = Answers()  # to tasks with known answers

    def rows(self, run: Run) -> Iterator[Row]:
        blank = blank_row(run, self.scheme, self.trained_as, self.note)
        if self.measured is not None:
            yield from (replace(blank, **vars(point)) for point in points(self.measured))
        elif run.data.source != "algorithmic":
            for probe in dict.fromkeys(probe_of(name) for name in run.eval.protocols if name != "position"):
                yield from (replace(blank, probe=probe, length=length) for length in lengths_of(run))
        yield from self.answers.rows


def blank_row(run: Run, scheme: str, trained_as: str, note: str = "") -> Row:
    return Row(run.name, scheme, trained_as, run.seed, "perplexity", "nats", 0, None, 0, note)


def lengths_of(run: Run) -> list[int]:
    return sorted({tokens(length, run.train.length) for length in run.eval.lengths})
