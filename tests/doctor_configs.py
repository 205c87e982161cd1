"""Configurations as they are published and as they go wrong, each with what the doctor must find in it."""

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rope_scaling": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
DEEPSEEK = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
PHI3 = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "sliding_window": 262144,
}
LONG = [1.0 + 0.5 * i for i in range(48)]
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": LONG}
LONG64 = {"short_factor": [1.0] * 64, "long_factor": LONG + [32.0] * 16}
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "num_attention_heads": 8,
    "head_dim": 256,
    "num_hidden_layers": 34,
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_hidden_layers": 36,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rope_scaling": None,
}


def llama(scaling: object = None, **fields: object) -> dict:
    """Llama with another rope_scaling; max_position_embeddings as raised by a factor of 4."""
    raised = {"max_position_embeddings": 32768} if isinstance(scaling, dict) else {}
    return LLAMA | raised | {"rope_scaling": scaling} | fields


def without(config: dict, *names: str) -> dict:
    return {name: value for name, value in config.items() if name not in names}


GOOD = {
    "Llama-2-7b": (
        without(LLAMA, "rope_theta") | {"max_position_embeddings": 4096, "torch_dtype": "float16"},
        "note half-buffers, note missing-base",
    ),
    "Llama-3.1-8B": (
        LLAMA | {"max_position_embeddings": 131072, "rope_scaling": LLAMA3, "torch_dtype": "bfloat16"},
        "note v4-form, note half-buffers",
    ),
    "Llama-3.2-1B": (
        LLAMA
        | {"hidden_size": 2048, "head_dim": 64, "max_position_embeddings": 131072}
        | {"rope_scaling": LLAMA3 | {"factor": 32.0}},
        "note v4-form",
    ),
    "Llama-3.1-8B, v5": (
        without(LLAMA, "rope_theta", "rope_scaling")
        | {"max_position_embeddings": 131072, "rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
        "note v5-form",
    ),
    "Llama-3.1-8B, both forms": (
        LLAMA
        | {"max_position_embeddings": 131072, "rope_scaling": LLAMA3}
        | {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
        "note both-forms",
    ),
    "Llama-2-7B-32K": (
        LLAMA
        | {"rope_theta": 10000.0, "max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": 8.0}},
        "note v4-form, note linear-length",
    ),
    "CodeLlama-7b": (LLAMA | {"rope_theta": 1000000, "max_position_embeddings": 16384}, ""),
    "Yarn-Llama-2-7b-64k": (
        LLAMA
        | {"rope_theta": 10000.0, "max_position_embeddings": 65536}
        | {
            "rope_scaling": {
                "type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 4096,
                "finetuned": True,
            }
        },
        "note v4-form",
    ),
    "Qwen2.5-7B, as its card extends it": (
        {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 32768}
        | {"rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28}
        | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        "note v4-form, note longest-not-raised",
    ),
    "Qwen3-8B": (QWEN3, ""),
    "Qwen2-VL-7B": (
        {"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 32768}
        | {"rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        "note v4-form, note old-type",
    ),
    "Gemma-2-9b": (
        {"model_type": "gemma2", "hidden_size": 3584, "num_attention_heads": 16, "head_dim": 256}
        | {"num_hidden_layers": 42, "max_position_embeddings": 8192, "rope_theta": 10000.0, "sliding_window": 4096},
        "note window",
    ),
    "Gemma-3-4b": (
        GEMMA3
        | {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        "note v4-form, note window, note linear-length",
    ),
    "Gemma-3-4b, of several parts": (
        {"model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152}}
        | {
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
            | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 1024}
        },
        "note v4-form, note default-longest, note half-buffers, note window, note missing-base, note linear-length",
    ),
    "Gemma-3-4b, v5": (
        GEMMA3
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        },
        "note v5-form, note window, note linear-length",
    ),
    "Phi-3-mini-128k": (PHI3 | {"rope_scaling": LONGROPE}, "note v4-form, note window"),
    "Phi-3.5-MoE": (
        {"model_type": "phimoe", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072}
        | {"rope_theta": 10000.0, "sliding_window": 131072}
        | {
            "rope_scaling": LONG64
            | {"type": "longrope", "short_mscale": 1.2438, "long_mscale": 1.2438}
            | {"original_max_position_embeddings": 4096}
        },
        "warning never-long, note v4-form, note window",
    ),
    "gpt-oss-20b": (
        {"model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64}
        | {"num_hidden_layers": 24, "max_position_embeddings": 131072, "rope_theta": 150000, "sliding_window": 128}
        | {
            "rope_scaling": YARN
            | {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
            | {"original_max_position_embeddings": 4096}
        },
        "note v4-form, note window",
    ),
    "DeepSeek-V3": (
        {"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "qk_rope_head_dim": 64}
        | {"max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": DEEPSEEK},
        "note v4-form, note mscale-cancels",
    ),
    "SmolLM2-135M": (
        LLAMA | {"hidden_size": 576, "num_attention_heads": 9, "rope_theta": 100000, "rope_interleaved": False},
        "",
    ),
    "SmolLM3-3B": (
        {"model_type": "smollm3", "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 36}
        | {"max_position_embeddings": 65536, "rope_theta": 5000000.0, "no_rope_layers": [1, 1, 1, 0] * 9}
        | {"no_rope_layer_interval": 4, "rope_scaling": None, "sliding_window": None},
        "note no-rope-layers",
    ),
    "Pythia-160m": (
        {"model_type": "gpt_neox", "hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 2048}
        | {"rotary_pct": 0.25, "rotary_emb_base": 10000},
        "",
    ),
    "OLMo-1B": (
        {"model_type": "olmo", "hidden_size": 2048, "num_attention_heads": 16, "max_position_embeddings": 2048}
        | {"rope_theta": 10000.0, "rope_scaling": None, "clip_qkv": None},
        "",
    ),
    "Mistral-7B": (
        {"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 32768}
        | {"rope_theta": 10000.0, "sliding_window": 4096},
        "note window",
    ),
    "Mistral-Nemo": (
        {"model_type": "mistral", "hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128}
        | {"max_position_embeddings": 131072, "rope_theta": 1000000.0, "sliding_window": None},
        "",
    ),
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_ctx": 1024},
        "note no-rope",
    ),
    "BLOOM": ({"model_type": "bloom", "n_embed": 1024, "num_attention_heads": 16, "n_layer": 24}, "note no-rope"),
    "Falcon-RW": (
        {"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "alibi": True},
        "note no-rope",
    ),
    "GPT-J-6B": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64},
        "note missing-base",
    ),
    "ELECTRA": (
        {"model_type": "electra", "hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 512},
        "note no-rope",
    ),
    "a run of the lab": (
        {"model_type": "context-lab", "width": 128, "heads": 4, "train_length": 128, "positional": "alibi"},
        "note no-rope",
    ),
}

BAD = {
    "no rope_type": (llama({"factor": 4.0}), "error missing-type, note v4-form"),
    "ntk": (llama({"type": "ntk", "factor": 4.0}), "error unknown-type, note v4-form"),
    "a type in capitals": (llama(YARN | {"rope_type": "YARN"}), "error unknown-type, note v4-form"),
    "a misspelt type": (llama({"rope_type": "liner", "factor": 4.0}), "error unknown-type, note v4-form"),
    "mrope for text": (llama({"type": "mrope", "mrope_section": [16, 24, 24]}), "error unknown-type, note v4-form"),
    "su for Llama": (
        llama(LONG64 | {"type": "su", "original_max_position_embeddings": 8192}),
        "error unknown-type, warning cache-mixes, note v4-form",
    ),
    "two types": (llama(YARN | {"type": "linear"}), "error types-disagree, note v4-form"),
    "no factor": (llama({"rope_type": "linear"}), "error missing-key, note v4-form"),
    "a misspelt key": (llama(YARN | {"beta_fst": 16}), "error typo, note v4-form"),
    "a key of nobody": (llama(YARN | {"warmth": 16}), "warning unknown-key, note v4-form"),
    "a key of another type": (llama(YARN | {"low_freq_factor": 1.0}), "warning other-types-key, note v4-form"),
    "a misspelt field": (
        without(LLAMA, "rope_theta") | {"rope_thetha": 500000.0},
        "error typo, note missing-base",
    ),
    "a misspelt dictionary": (LLAMA | {"rope_scalling": YARN}, "error typo"),
    "text for a number": (llama({"rope_type": "linear", "factor": "4.0"}), "error not-a-number, note v4-form"),
    "true for a number": (llama({"rope_type": "linear", "factor": True}), "error not-a-number, note v4-form"),
    "null for a number": (
        llama({"rope_type": "dynamic", "factor": None}, max_position_embeddings=8192),
        "error not-a-number, warning dynamic-remembers, note v4-form",
    ),
    "infinite": (llama({"rope_type": "linear", "factor": float("inf")}), "error not-a-number, note v4-form"),
    "text for a flag": (llama(YARN | {"truncate": "false"}), "error not-a-flag, note v4-form"),
    "text for a dictionary": (llama("yarn"), "error not-a-dictionary"),
    "factor below 1": (llama({"rope_type": "linear", "factor": 0.25}), "error factor-below-1, note v4-form"),
    "factor 1": (llama({"rope_type": "linear", "factor": 1.0}), "warning factor-1, note v4-form"),
    "yarn without its length": (
        llama(without(YARN, "original_max_position_embeddings")),
        "error missing-original, note v4-form",
    ),
    "llama3 without its length": (
        llama(without(LLAMA3, "original_max_position_embeddings")),
        "error missing-original, note v4-form",
    ),
    "llama3 without a base": (without(llama(LLAMA3), "rope_theta"), "error missing-base, note v4-form"),
    "llama3 without its bounds": (
        llama(without(LLAMA3, "low_freq_factor", "high_freq_factor")),
        "error missing-key, note v4-form",
    ),
    "llama3 upside down": (
        llama(LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 4.0}),
        "error ramp-inverted, note v4-form",
    ),
    "llama3 not raised": (llama(LLAMA3, max_position_embeddings=8192), "warning longest-not-raised, note v4-form"),
    "yarn of another factor": (llama(YARN | {"factor": 8.0}), "warning factor-mismatch, note v4-form"),
    "yarn of the factor null": (llama(YARN | {"factor": None}), "note v4-form, note factor-derived"),
    "original above the longest": (llama(YARN, max_position_embeddings=4096), "error original-longer, note v4-form"),
    "two originals": (
        llama(YARN, original_max_position_embeddings=4096),
        "error originals-disagree, warning factor-mismatch, note v4-form",
    ),
    "growth given": (llama(YARN | {"attention_factor": 1}), "note v4-form, note growth-whole, note growth-replaced"),
    "growth of 0": (llama(YARN | {"attention_factor": 0.0}), "error growth, note v4-form"),
    "one mscale": (llama(YARN | {"mscale": 0.707}), "warning mscale-alone, note v4-form"),
    "mscale in Llama": (llama(YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}), "warning mscale-cancels, note v4-form"),
    "betas upside down": (llama(YARN | {"beta_fast": 1, "beta_slow": 32}), "error ramp-inverted, note v4-form"),
    "beta 0": (llama(YARN | {"beta_slow": 0}), "warning beta-0, note v4-form"),
    "trained on 6 tokens": (
        llama(YARN | {"original_max_position_embeddings": 6}, max_position_embeddings=24),
        "error too-short, note v4-form",
    ),
    "trained on 128 tokens": (
        llama(YARN | {"original_max_position_embeddings": 128}, max_position_embeddings=512),
        "note v4-form, note short-training",
    ),
    "truncate for one type of layer": (
        GEMMA3
        | {
            "rope_parameters": {
                "full_attention": YARN | {"rope_theta": 1e6, "factor": 16.0, "truncate": False},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
        "warning truncate-ignored, note v5-form, note window",
    ),
    "a window slowed": (
        GEMMA3
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
            }
        },
        "warning scaled-window, note v5-form, note window, note linear-length",
    ),
    "a misspelt type of layer": (
        GEMMA3
        | {
            "rope_parameters": {
                "full_atention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
        "error unknown-layers, note v5-form, note window, note linear-length",
    ),
    "types for layers without": (
        without(LLAMA, "rope_theta", "rope_scaling")
        | {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}},
        "error layers-untyped, note v5-form",
    ),
    "a type of layer left out": (
        without(QWEN3, "rope_theta", "rope_scaling")
        | {"layer_types": ["full_attention", "sliding_attention"] * 18}
        | {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
        "error layers-left-out, note v5-form",
    ),
    "no RoPE in one type of layer": (
        without(QWEN3, "rope_theta", "rope_scaling")
        | {
            "layer_types": ["full_attention", "sliding_attention"] * 18,
            "sliding_window": 4096,
            "use_sliding_window": True,
        }
        | {
            "rope_parameters": {
                "full_attention": None,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e6},
            }
        },
        "note v5-form, note no-rope-layers, note window",
    ),
    "v5 without a base": (
        without(LLAMA, "rope_theta", "rope_scaling") | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        "warning missing-base, note v5-form, note linear-length",
    ),
    "two forms": (
        llama(YARN, rope_parameters=YARN | {"rope_theta": 500000.0, "factor": 8.0}),
        "error forms-disagree",
    ),
    "two bases": (
        without(LLAMA, "rope_scaling") | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        "error bases-disagree",
    ),
    "a base of 1": (LLAMA | {"rope_theta": 1}, "error base"),
    "a base in text": (LLAMA | {"rope_theta": "5e5"}, "error not-a-number"),
    "no base at all": (LLAMA | {"rope_theta": None}, "error not-a-number"),
    "lists too short": (
        PHI3 | {"rope_scaling": LONGROPE | {"long_factor": LONG[:47]}},
        "error list-length, note v4-form, note window",
    ),
    "a list with a zero": (
        PHI3 | {"rope_scaling": LONGROPE | {"long_factor": [0.0, *LONG[1:]]}},
        "error list-values, note v4-form, note window",
    ),
    "a number for a list": (
        PHI3 | {"rope_scaling": LONGROPE | {"long_factor": 32.0}},
        "error not-a-list, note v4-form, note window",
    ),
    "longrope of another factor": (
        PHI3 | {"rope_scaling": LONGROPE | {"factor": 16.0}},
        "warning factor-mismatch, note v4-form, note window",
    ),
    "longrope in Llama": (
        llama(LONG64 | {"rope_type": "longrope", "original_max_position_embeddings": 8192}),
        "warning cache-mixes, note v4-form",
    ),
    "su in Phi-3": (
        PHI3 | {"rope_scaling": LONGROPE | {"type": "su"}},
        "error old-type, note v4-form, note window",
    ),
    "su in Phi-3, with its length": (
        PHI3 | {"rope_scaling": LONGROPE | {"type": "su", "original_max_position_embeddings": 4096}},
        "note v4-form, note window, note old-type",
    ),
    "yarn in Phi-3": (
        PHI3 | {"rope_scaling": {"type": "yarn", "factor": 32.0}},
        "error phi3-type, note v4-form, note window",
    ),
    "linear in Phi-3": (
        PHI3 | {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "error phi3-type, note v4-form, note window",
    ),
    "Phi-MoE with its length beside": (
        {"model_type": "phimoe", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072}
        | {"rope_theta": 10000.0, "original_max_position_embeddings": 4096}
        | {"rope_scaling": LONG64 | {"type": "longrope", "short_mscale": 1.2438, "long_mscale": 1.2438}},
        "error missing-original, warning never-long, note v4-form",
    ),
    "Phi-MoE without mscales": (
        {"model_type": "phimoe", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072}
        | {
            "rope_theta": 10000.0,
            "rope_scaling": LONG64 | {"type": "longrope", "original_max_position_embeddings": 4096},
        },
        "error missing-key, warning never-long, note v4-form",
    ),
    "dynamic": (
        llama({"type": "dynamic", "factor": 4.0}, max_position_embeddings=8192),
        "warning dynamic-remembers, note v4-form",
    ),
    "dynamic, raised": (
        llama(YARN | {"rope_type": "dynamic"}),
        "error dynamic-raised, warning dynamic-remembers, note v4-form",
    ),
    "proportional without a share": (
        without(LLAMA, "rope_theta", "rope_scaling")
        | {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e6, "factor": 2.0}},
        "warning missing-share, warning factor-not-everywhere, note v5-form",
    ),
    "a share above 1": (LLAMA | {"partial_rotary_factor": 1.5}, "error share"),
    "a share that Llama ignores": (LLAMA | {"partial_rotary_factor": 0.5}, "warning share-ignored"),
    "a share that breaks Llama": (
        llama(YARN, partial_rotary_factor=0.5),
        "error share-ignored, note v4-form, note growth-partial",
    ),
    "a share of 3 channels": (
        {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
        | {"rotary_pct": 0.2, "rotary_emb_base": 10000},
        "warning odd-share",
    ),
    "two shares": (
        {"model_type": "gpt_neox", "hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 2048}
        | {"rotary_pct": 0.25, "partial_rotary_factor": 0.5, "rotary_emb_base": 10000},
        "warning shares-disagree",
    ),
    "an odd head": (LLAMA | {"head_dim": 127}, "error odd-head"),
    "heads that do not fit": (LLAMA | {"hidden_size": 4097}, "error odd-width"),
    "no longest": (without(LLAMA, "max_position_embeddings"), "note default-longest"),
    "a longest in text": (LLAMA | {"max_position_embeddings": "8k"}, "error longest"),
    "layers in a list too short": (
        {"model_type": "smollm3", "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 36}
        | {"max_position_embeddings": 65536, "rope_theta": 5000000.0, "no_rope_layers": [1, 1, 1, 0] * 8},
        "error no-rope-layers-length, note no-rope-layers",
    ),
    "RoPE in GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "rope_scaling": YARN},
        "warning rope-unused, note no-rope",
    ),
    "a family of nobody": (LLAMA | {"model_type": "lama"}, "warning unknown-family"),
    "no family": (without(LLAMA, "model_type"), "error no-family"),
    "nothing": ({}, "error no-family, warning no-longest, warning no-head, note missing-base"),
}
