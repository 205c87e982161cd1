"""A description -> a scheme. A kind is a file of this folder, a user's own file, or a class of an installed module."""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import positional
from positional.base import Scheme, SchemeError, Shape
from positional.options import checked, types_of
from positional.stack import Stack

Spec = str | dict[str, Any] | list
"""`rope`, `{kind: rope-ntk, factor: 8}`, or a list of these, applied in turn."""

NOT_KINDS = {"base", "build", "options", "stack", "extension"}


def kinds() -> list[str]:
    """The built-in kinds: one a file, `rope-ntk` in `rope_ntk.py`."""
    names = (module.name for module in pkgutil.iter_modules(positional.__path__))
    return sorted(name.replace("_", "-") for name in names if name not in NOT_KINDS)


def summary(kind: str) -> str:
    """The first line of a kind's file: its name, what it does, its paper."""
    return sys.modules[find(kind).__module__].__doc__.strip().splitlines()[0]


def build(spec: Spec, shape: Shape, *, trust: bool = True) -> Scheme:
    """The scheme that `spec` describes, for a model of this shape.

    trust: whether a kind may name a file or module outside this package, whose code then runs. A model that was
    downloaded is built with trust=False.
    Raises SchemeError, naming kind, option and fix.
    """
    if isinstance(spec, list):
        if not spec:
            raise SchemeError("an empty list of encodings; write nope for none")
        return (
            build(spec[0], shape, trust=trust)
            if len(spec) == 1
            else Stack(shape, [build(one, shape, trust=trust) for one in spec])
        )
    kind, options = parse(spec)
    cls = find(kind, trust=trust)
    try:
        return cls(shape, **checked(kind, cls, options, lambda spec: build(spec, shape, trust=trust)))
    except SchemeError as error:
        raise error if str(error).startswith(kind) else SchemeError(f"{kind}: {error}") from None


def parse(spec: Spec) -> tuple[str, dict[str, Any]]:
    """One encoding's description -> its kind and its options."""
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        raise SchemeError(f"an encoding is a name, {{kind: name, option: value}} or a list of these, got {spec!r}")
    return spec["kind"], {key: value for key, value in spec.items() if key != "kind"}


def name_of(spec: Spec) -> str:
    """What tables call it: its kind, or the stem of a user's file; a stack joins its members with +."""
    if isinstance(spec, list):
        return "+".join(name_of(one) for one in spec)
    kind = parse(spec)[0]
    path, _, cls = kind.partition(":")
    return cls or Path(path).stem if path.endswith(".py") else kind


def names_of(specs: list[Spec]) -> list[str]:
    """A name for each, all different: the kind, and the options beside it where the kind alone would name two."""
    names = [name_of(spec) for spec in specs]
    for longer in (with_options, str):
        names = [n if names.count(n) == 1 else longer(spec) for n, spec in zip(names, specs, strict=True)]
    return [n if n not in names[:at] else f"{n} ({names[:at].count(n) + 1})" for at, n in enumerate(names)]


def with_options(spec: Spec) -> str:
    if isinstance(spec, list):
        return "+".join(with_options(one) for one in spec)
    return " ".join([name_of(spec), *(f"{key}={value}" for key, value in parse(spec)[1].items())])


def sources(spec: Spec) -> list[Path]:
    """The files outside this package whose code the description names."""
    if isinstance(spec, list):
        return [path for one in spec for path in sources(one)]
    kind, options = parse(spec)
    path = Path(kind.partition(":")[0]).expanduser()
    if path.suffix != ".py":
        own = [] if kind in kinds() else [Path(sys.modules[find(kind).__module__].__file__)]
    else:
        own = [path]
    return own + [path for name in within(kind, options) for path in sources(options[name])]


def moved(spec: Spec, folder: Path) -> Spec:
    """The same description with each file outside this package looked for in `folder` first."""
    if isinstance(spec, list):
        return [moved(one, folder) for one in spec]
    kind, options = parse(spec)
    path, colon, name = kind.partition(":")
    if path.endswith(".py") and (folder / Path(path).name).is_file():
        kind = f"{folder / Path(path).name}{colon}{name}"
    options = options | {inner: moved(options[inner], folder) for inner in within(kind, options)}
    return {"kind": kind, **options} if options else kind


def within(kind: str, options: dict[str, Any]) -> list[str]:
    """The options given that describe encodings themselves."""
    types = types_of(find(kind)) if options else {}
    return [name for name in options if types.get(name) in (Scheme, list[Scheme])]


def find(kind: str, *, trust: bool = True) -> type[Scheme]:
    """The class of a kind: of this package, else of a path (`ideas.py`, `ideas.py:Name`), else of a module."""
    if kind in kinds():
        return only(importlib.import_module(f"positional.{kind.replace('-', '_')}"), kind)
    path, _, name = kind.partition(":")
    if path.endswith(".py") or "." in path:
        if not trust:
            raise SchemeError(
                f"this model's encoding `{kind}` is code outside the lab; read it, then pass trust_remote_code=True"
            )
        module = load(Path(path).expanduser()) if path.endswith(".py") else imported(path)
        return named(module, name) if name else only(module, kind)
    near = difflib.get_close_matches(kind, kinds(), 1)
    raise SchemeError(
        f"unknown encoding `{kind}`" + (f": did you mean {near[0]}?" if near else f"; built in: {', '.join(kinds())}")
    )


def load(path: Path) -> ModuleType:
    """A user's file as a module of its own; the same file gives the same module."""
    path = path.resolve()
    if not path.is_file():
        raise SchemeError(f"no file {path}: the encoding's kind names it")
    key = hashlib.sha256(path.read_bytes() + bytes(path)).hexdigest()[:12]
    name = f"positional_user_{path.stem}_{key}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: torch.compile looks its functions up there
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise SchemeError(f"{path} does not run: {type(error).__name__}: {error}") from error
    return sys.modules[name]


def imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, TypeError, ValueError) as error:  # the last two for a name that begins with a dot
        raise SchemeError(
            f"no module `{name}` ({error}): a kind is built in, a path to a .py file, or a module"
        ) from error


def schemes_in(module: ModuleType) -> dict[str, type[Scheme]]:
    classes = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
    return {n: c for n, c in classes.items() if issubclass(c, Scheme) and c.__module__ == module.__name__}


def only(module: ModuleType, kind: str) -> type[Scheme]:
    found = schemes_in(module)
    if len(found) != 1:
        names = ", ".join(found) or "none"
        raise SchemeError(f"`{kind}` must define one Scheme, found {names}: write {kind}:NAME to choose one")
    return next(iter(found.values()))


def named(module: ModuleType, name: str) -> type[Scheme]:
    found = schemes_in(module)
    if name not in found:
        raise SchemeError(f"no Scheme `{name}` in {module.__file__}; it defines {', '.join(found) or 'none'}")
    return found[name]
