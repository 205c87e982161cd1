"""Methods by name: each an encoding for a model trained on L0 tokens, tried without training or trained for."""

import difflib
import math
from collections.abc import Callable

from lab import LabError
from positional.build import Spec, parse

METHODS: dict[str, Callable[[int, int], Spec]] = {
    "linear": lambda train, to: {"kind": "rope-linear", "factor": to / train},
    "ntk": lambda train, to: {"kind": "rope-ntk", "factor": to / train},
    "dynamic": lambda train, to: {"kind": "rope-dynamic", "factor": to / train},
    "yarn": lambda train, to: {"kind": "rope-yarn", "factor": to / train},
    "llama3": lambda train, to: {"kind": "rope-llama3", "factor": to / train},
    "self-extend": lambda train, to: {"kind": "self-extend", "window": train // 4, "group": group(train, to)},
    "dual-chunk": lambda train, to: {"kind": "dual-chunk"},
    "rerope": lambda train, to: {"kind": "rerope", "window": train // 2},
    "window+sinks": lambda train, to: {"kind": "lambda-mask", "window": train // 2, "sinks": 4},
}
"""Name -> the encoding, given the train length and the length to reach.

Windows are those of the papers, or half the train length where these leave it open; `window+sinks` caps the distance
to the first tokens at the train length, as StreamingLLM does by renumbering what is in its cache.
"""

FOR_TRAINING: dict[str, Callable[[int, int], Spec]] = {
    "pose": lambda train, to: [{"kind": "rope-yarn", "factor": to / train}, {"kind": "pose", "longest": to}],
    "drope": lambda train, to: "nope",
}
"""What only a model that is trained further can use. pose: positions up to `to` in windows no longer than the train
length; drope: positions dropped, the model calibrated anew without any (Gelberg et al. 2025, arXiv:2512.12167)."""

EVERY = METHODS | FOR_TRAINING


def group(train: int, to: int) -> int:
    """The smallest group with which self-extend's positions, `to` tokens long, stay below the train length."""
    window = train // 4
    return max(2, math.ceil((to - window) / (train - window)))


def reach(spec: Spec, train: int) -> float:
    """How many tokens an encoding is made for by its factor or its groups; without limit where it names neither."""
    if isinstance(spec, list):
        return min(reach(one, train) for one in spec)
    kind, options = parse(spec)
    if kind == "self-extend" and {"group", "window"} <= options.keys():
        return (train - options["window"]) * options["group"] + options["window"]
    inner = [reach(options[name], train) for name in ("of",) if name in options]
    if kind != "rope-dynamic" and isinstance(options.get("factor"), int | float):  # dynamic grows past any
        inner.append(options["factor"] * train)
    return min(inner, default=math.inf)


SEARCHED = "longrope"
"""The method whose encoding is found by a search on the model itself."""


def method(name: str, train: int, to: int) -> Spec:
    """Of those without training. Raises LabError for a name that is none."""
    refuse_unknown(name)
    return METHODS[name](train, to)


def refuse_unknown(name: str) -> None:
    if name in (*METHODS, SEARCHED):
        return
    if name in FOR_TRAINING:
        raise LabError(f"method {name} is for training: lab finetune --method {name}", code=2)
    known = [*METHODS, SEARCHED]
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f": did you mean {near[0]}?" if near else ";"
    raise LabError(f"no method `{name}`{hint} there are {', '.join(known)}, or write {{NAME: encoding}}", code=2)
