"""Settings of `lab extend`: which model, how far, by which methods, measured on what."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lab import LabError
from lab.config import checked, merged, parsed, tree
from lab.settings import Data, Length, Settings


class Needles(Settings):
    """Needles asked for at each length: in `count` haystacks, or none, one at each of so many depths."""

    count: int = Field(2, ge=0)
    depths: int = Field(5, gt=1)


class Searching(Settings):
    """The search for longrope's factors: so many lists, each by so many needles in each of so many haystacks."""

    budget: int = Field(200, gt=0)
    haystacks: int = Field(3, gt=0)
    needles: int = Field(5, gt=1)
    seed: int = 0


class Extending(Settings):
    """One comparison of methods on one model."""

    model: str  # a folder, a name on the hub, a .gguf file, or package:NAME
    to: Length  # the length to reach
    train_length: int | None = Field(None, gt=1)  # tokens, L0 of every formula; null: as the configuration says
    name: str = "extend"  # what comes of it lies in FOLDER/NAME
    folder: str = "runs"
    methods: list[Any] = ["linear", "ntk", "dynamic", "yarn", "llama3", "self-extend", "dual-chunk", "window+sinks"]
    lengths: list[Length] = []  # of every method, beside `to`; none: a quarter of the train length, it, and doublings
    raw_lengths: list[Length] = []  # of the model as it is, beside these
    data: Data = Data()
    documents: int = Field(8, gt=0)
    targets: int = Field(1024, gt=0)  # tokens scored at the end of each document
    needles: Needles = Needles()
    longrope: Searching = Searching()
    batch_tokens: int = Field(16384, gt=0)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    trust_remote_code: bool = False  # whether code that the checkpoint brings along may be run


def asked(
    model: str,
    overrides: list[str],
    *,
    to: str | None = None,
    methods: list[str] | None = None,
    data: list[str] | None = None,
    out: Path | None = None,
) -> Extending:
    """The settings of a YAML file, or of a model, with the options of the command line over them.

    out: where the one method is to be written.   Raises LabError, listing every mistake at once.
    """
    path = Path(model)
    values = tree(path) if path.suffix in (".yaml", ".yml") else {"model": model}
    over: dict[str, Any] = {} if to is None else {"to": to}
    over |= {"methods": methods} if methods else {}
    over |= {"data": {"source": "text", "path": data}} if data else {}
    values = merged(merged(values, over), parsed(overrides))
    if "to" not in values:
        raise LabError(
            f"how far is {model} to read? write --to 32k, or --to 4x for four times its train length", code=2
        )
    made = checked(values, path, overrides, Extending)
    from lab.extend.methods import refuse_unknown  # torch behind it, and in vain if the settings are wrong

    for name in (one for one in made.methods if not isinstance(one, dict)):
        refuse_unknown(name)
    if out is not None and out.exists():
        raise LabError(f"--out {out} is there already: give another folder, or remove it first", code=2)
    if out is not None and made.trust_remote_code:
        raise LabError(
            f"--out {out}: what runs code of its own is measured, and not written anew. Leave out --out, or "
            "trust_remote_code where the model needs none",
            code=2,
        )
    if out is not None and len(made.methods) != 1:
        raise LabError(
            f"--out {out} is for one method and there are {len(made.methods)}: name it with --method", code=2
        )
    return made
