"""Progress of long work: a bar with time left in a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOG_SECONDS = 15
"""Between two lines where there is no terminal."""


class Progress:
    """Counts units done of a total; `text` is whatever else is worth seeing."""

    def __init__(self, title: str, total: float, done: float, bar):
        self.title, self.total, self.done, self.bar = title, total, done, bar
        self.begun, self.first, self.spoke = time.monotonic(), done, time.monotonic()

    def advance(self, units: float, text: str = "") -> None:
        self.done += units
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done, text=text)
        elif self.done > self.first and time.monotonic() - self.spoke > LOG_SECONDS:
            self.spoke = time.monotonic()
            left = (self.spoke - self.begun) / (self.done - self.first) * (self.total - self.done)
            print(f"{self.title} {self.done / self.total:4.0%} {text} {left:.0f} s left", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: float, *, done: float = 0, show: bool = True) -> Iterator[Progress]:
    """show: False for processes that only help. done: units that an earlier process has done already."""
    if not show:
        yield Progress(title, total, done, _Silent())
    elif not sys.stderr.isatty():
        yield Progress(title, total, done, None)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}")
        with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            bar.add_task(title, total=total, completed=done, text="")
            yield Progress(title, total, done, bar)


def quiet() -> None:
    """Turn off other libraries' bars for saving and loading, and warnings of what is meant: that weights are tied, that
    a text grows past the training length."""
    import logging

    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    for name in ("accelerate.utils.other", "transformers.generation.stopping_criteria"):
        logging.getLogger(name).setLevel(logging.ERROR)


class _Silent:
    task_ids = [0]

    def update(self, *_, **__) -> None:
        pass
