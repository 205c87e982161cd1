"""Lints of the two forms: that of transformers 4, that of transformers 5, and both in one file."""

from collections.abc import Iterator
from typing import Any

from lab.doctor.config import Config
from lab.doctor.entries import entries, nested_in
from lab.doctor.finding import Finding
from lab.doctor.keys import OLD_NAMES


def one_dictionary(config: Config) -> Iterator[Finding]:
    """Old readers take rope_scaling and rope_theta, new ones rope_parameters: both may stand there, if they agree."""
    old, new = config.raw.get("rope_scaling"), config.raw.get("rope_parameters")
    if not (isinstance(old, dict) and isinstance(new, dict) and old and new):
        return
    theta = config.find("rope_theta")[1]
    if bare(old, theta) == bare(new, theta) or (
        nested_in(new) and bare(old, theta) in [bare(one) for one in new.values()]
    ):
        yield Finding("note", "both-forms", "rope_parameters", "written in both forms, which agree")
        return
    yield Finding(
        "error",
        "forms-disagree",
        "rope_parameters",
        "differs from rope_scaling: transformers 5.24 takes rope_scaling alone and drops this dictionary, rope_theta "
        "in it included; transformers 4 knows rope_scaling only, other readers this one",
        "remove one, or make them equal",
    )


def bare(block: Any, theta: Any = None) -> dict[str, Any]:
    """A dictionary's contents whatever the form."""
    block = dict(block) if isinstance(block, dict) else {}
    kind = block.pop("rope_type", block.get("type", "default"))
    return {"rope_theta": theta, **block, "type": OLD_NAMES.get(kind, kind) if isinstance(kind, str) else kind}


def which_readers(config: Config) -> Iterator[Finding]:
    """Half of the world still reads the old form, and a file without it as plain RoPE with a base of 10000."""
    old, new = config.raw.get("rope_scaling"), config.raw.get("rope_parameters")
    if config.encodes is not None:
        return
    if isinstance(new, dict) and new and not old and not config.is_gguf:
        scaled = any(one.type != "default" for one in entries(config))
        lacks = [] if config.find("rope_theta")[0] else ["rope_theta"]
        lacks += ["rope_scaling"] if scaled else []
        if lacks:
            yield Finding(
                "note",
                "v5-form",
                "rope_parameters",
                "is the form of transformers 5. Transformers 4, and whatever else looks for "
                f"{' and '.join(lacks)} beside it, finds none and takes its defaults: plain RoPE, mostly of base 10000",
                "write both forms, if such readers are to read it",
            )
    elif isinstance(old, dict) and old and not new:
        yield Finding(
            "note",
            "v4-form",
            "rope_scaling",
            "is the form of transformers 4. Transformers 5 reads it too, but code that then asks config.rope_theta "
            "finds no such field, for any model",
        )


OF_CONFIG = (one_dictionary, which_readers)
