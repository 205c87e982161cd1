"""tasks: the tasks by name, and their samples, each a function of task, options, length, number and seed alone."""

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from eval import EvalError
from eval.induction import induction
from eval.mqar import mqar
from eval.retrieval import (
    niah,
    niah_multi_key,
    niah_multi_query,
    niah_multi_value,
    niah_no_needle,
    niah_wrong_key,
    passkey,
    passkey_no_needle,
)
from eval.sample import Sample
from eval.selective_copy import selective_copy
from eval.variable_tracking import all_in_chain, last_in_chain
from eval.voice import Voice

TASKS: dict[str, Callable[..., Sample]] = {
    "passkey": passkey,
    "passkey-no-needle": passkey_no_needle,
    "niah": niah,
    "niah-multi-key": niah_multi_key,
    "niah-multi-value": niah_multi_value,
    "niah-multi-query": niah_multi_query,
    "niah-no-needle": niah_no_needle,
    "niah-wrong-key": niah_wrong_key,
    "mqar": mqar,
    "induction": induction,
    "selective-copy": selective_copy,
    "variable-tracking": last_in_chain,
    "variable-tracking-all": all_in_chain,
}


def build(
    name: str, options: dict[str, Any], *, length: int, count: int, voice: Voice, seed: int = 0, first: int = 0
) -> list[Sample]:
    """Samples `first` … `first + count - 1` of a task, each of exactly `length` tokens, with a group of its own.

    Raises EvalError for a task or option that is unknown, a value out of range, or what cannot fit into `length`.
    """
    chosen = with_defaults(name, options)
    samples = []
    for number in range(first, first + count):
        random = np.random.default_rng(seed_of(name, chosen, length, number, seed))
        try:
            sample = TASKS[name](random, length, voice, **chosen)
        except EvalError as error:
            raise EvalError(f"task {name}: {error}") from None
        about = {"task": name, "length": length, **sample.about}
        samples.append(replace(sample, about=about, group=number))
    return samples


def with_defaults(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """All options of a task. Raises EvalError for what there is not."""
    if name not in TASKS:
        raise EvalError(f"no task `{name}`; there are {', '.join(TASKS)}")
    known = {
        option.name: option.default
        for option in inspect.signature(TASKS[name]).parameters.values()
        if option.kind is option.KEYWORD_ONLY
    }
    if unknown := [option for option in options if option not in known]:
        raise EvalError(f"task {name} has no option `{unknown[0]}`; it has {', '.join(known) or 'none'}")
    return known | options


def seed_of(*said: Any) -> int:
    """The same on every machine and in every process, which `hash` is not."""
    return int.from_bytes(hashlib.sha256(json.dumps(said, sort_keys=True).encode()).digest()[:16], "big")
