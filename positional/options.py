"""Options of an encoding: its constructor's keyword-only arguments, checked, and told in the words of its class."""

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from positional.base import Scheme, SchemeError


def constructors(cls: type[Scheme]) -> Iterator[Callable]:
    """A class's constructor, and those above it that it hands its `**options` on to."""
    for one in cls.__mro__:
        if "__init__" in vars(one):
            yield one.__init__
            if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in signature_of(one.__init__)):
                return


def signature_of(function: Callable) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def options_of(cls: type[Scheme]) -> dict[str, inspect.Parameter]:
    """A class's options: the keyword-only arguments of its constructor, and of those it hands its `**options` on to."""
    found: dict[str, inspect.Parameter] = {}
    for init in constructors(cls):
        for parameter in signature_of(init):
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                found.setdefault(parameter.name, parameter)
    return found


def types_of(cls: type[Scheme]) -> dict[str, Any]:
    """The annotation of each option."""
    return {name: hint for init in reversed(list(constructors(cls))) for name, hint in get_type_hints(init).items()}


def checked(kind: str, cls: type[Scheme], options: dict[str, Any], inner: Callable[[Any], Scheme]) -> dict[str, Any]:
    """The options, each known, each of its type, none missing. inner: builds those that describe an encoding."""
    known, types = options_of(cls), types_of(cls)
    for name in options.keys() - known.keys():
        near = difflib.get_close_matches(str(name), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'no options'}"
        raise SchemeError(f"{kind} has no option `{name}`: {hint}")
    for name, parameter in known.items():
        if name not in options and parameter.default is inspect.Parameter.empty:
            raise SchemeError(
                f"{kind} needs `{name}` ({shown(types.get(name, Any))}): write {{kind: {kind}, {name}: …}}"
                + explained(cls, name)
            )
    return {name: typed(kind, cls, name, value, types.get(name, Any), inner) for name, value in options.items()}


def meaning(cls: type[Scheme], option: str) -> str:
    """What a docstring says of an option, its own class's or one it inherits from: `name, other: what it is.`"""
    for one in cls.__mro__:
        text = re.sub("`.*?`", "", " ".join((one.__doc__ or "").split()))  # without examples
        if found := re.search(rf"(?:^|[.\])] +|\s)(?:\w+, )*{option}(?:, \w+)*: (.+?(?<! al)\.)(?: |$)", text):
            return found[1]
    return ""


def explained(cls: type[Scheme], option: str) -> str:
    """What an option is, as the end of a message about it."""
    said = meaning(cls, option)
    return f"; {option}: {said.removesuffix('.')}" if said else ""


def typed(kind: str, cls: type[Scheme], name: str, value: Any, wanted: Any, inner: Callable[[Any], Scheme]) -> Any:
    if wanted is Scheme:
        return inner(value)
    if wanted == list[Scheme] and isinstance(value, list) and value:
        return [inner(one) for one in value]
    if accepts(wanted, value):
        return value
    raise SchemeError(f"{kind}: `{name}` must be {shown(wanted)}, got {value!r}{explained(cls, name)}")


def accepts(wanted: Any, value: Any) -> bool:
    """Whether a value read from YAML fits an annotation: no string passes for a number, no true for a 1."""
    if wanted is Any:
        return True
    if get_origin(wanted) is Literal:
        return value in get_args(wanted) and not isinstance(value, bool)
    if get_origin(wanted) is list:
        return isinstance(value, list) and all(accepts(*get_args(wanted), one) for one in value)
    if get_args(wanted):  # a union
        return any(accepts(one, value) for one in get_args(wanted))
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def shown(wanted: Any) -> str:
    """An annotation as a person would write it."""
    if wanted is Any:
        return "a value"
    if wanted is Scheme:
        return "an encoding"
    if get_origin(wanted) is Literal:
        return " or ".join(str(one) for one in get_args(wanted))
    if get_origin(wanted) is list:
        return f"a list of {shown(*get_args(wanted)).removeprefix('a ').removeprefix('an ')}s"
    if get_args(wanted):
        return " or ".join(shown(one) for one in get_args(wanted))
    return {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}.get(
        wanted, str(wanted)
    )
