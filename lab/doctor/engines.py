"""What transformers 5.24, vLLM 0.33 and llama.cpp do with the same file, where they differ: read in their sources."""

from collections.abc import Iterator
from dataclasses import dataclass

from lab.doctor.config import Config
from lab.doctor.entries import Entry
from lab.doctor.family import WHOLE_HEAD
from lab.doctor.lint_longrope import grown
from lab.doctor.lint_yarn import of_yarn

VERSIONS = {"transformers": "5.24.0", "vllm": "0.33.0", "llama_cpp": "as in llama-cpp-python 0.3.36"}


@dataclass(frozen=True)
class Differs:
    """One point on which they differ."""

    point: str
    transformers: str
    vllm: str
    llama_cpp: str


def of_type(entry: Entry) -> Iterator[Differs]:
    kind = entry.name.lower().replace("_", "-") if isinstance(entry.name, str) else ""
    if kind in ("ntk", "ntk-aware"):
        yield Differs(
            "static NTK",
            f"none: KeyError: {entry.name!r} when the model is built",
            "`ntk` is another function (Su): base · s, then ÷ s^(2/d), the first lane slowed too",
            "none; --rope-freq-base by hand",
        )
    elif entry.name is None and entry.given.get("factor") is not None:
        yield Differs("no rope_type", "plain RoPE, the factor unused", "not known here", "not known here")
    elif entry.type == "dynamic":
        yield Differs(
            "length that sets the base",
            "1 + the largest position in the batch; grows, and stays until an input is below L0",
            "the engine's longest, once; without max_trained_positions nothing is scaled",
            "no dynamic NTK: plain RoPE",
        )
    elif entry.type == "proportional" and (entry.number("factor") or 1) > 1:
        yield Differs("factor", "lanes slowed by it", "ignored", "not known here")


def of_share(entry: Entry) -> Iterator[Differs]:
    share, field = entry.share
    if field and share != 1 and entry.type == "default" and entry.config.family in WHOLE_HEAD:
        yield Differs(
            "partial_rotary_factor", "ignored: the whole head turns", "that share turns", "rope.dimension_count"
        )


def of_ramp(entry: Entry) -> Iterator[Differs]:
    if not of_yarn(entry):
        return
    given = entry.given
    if given.get("truncate") is False:
        yield Differs(
            "truncate: false",
            "read" if entry.layers is None else "ignored in a dictionary for one type of layer: ends rounded",
            "read by yarn; deepseek_yarn always rounds",
            "ignored: ends always rounded",
        )
    if given.get("attention_factor") is not None:
        yield Differs(
            "attention_factor",
            "replaces the growth",
            "replaces the growth (older versions dropped it)",
            "rope.scaling.attn_factor multiplies",
        )
    one, other = entry.number("mscale"), entry.number("mscale_all_dim")
    if bool(one) != bool(other):
        yield Differs("one mscale alone", "ignored", "ignored by yarn; used by deepseek_yarn", "taken to be 1")
    elif one and given.get("attention_factor") is None:
        yield Differs(
            "mscale and mscale_all_dim",
            "their ratio",
            "their ratio (older versions ignored both)",
            "mscale taken to be 1",
        )
    if entry.trained and entry.trained <= 6:
        yield Differs(
            "ramp that ends before it begins",
            "no lane slowed, or all but the first",
            "the same",
            "all but the first slowed",
        )


def of_lists(entry: Entry) -> Iterator[Differs]:
    if entry.type != "longrope":
        return
    phimoe = entry.config.family == "phimoe"
    yield Differs(
        "when long_factor is used",
        "never (phimoe)" if phimoe else f"for a batch whose longest input exceeds {entry.trained}, all its rows",
        f"for all inputs if max_model_len > {entry.trained}; its default is {entry.trained}",
        "for all inputs if the context of a sequence exceeds L0",
    )
    trained, longest, factor = entry.trained, entry.config.longest, entry.number("factor")
    if entry.number("attention_factor") is not None:
        yield Differs("attention_factor", "replaces the growth", "ignored", "rope.scaling.attn_factor")
    elif factor and trained and longest and longest > trained > 1 and factor != longest / trained and factor >= 1:
        new, old = grown(factor, trained), grown(longest / trained, trained)
        yield Differs("growth", f"{new:.4f}, of factor", f"{old:.4f}, of the two lengths", "rope.scaling.attn_factor")
    if not phimoe and {"short_mscale", "long_mscale"} & entry.given.keys():
        yield Differs("short_mscale, long_mscale", "ignored", "read, in place of the growth", "not known here")


def of_tables(config: Config) -> Iterator[Differs]:
    if config.half:
        yield Differs(
            "cosines and sines", "made in fp32, cast for each call", "kept in the dtype of the weights", "fp32"
        )


def differences(config: Config, entries: list[Entry]) -> list[Differs]:
    """Every point, once. Empty for a GGUF file, which llama.cpp reads by itself, and for models without RoPE."""
    if config.encodes or config.is_gguf:
        return []
    found = [
        one for entry in entries if not entry.off for of in (of_type, of_share, of_ramp, of_lists) for one in of(entry)
    ]
    return list(dict.fromkeys([*found, *of_tables(config)]))
