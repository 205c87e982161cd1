"""Tracking: JSON lines are the truth, wandb or TensorBoard mirrors them, through accelerate's trackers."""

import os
import secrets
import sys
from functools import cache
from pathlib import Path
from typing import Any

from lab import LabError
from lab.rows import Row
from lab.settings import Training


class Track:
    """One run as the tracker shows it, opened when there is something to show; with `track: none` nothing ever is.

    group: the comparison that the run belongs to.   scheme: an encoding swapped into the run, with its own curves.
    facts: what to record beside the settings.
    """

    def __init__(
        self, run: Training, accelerator, *, group: str | None = None, scheme: str = "", facts: dict | None = None
    ):
        self.run, self.accelerator, self.group, self.scheme = run, accelerator, group, scheme
        self.facts = facts or {}
        self.opened = False

    def open(self) -> bool:
        """Whether there is a tracker to talk to."""
        if self.run.track == "none":
            return False
        if not self.opened:
            self.opened = True
            self.run.path.mkdir(parents=True, exist_ok=True)
            options = wandb_options(self.run, self.group, self.scheme) if self.run.track == "wandb" else {}
            # wandb takes this name as the project, TensorBoard as the folder of the curves.
            name = self.run.project if self.run.track == "wandb" else self.scheme or "curves"
            settings = self.run.model_dump(mode="json")
            values = flat({**settings, "scheme": self.scheme or self.run.encoding, **self.facts})
            self.accelerator.init_trackers(name, config=values, init_kwargs={self.run.track: options})
            if wandb := self.wandb:
                wandb.define_metric("train/*", step_metric="train/step")
                wandb.define_metric("eval/*", step_metric="eval/length")
        return True

    @property
    def wandb(self):
        """wandb's own run object, where there is one."""
        if not self.opened or self.run.track != "wandb" or not self.accelerator.is_main_process:
            return None
        return self.accelerator.get_tracker("wandb", unwrap=True)

    def train(self, step: int, metrics: dict[str, float]) -> None:
        if self.open():
            values = {f"train/{name}": value for name, value in metrics.items()}
            self.accelerator.log({**values, "train/step": step}, step=None if self.run.track == "wandb" else step)

    def rows(self, rows: list[Row]) -> None:
        """Measured rows as curves over context length and, in wandb, as a table."""
        if not rows or not self.open():
            return
        for row in rows:
            if row.value is not None:
                values = {f"eval/{row.probe}/{row.metric}": row.value, "eval/length": row.length}
                self.accelerator.log(values, step=None if self.run.track == "wandb" else row.length)
        self.table(rows)

    def table(self, rows: list[Row]) -> None:
        if self.open() and (run := self.wandb):
            import wandb

            columns = list(Row.__dataclass_fields__)
            run.log({"rows": wandb.Table(columns=columns, data=[[getattr(row, c) for c in columns] for row in rows])})

    def figure(self, path: Path) -> None:
        if self.open() and (run := self.wandb):
            import wandb

            run.log({path.stem: wandb.Image(str(path))})

    def close(self) -> None:
        if self.opened:
            for tracker in self.accelerator.trackers:
                tracker.finish()
            self.accelerator.trackers, self.opened = [], False


def publish(
    rows: list[Row], run: Training, accelerator, *, group: str | None = None, track: Track | None = None
) -> None:
    """Show a run's rows: its own under itself, those of each encoding swapped in as curves of their own beside it.

    track: the run's, if it is open already; it is closed.
    """
    track = track or Track(run, accelerator, group=group)
    track.rows([row for row in rows if row.scheme == row.trained_as])
    track.close()
    for scheme in dict.fromkeys(row.scheme for row in rows if row.scheme != row.trained_as):
        swapped = Track(run, accelerator, group=group, scheme=scheme)
        swapped.rows([row for row in rows if row.scheme == scheme])
        swapped.close()


def wandb_options(run: Training, group: str | None, scheme: str) -> dict[str, Any]:
    """How wandb opens this run: under one id for good, offline where it would otherwise ask for an account."""
    import wandb

    offline = os.environ.get("WANDB_MODE") == "offline"
    if "WANDB_MODE" not in os.environ and not logged_in(wandb.setup().settings):
        offline = True
        say_offline(run.folder)
    return {
        "id": lasting_id(run.path / f"wandb-id{scheme and '-' + scheme}"),
        "resume": "allow",
        "name": f"{run.name} {scheme}".strip(),
        "group": group,
        "dir": str(run.path),
        "mode": "offline" if offline else None,
        "settings": wandb.Settings(console="off", silent=offline),
    }


def lasting_id(path: Path) -> str:
    if not path.exists():
        path.write_text(secrets.token_hex(4))
    return path.read_text().strip()


def logged_in(settings) -> bool:
    """Whether wandb would find a key by itself: in the environment, or where `wandb login` puts it."""
    import netrc
    from urllib.parse import urlparse

    if settings.api_key or settings.identity_token_file:
        return True
    try:
        return netrc.netrc().authenticators(urlparse(settings.base_url).netloc) is not None
    except (OSError, netrc.NetrcParseError):
        return False


@cache
def say_offline(folder: str) -> None:
    """Cached: once for all runs of a folder."""
    print(
        f"wandb: not logged in, runs are kept offline; `wandb sync {folder}/*/wandb/offline-run-*` uploads",
        file=sys.stderr,
    )


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, as trackers want them; what is no plain value becomes text."""
    result = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value if isinstance(value, int | float | str | bool | None) else str(value)
    return result


def log_with(run: Training) -> str | None:
    """What accelerate is to log with. Raises LabError where that package is missing."""
    if run.track == "none":
        return None
    from accelerate.tracking import is_tensorboard_available, is_wandb_available

    available = {"wandb": is_wandb_available, "tensorboard": is_tensorboard_available}[run.track]
    if not available():
        raise LabError(f"track: {run.track} needs its package: pip install {run.track}, or write track: none")
    return run.track
