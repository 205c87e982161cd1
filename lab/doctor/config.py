"""A model's configuration as its file has it: fields by any of their names, and the family's default for the rest."""

from dataclasses import dataclass, field
from typing import Any

from lab.doctor import family
from lab.doctor.finding import whole
from lab.rope.otherwise import OTHERWISE

TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a model of several parts keeps that of its language model."""
ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_dim")
"""A model without any of these has no RoPE."""
DTYPES = ("torch_dtype", "dtype")
"""Stands beside the parts, for all of them."""
ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
    "rope_theta": ("rotary_emb_base", "global_rope_theta"),
    "rope_local_base_freq": ("local_rope_theta",),
    "partial_rotary_factor": ("rotary_pct", "rope_pct", "rotary_percentage"),
    "torch_dtype": ("dtype",),
}


@dataclass(frozen=True)
class Config:
    raw: dict[str, Any]  # of the language model
    names: dict[str, str] = field(default_factory=dict)  # how the file calls a field, where it is no config.json
    part: str = ""  # where in the file it stands: text_config, of a model of several parts
    usual: Any = None  # the family's configuration with nothing but defaults
    types: tuple[str, ...] = ()  # the type of each layer, where layers have types
    labels: tuple[str, ...] = ()  # what RoPEs may be nested under

    @property
    def family(self) -> str:
        return str(self.raw.get("model_type", ""))

    @property
    def is_gguf(self) -> bool:
        return bool(self.names)

    @property
    def reader(self) -> str:
        return "llama.cpp" if self.is_gguf else "transformers"

    def find(self, name: str) -> tuple[str, Any]:
        """What the file calls a field, and its value there; ("", None): it does not say."""
        for one in (name, *ALIASES.get(name, ())):
            if one in self.raw:
                return one, self.raw[one]
        return "", None

    def value(self, name: str) -> Any:
        """What the file says, null included, else the family's default."""
        found, value = self.find(name)
        return value if found else getattr(self.usual, name, None)

    def called(self, name: str) -> str:
        """A field as the file calls it."""
        return self.names.get(name) or self.find(name)[0] or name

    def whole(self, name: str) -> int | None:
        return whole(self.value(name))

    def path(self, field: str) -> str:
        """A field as a path from the top of the file."""
        return f"{self.part}.{field}" if self.part and field not in DTYPES else field

    @property
    def longest(self) -> int | None:
        """max_position_embeddings, if it is a length at all."""
        found = self.whole("max_position_embeddings")
        return found if found and found > 0 else None

    @property
    def head(self) -> int | None:
        """Channels of a head among which RoPE has its own."""
        for name in ("qk_rope_head_dim", "head_dim"):
            if found := whole(self.raw.get(name)) or self.declared(name):
                return found
        width, heads = self.whole("hidden_size"), self.whole("num_attention_heads")
        return width // heads if width and heads and width > 0 and heads > 0 else None

    def declared(self, name: str) -> int | None:
        """A default that the family's class states, and does not derive from other fields."""
        return whole(getattr(type(self.usual), name, None))

    @property
    def half(self) -> bool:
        """Whether the file's weights are in half precision."""
        return str(self.find("torch_dtype")[1]).removeprefix("torch.") in ("bfloat16", "float16")

    @property
    def encodes(self) -> str | None:
        """What encodes position where it is not RoPE."""
        if self.family in OTHERWISE:
            return OTHERWISE[self.family]
        if self.raw.get("alibi") is True:
            return OTHERWISE["bloom"]
        if self.usual is None or hasattr(self.usual, "rope_parameters") or any(self.find(name)[0] for name in ROPE):
            return None
        return "something else: neither the file nor the family's defaults have a RoPE"


def of(raw: dict[str, Any], names: dict[str, str] | None = None) -> Config:
    """The configuration that a file's dictionary holds; of a model of several parts, that of its language model."""
    parts: list[str] = []
    while name := next((name for name in TEXT if isinstance(raw.get(name), dict)), None):
        raw = {key: raw[key] for key in DTYPES if key in raw} | raw[name]
        parts.append(name)
    kind = raw.get("model_type")
    usual = family.defaults(kind) if isinstance(kind, str) and not names else None  # llama.cpp has its own defaults
    types = family.layer_types(usual, raw)
    return Config(raw, names or {}, ".".join(parts), usual, tuple(types), tuple(family.labels(usual, types)))
