"""What an encoding takes, does and needs, in words: `lab schemes show`."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lab import LabError
from lab.attention import BACKENDS, choose
from lab.model.config import misfits
from lab.probe import hidden, parts_of
from positional import Positions, Scheme, SchemeError, Shape, build
from positional.build import Spec, find, name_of, parse, summary
from positional.options import meaning, options_of, shown, types_of
from positional.stack import Stack

HOOKS = {
    "place": "the positions of tokens in training",
    "embed": "embeddings",
    "rotate": "queries and keys",
    "scores": "scores",
    "parts": "scores, over keys split into parts",
    "note": "what a layer notes of each token",
    "at": "some layers and not others",
}
"""What an encoding acts on, by the hook that it overrides."""
WHERE = {
    "flash3": "flash3 (Hopper GPUs)",
    "flash4": "flash4 (Hopper and Blackwell GPUs)",
    "flash2": "flash2 (GPUs from Ampere on)",
    "varlen": "varlen (GPUs from Ampere on)",
    "sdpa": "sdpa",
    "flex": "flex (GPUs; CPUs without gradients)",
    "eager": "eager (everything, with a T×T matrix)",
}


@dataclass(frozen=True)
class Option:
    name: str
    meaning: str  # with its unit, as the class says it
    type: str
    default: str


def shape_of(width: int, heads: int, length: int) -> Shape:
    """Raises LabError where the sizes do not fit together."""
    if problems := misfits(width, heads, heads):
        raise LabError("; ".join(problems), code=2)
    return Shape(width, heads, heads, 2, length)


def described(spec: Spec, shape: Shape) -> Scheme:
    """The scheme of a description. Raises LabError, for a call that was wrong, where it cannot be built."""
    try:
        return build(spec, shape)
    except SchemeError as error:
        raise LabError(str(error), code=2) from None


def options(kind: str, given: dict[str, Any]) -> list[Option]:
    cls = find(kind)
    types = types_of(cls)
    found = []
    for name, option in options_of(cls).items():
        default = "needed" if option.default is inspect.Parameter.empty else f"{option.default}"
        if name in given:
            default = f"{default}, here {given[name]}"
        found.append(Option(name, meaning(cls, name), shown(types.get(name, Any)), default))
    return found


def facts(spec: Spec, scheme: Scheme) -> dict[str, str]:
    """What holds of it, by name."""
    said = words(scheme)
    return {
        "acts on": acts_on(scheme),
        "says of scores": ", ".join(sorted(said)) or "nothing",
        "prefix-consistent": consistency(scheme),
        "longest input": "any" if scheme.limit is None else f"{scheme.limit} tokens",
        "sees": seen(scheme),
        "in an encoder": f"no: {scheme.causal_only}" if scheme.causal_only else "yes",
        "learned numbers": learned(scheme),
        "notes": f"{scheme.notes} numbers of each token in each layer, kept in the cache" if scheme.notes else "none",
        "backends": backends(scheme, said),
        "here": here(scheme),
    }


def acts_on(scheme: Scheme) -> str:
    own = [one for one in scheme.modules() if isinstance(one, Scheme) and not isinstance(one, Stack)]
    acts = [what for hook, what in HOOKS.items() if any(overrides(one, hook) for one in own)]
    return ", ".join(acts) or "nothing"


def overrides(scheme: Scheme, hook: str) -> bool:
    return getattr(type(scheme), hook) is not getattr(Scheme, hook)


def consistency(scheme: Scheme) -> str:
    if scheme.prefix_consistent:
        return "yes: what follows a token changes nothing at it, and a cache is exact"
    return "no: it depends on the length being run, so no cache is exact and `generate` runs without one"


def seen(scheme: Scheme) -> str:
    reaches = {scheme.at(layer).reach for layer in range(scheme.shape.layers)}
    texts = [f"a token and the {reach - 1} before it" for reach in sorted(r for r in reaches if r is not None)]
    hides = ", but for what it hides" if words(scheme) & {"keep", "sinks"} else ""
    every = ["a token and all before it"] if None in reaches else []
    return "; in other layers ".join(every + texts) + hides


def learned(scheme: Scheme) -> str:
    named = {name: parameter for name, parameter in scheme.named_parameters()}
    if not named:
        return "none"
    each = ", ".join(f"{name} {' × '.join(map(str, p.shape))}" for name, p in named.items())
    return f"{sum(p.numel() for p in named.values())} ({each})"


def words(scheme: Scheme) -> frozenset[str]:
    """The words of `Scores` that it uses, in any part of any layer."""
    layers = range(scheme.shape.layers)
    return frozenset().union(*(scores.needs for layer in layers for *_, scores in parts(scheme, layer)))


def parts(scheme: Scheme, layer: int = 0) -> list:
    """What it makes of inputs of the train length, in fp32."""
    tokens = scheme.shape.train_length
    with torch.no_grad():
        return parts_of(scheme, hidden(scheme.shape, tokens, dtype=torch.float32), Positions.first(tokens), layer)[0]


def backends(scheme: Scheme, said: frozenset[str]) -> str:
    """Which backends run it, wherever these run at all, and why the others do not."""
    able = [name for name, module in BACKENDS.items() if said <= module.can]
    text = "; ".join(WHERE[name] + (", natively" if name == "flash2" and "slopes" in said else "") for name in able)
    if max(len(parts(scheme, layer)) for layer in range(scheme.shape.layers)) > 1:
        text += ". Its parts are merged by log-sum-exp, whose gradient flex (on a GPU), sdpa and eager have"
    if unable := [name for name in BACKENDS if name not in able]:
        missing = ", ".join(sorted({word for name in unable for word in said - BACKENDS[name].can}))
        text += f". Not {', '.join(unable)}, which {'does' if len(unable) == 1 else 'do'} not run {missing}"
    return text


def here(scheme: Scheme) -> str:
    """What `auto` picks on this machine."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tokens, picked = scheme.shape.train_length, {}
    pos = Positions.first(tokens, device=device)
    x = hidden(scheme.shape, tokens, dtype=dtype).to(device)
    own = scheme.to(device)
    for what, gradient in (("to train", True), ("to run", False)):
        with torch.set_grad_enabled(gradient):
            made, _, where = parts_of(own, x.clone().requires_grad_(gradient), pos)
            picked[what] = list(dict.fromkeys(choose(s, q, k, where, lse=len(made) > 1) for q, k, s in made))
    scheme.to("cpu")
    names = [" and ".join(names) for names in picked.values()]
    how = names[0] if names[0] == names[1] else f"{names[0]} to train, {names[1]} to run"
    return f"auto picks {how} ({device}, {str(dtype).removeprefix('torch.')})"


def show(spec: Spec, scheme: Scheme, picture: Path | None) -> None:
    """Print all of it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for one in spec if isinstance(spec, list) else [spec]:
        kind, given = parse(one)
        console.print(Text.assemble((name_of(one), "bold"), "  ", documented(kind)))
        if text := inspect.getdoc(find(kind)) if find(kind).__doc__ else None:
            console.print(Text("\n" + text))
        if rows := options(kind, given):
            table = Table("option", "what it is", "takes", "default")
            for option in rows:
                table.add_row(option.name, Text(option.meaning), option.type, option.default)
            console.print("", table)
        console.print()
    grid = Table.grid(padding=(0, 2))
    for name, text in facts(spec, scheme).items():
        grid.add_row(Text(name, "bold"), Text(text))
    console.print(grid)
    console.print()
    console.print(Text(str(picture) if picture else "no picture: it does nothing that one could draw"), soft_wrap=True)


def documented(kind: str) -> str:
    try:
        return summary(kind)
    except (AttributeError, IndexError):
        return "(its file has no first line that says what it does)"
