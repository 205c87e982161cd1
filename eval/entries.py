"""entries: the tasks that a model is asked, each under a name that its rows have to themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eval import EvalError
from eval.tasks import with_defaults

CONTROLS = "passkey-no-needle", "niah-no-needle", "niah-wrong-key"
"""Tasks that a model which reads well does badly: how far they reach says nothing."""
DEPTHS = 11


@dataclass(frozen=True)
class Asked:
    """A task, and how often it is asked at each length; `grid` is needles at so many depths."""

    task: str
    count: int = 100  # samples; of a grid, haystacks
    depths: int = DEPTHS
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""  # what its rows go by; "": the task

    def __post_init__(self):
        object.__setattr__(self, "name", self.name or self.task)

    @property
    def deep(self) -> list[float]:
        """The depths of a grid, from the beginning of the haystack to its end."""
        return np.linspace(0, 1, self.depths).tolist()

    @property
    def control(self) -> bool:
        return self.task in CONTROLS

    @property
    def unusual(self) -> dict[str, Any]:
        """Its options that are not what they are by default. Raises EvalError for those that there are not."""
        if self.task == "grid":
            return {} if self.depths == DEPTHS else {"depths": self.depths}
        usual = with_defaults(self.task, {})
        return {key: value for key, value in with_defaults(self.task, self.options).items() if value != usual[key]}


def named(tasks: Sequence[Asked]) -> list[Asked]:
    """The same; where a task stands more than once, with their unusual options as part of the name.

    How many there are beside it and in which order changes no such name. Raises EvalError where two ask the same.
    """
    asked = [one.task for one in tasks]
    found = [one if asked.count(one.task) == 1 else replace(one, name=in_full(one)) for one in tasks]
    names = [one.name for one in found]
    for at, name in enumerate(names):
        if (first := names.index(name)) < at:
            raise EvalError(
                f"tasks {first + 1} and {at + 1} of the list both ask {name}: keep one of them, with the larger count, "
                "or give them different options"
            )
    return found


def in_full(asked: Asked) -> str:
    """`niah-multi-key(depth=0.5, keys=8)`."""
    said = ", ".join(f"{key}={value}" for key, value in asked.unusual.items())
    return f"{asked.task}({said})" if said else asked.task
