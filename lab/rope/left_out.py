"""What the description of an encoding leaves out is the checkpoint's own: its base, its layout, the factor it needs."""

from collections.abc import Callable
from typing import Any

from lab.rope.config import Rotation
from positional.build import Spec, find, parse, within
from positional.options import options_of
from positional.rope import Layout

Change = Callable[[str, dict[str, Any]], dict[str, Any]]
"""(kind, options) -> the options of one encoding."""


def completed(spec: Spec, base: float, layout: Layout) -> Spec:
    """The same description, with this base and layout wherever a kind has them and none is given."""

    def change(kind: str, options: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {"base": base} | ({"layout": layout} if layout != "half" else {})
        known = options_of(find(kind))
        return options | {key: value for key, value in own.items() if key in known and key not in options}

    return changed(spec, change)


def resolved(spec: Spec, own: Rotation, target: int) -> Spec:
    """The description with nothing left open: the model's base where a RoPE says none, a number for a factor `auto`.

    own: what the model was trained with.   target: the longest input to be run; `auto` is target ÷ train length.
    """

    def change(kind: str, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("factor") == "auto" and kind != "rope-dynamic-yarn":  # which has no other
            return options | {"factor": max(1.0, target / own.train_length)}
        return options

    base = parse(own.spec)[1].get("base")
    return changed(spec if base is None else completed(spec, base, "half"), change)


def changed(spec: Spec, change: Change) -> Spec:
    """The same description with other options, also of the encodings that options describe."""
    if isinstance(spec, list):
        return [changed(one, change) for one in spec]
    kind, options = parse(spec)
    options = change(kind, options)
    options = options | {name: changed(options[name], change) for name in within(kind, options)}
    return {"kind": kind, **options} if options else kind
