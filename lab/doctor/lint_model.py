"""Lints of what surrounds the RoPE: its base, the channels that turn, the longest input, the dtype, layers without."""

from collections.abc import Iterator

from lab.doctor.config import ALIASES, Config
from lab.doctor.entries import Entry
from lab.doctor.family import WHOLE_HEAD
from lab.doctor.finding import Finding, number, whole
from lab.doctor.keys import LENGTH
from lab.doctor.lint_values import not_a_number
from lab.rope.otherwise import LIMITED


def has_rope(config: Config) -> Iterator[Finding]:
    kind = config.encodes
    if kind is None:
        return
    limit = ""
    if kind.startswith(LIMITED) and config.longest:
        limit = f", of which there are {config.longest}: no longer input can be read"
    yield Finding("note", "no-rope", "model_type", f"{config.family} has no RoPE; position is told by {kind}{limit}")
    for name in ("rope_scaling", "rope_parameters", "rope_theta"):
        if config.raw.get(name):
            yield Finding("warning", "rope-unused", name, f"does nothing: {config.family} has no RoPE", "leave it out")


def family_is_known(config: Config) -> Iterator[Finding]:
    if config.is_gguf or config.encodes:
        return
    if not config.family:
        problem = "is missing: no reader knows what model this is, and the defaults of no family can be filled in"
        yield Finding("error", "no-family", "model_type", problem, '"model_type": "llama"')
    elif config.usual is None:
        problem = (
            f"{config.family!r} is unknown to the installed transformers: what the file leaves out is not filled in"
        )
        yield Finding("warning", "unknown-family", "model_type", problem)


def base_is_one(entry: Entry) -> Iterator[Finding]:
    base, field = entry.base, entry.base_field
    if not field:
        yield no_base(entry)
    elif number(base) is None:
        yield not_a_number(field, base)
    elif base <= 1:
        yield Finding("error", "base", field, f"must be above 1, and is {base}: lanes would not slow down", "10000.0")


def no_base(entry: Entry) -> Finding:
    """Old files do without where the family's default is meant; what transformers 5 writes never does."""
    new = entry.where.startswith("rope_parameters") and not entry.config.is_gguf
    level, why = "note", ""
    if entry.type == "llama3":
        level, why = "error", ", and no Llama 3 was trained with that"
    elif new:
        level, why = "warning", ". Setting rope_scaling, in code, drops it"
    return Finding(
        level,
        "missing-base",
        entry.at("rope_theta") if new else entry.flat,
        f"is missing: {entry.config.reader} takes {entry.base:g}{why}",
        '"rope_theta": 500000.0' if level == "error" else '"rope_theta": …, of the model as trained' if new else "",
    )


def base_is_the_same(entry: Entry) -> Iterator[Finding]:
    name, flat = entry.config.find("rope_theta")
    inner = entry.given.get("rope_theta")
    if entry.layers is None and name and inner is not None and number(flat) != number(inner):
        yield Finding(
            "error",
            "bases-disagree",
            name,
            f"is {flat} where {entry.at('rope_theta')} is {inner}: transformers 5 takes the latter, transformers 4 the "
            "former",
            "make them equal",
        )


def channels_turn_in_pairs(entry: Entry) -> Iterator[Finding]:
    head, (share, field), channels = entry.config.head, entry.share, entry.channels
    if field and number(share) is None:
        yield not_a_number(field, share)
    elif not 0 < share <= 1:
        problem = f"must be above 0 to 1, and is {share}; vLLM refuses it"
        yield Finding("error", "share", field, problem, "the share of a head's channels that turn")
    elif head and head % 2 and channels == head:
        yield Finding(
            "error",
            "odd-head",
            entry.config.called("head_dim"),
            f"is {head}: channels turn in pairs, so it must be even; transformers refuses it",
        )
    elif channels and channels % 2:
        yield Finding(
            "warning",
            "odd-share",
            field or "partial_rotary_factor",
            f"leaves {channels} of {head} channels: they turn in pairs, transformers rounds up, others down or fail",
            f"{(channels - 1) / head:g} or {(channels + 1) / head:g}",
        )
    elif field and share < 1 and entry.config.family in WHOLE_HEAD and entry.type not in ("proportional", None):
        plain = entry.type == "default"
        problem = f"is {share}: transformers' {entry.config.family} turns whole heads of {head} channels"
        yield Finding(
            "warning" if plain else "error",
            "share-ignored",
            field,
            f"{problem} all the same; vLLM turns the share" if plain else f"{problem}, and fails where lanes are fewer",
            "leave it out",
        )


def shares_agree(config: Config) -> Iterator[Finding]:
    found = {
        one: config.raw[one]
        for one in ("partial_rotary_factor", *ALIASES["partial_rotary_factor"])
        if one in config.raw
    }
    if len({number(value) for value in found.values()}) > 1:
        said = ", ".join(f"{name} {value}" for name, value in found.items())
        yield Finding("warning", "shares-disagree", list(found)[-1], f"two shares of channels that turn: {said}")


def sizes_are_known(config: Config) -> Iterator[Finding]:
    if config.encodes:
        return
    name, given = config.find("max_position_embeddings")
    if name and given is not None and (whole(given) or 0) <= 0:
        yield Finding("error", "longest", name, f"must count tokens, and is {given!r}", "4096")
    elif config.longest is None:
        yield Finding("warning", "no-longest", "max_position_embeddings", "is missing, and with it what L0 could be")
    elif not name:
        problem = f"is missing: {config.family}'s default is {config.longest}"
        yield Finding("note", "default-longest", "max_position_embeddings", problem)
    for key in ("head_dim", "hidden_size", "num_attention_heads"):
        called, value = config.find(key)
        if called and value is not None and (whole(value) or 0) <= 0:
            yield Finding("error", "size", called, f"must be a whole number above 0, and is {value!r}")
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if config.head is None:
        problem = "neither it nor hidden_size ÷ num_attention_heads is known: lanes cannot be counted"
        yield Finding("warning", "no-head", "head_dim", problem)
    elif not config.raw.get("head_dim") and width and heads and config.head == width // heads and width % heads:
        problem = f"{width} is no multiple of {heads} heads, and there is no head_dim"
        yield Finding("error", "odd-width", config.called("hidden_size"), problem)


def half_precision(config: Config) -> Iterator[Finding]:
    name = config.find("torch_dtype")[0]
    if config.half and name and not config.encodes and not config.is_gguf:
        dtype = str(config.raw[name]).removeprefix("torch.")
        rounds = "by up to 0.4 %" if dtype == "bfloat16" else "by 0.05 % and more"
        yield Finding(
            "note",
            "half-buffers",
            name,
            f"is {dtype}: from_pretrained keeps the frequencies in fp32, but model.to(torch.{dtype}) rounds them "
            f"{rounds}, and at long inputs lanes are radians off",
            f'from_pretrained(…, dtype="{dtype}"), never .to() or .half()',
        )


def original_is_shorter(entry: Entry) -> Iterator[Finding]:
    value, field = entry.original
    longest, original = entry.config.longest, number(value)
    if field == LENGTH and value is not None and (whole(value) or 0) <= 0:
        yield Finding("error", "original", field, f"must count tokens, and is {value!r}")
    elif field and original is not None and original <= 0:
        yield Finding("error", "original", field, f"must count tokens, and is {value!r}")
    elif field and original and longest and original > longest:
        yield Finding(
            "error",
            "original-longer",
            field,
            f"is {value}, above max_position_embeddings, {longest}: the length before extension exceeds that after",
            f"{longest}, or raise max_position_embeddings",
        )


def one_original(entry: Entry) -> Iterator[Finding]:
    inner, (outer, field) = entry.given.get(LENGTH), entry.original
    if inner is not None and inner != outer:
        whose = "" if field else f", the default of {entry.config.family}"
        problem = f"is {outer}{whose}, and {entry.at(LENGTH)} {inner}: transformers takes the former, others the latter"
        yield Finding("error", "originals-disagree", LENGTH, problem, "make them equal")


OF_CONFIG = (
    has_rope,
    family_is_known,
    shares_agree,
    sizes_are_known,
    half_precision,
)
OF_ENTRY = (base_is_one, base_is_the_same, channels_turn_in_pairs, original_is_shorter, one_original)
