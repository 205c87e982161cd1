"""transformers' types of RoPE, and the encodings of the lab that they are."""

BY_TYPE = {
    "default": ("rope", {}),
    "linear": ("rope-linear", {"factor": "factor"}),
    "dynamic": ("rope-dynamic", {"factor": "factor"}),
    "yarn": (
        "rope-yarn",
        {
            "factor": "factor",
            "beta_fast": "fast",
            "beta_slow": "slow",
            "truncate": "truncate",
            "attention_factor": "attention_factor",
            "mscale": "mscale",
            "mscale_all_dim": "mscale_all_dim",
        },
    ),
    "longrope": (
        "rope-longrope",
        {
            "short_factor": "short",
            "long_factor": "long",
            "factor": "factor",
            "attention_factor": "attention_factor",
        },
    ),
    "llama3": ("rope-llama3", {"factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high"}),
    "proportional": ("rope-proportional", {"partial_rotary_factor": "share", "factor": "factor"}),
}
"""transformers' type of RoPE -> our kind, and its keys -> our options."""

WITH_ORIGINAL = ("yarn", "longrope", "llama3")
"""The types that say the train length themselves; of the others it is the longest input of the configuration."""
