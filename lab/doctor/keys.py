"""The words of a RoPE configuration: the types there are, which keys each takes, and what a key means."""

from dataclasses import dataclass

LENGTH = "original_max_position_embeddings"


@dataclass(frozen=True)
class Type:
    says: str
    needs: tuple[str, ...] = ()  # transformers raises KeyError without them
    takes: tuple[str, ...] = ()


TYPES = {
    "default": Type("plain RoPE, as trained"),
    "linear": Type("Position Interpolation: every lane slowed by the factor", ("factor",)),
    "dynamic": Type("dynamic NTK: the base grows with the length that is run", ("factor",)),
    "yarn": Type(
        "YaRN: fast lanes kept, slow ones slowed by the factor, a ramp between; scores grow",
        ("factor",),
        (LENGTH, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": Type(
        "LongRoPE: each lane slowed by a number of its own, in two lists for short and long inputs; scores grow",
        ("short_factor", "long_factor"),
        (LENGTH, "factor", "attention_factor", "short_mscale", "long_mscale"),
    ),
    "llama3": Type(
        "Llama 3.1: fast lanes kept, slow ones slowed by the factor, a ramp in turns between",
        ("factor", "low_freq_factor", "high_freq_factor"),
        (LENGTH,),
    ),
    "proportional": Type(
        "p-RoPE: the first share of lanes turn, the others stand still", (), ("factor", "partial_rotary_factor")
    ),
    "axial": Type("RoPE over rows and columns of an image"),
}
"""What transformers 5.24 knows. The original length is not among what is needed: it fills that in by itself."""

OLD_NAMES = {"su": "longrope", "mrope": "default"}
EVERY = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
HARMLESS = ("finetuned",)
"""Written by the YaRN authors' scripts; read by nothing that matters here."""
LISTS = ("short_factor", "long_factor", "mrope_section")
WORDS = ("rope_type", "type")
FLAGS = ("truncate", "mrope_interleaved", *HARMLESS)

TOP = (
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "max_position_embeddings",
    LENGTH,
    "head_dim",
    "hidden_size",
    "num_attention_heads",
    "layer_types",
    "sliding_window",
    "no_rope_layers",
    "no_rope_layer_interval",
)
"""Fields beside the RoPE dictionary that decide what it means."""

MEANINGS = {
    "rope_type": "which scheme",
    "type": "which scheme, under its old name; transformers now writes rope_type",
    "rope_theta": "the base: the slowest lane turns once in about 2π·base tokens",
    "rotary_emb_base": "the base, as GPT-NeoX calls it",
    "rope_local_base_freq": "the base of layers that see a window only",
    "factor": "how many times longer than in training inputs are to be",
    LENGTH: "L0, the length of training before the extension; every ramp is computed from it",
    "max_position_embeddings": "the longest input it is meant for; for dynamic and default, also that of training",
    "attention_factor": "queries and keys are multiplied by it, in place of the scheme's own growth",
    "beta_fast": "lanes with more turns than this within L0 are kept",
    "beta_slow": "lanes with fewer turns than this within L0 slow down by the whole factor",
    "mscale": "with mscale_all_dim, queries and keys grow by (0.1·mscale·ln s + 1) / (0.1·mscale_all_dim·ln s + 1)",
    "mscale_all_dim": "see mscale; some families also multiply the softmax scale by (0.1·mscale_all_dim·ln s + 1)²",
    "truncate": "whether the ramp begins and ends at whole lanes",
    "short_factor": "what each lane is slowed by, for inputs up to L0",
    "long_factor": "what each lane is slowed by, for inputs beyond L0",
    "short_mscale": "growth of queries and keys up to L0; PhiMoE and vLLM read it, no one else",
    "long_mscale": "growth of queries and keys beyond L0; PhiMoE and vLLM read it, no one else",
    "low_freq_factor": "lanes with fewer turns than this within L0 slow down by the whole factor",
    "high_freq_factor": "lanes with more turns than this within L0 are kept",
    "partial_rotary_factor": "the share of a head's channels that turn",
    "rotary_pct": "the share of a head's channels that turn, as GPT-NeoX calls it",
    "rotary_dim": "how many of a head's channels turn",
    "qk_rope_head_dim": "how many channels turn, beside those of the head that never do (multi-head latent attention)",
    "head_dim": "channels of a head",
    "hidden_size": "channels of the model; ÷ num_attention_heads is a head's, where head_dim does not say it",
    "num_attention_heads": "query heads",
    "layer_types": "which layers see all and which a window; each type has a RoPE of its own where the file nests them",
    "sliding_window": "tokens that a layer of that type sees: no distance is longer there",
    "sliding_window_pattern": "every so-manieth layer sees all, the others a window",
    "no_rope_layers": "1: the layer has RoPE; 0: it has none (the name says the opposite)",
    "no_rope_layer_interval": "every so-manieth layer has no RoPE",
    "mrope_section": "how lanes are dealt out to time, height and width; text has all three alike, which is plain RoPE",
    "torch_dtype": "the dtype of the weights",
    "dtype": "the dtype of the weights",
    "finetuned": "written by the YaRN authors' scripts, read by nothing here",
}
