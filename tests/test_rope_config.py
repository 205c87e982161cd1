"""transformers' configurations as the lab says them: the numbers of its own rotary modules are the oracle."""

import sys

import families
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    Cohere2Config,
    Exaone4Config,
    Glm4MoeConfig,
    GPT2Config,
    Qwen2VLConfig,
    RecurrentGemmaConfig,
)

from lab import LabError
from lab.rope.config import described
from lab.rope.modules import rotary_modules, turns

L0 = 64
LENGTHS = (1, 40, L0, L0 + 1, 200, 512)
LISTS = {"short_factor": [1.0] * 4 + [1.1, 1.2, 1.3, 1.5], "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]}
LONG = {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": L0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": L0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

TABLE = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear by two": {"rope_type": "linear", "factor": 2},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn from afar": YARN | {"original_max_position_embeddings": 1000},
    "yarn, whole lanes or not": YARN | {"truncate": False, "original_max_position_embeddings": 1000},
    "yarn, ramp": YARN | {"beta_fast": 8, "beta_slow": 2.0},
    "yarn, ramp of zeros": YARN | {"beta_fast": 0, "beta_slow": 0},
    "yarn, growth": YARN | {"attention_factor": 1.5},
    "yarn without growth": YARN | {"attention_factor": 1.0},
    "yarn, two growths": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8},
    "yarn, one growth": YARN | {"mscale": 0.707},
    "yarn, growth of all": YARN | {"mscale": 0.707, "mscale_all_dim": 0.0},
    "yarn, factor by the lengths": YARN | {"factor": None},
    "longrope": LONG | {"factor": 8.0},
    "longrope, factor by the lengths": LONG,
    "longrope, growth": LONG | {"factor": 8.0, "attention_factor": 1.25},
    "longrope, no longer": LONG | {"factor": 0.5},
    "llama3": LLAMA3 | {"original_max_position_embeddings": L0},
    "llama3, ramp": LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 7, "original_max_position_embeddings": 640},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.6},
    "proportional, slower": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 4.0},
    "proportional, all": {"rope_type": "proportional"},
}
"""rope_parameters, for heads of 16 channels."""


def longest(parameters: dict) -> int:
    """max_position_embeddings: of a type that does not say its train length it is the train length."""
    return 512 if "original_max_position_embeddings" in parameters else L0


def assert_same_turns(config) -> None:
    """What transformers computes of a configuration is what the lab says of it, at every length and for every layer."""
    said = described(config)
    for length in LENGTHS:
        found = list(rotary_modules(families.built(config)))  # anew: some remember the longest input so far
        assert found
        for _, module, types in found:
            for layer_type in types:
                wanted, growth = turns(module, layer_type, length)
                scheme = said.rotations[layer_type].scheme()
                got = scheme.frequencies(length)
                assert wanted.dtype == torch.float32
                torch.testing.assert_close(got, wanted.double(), rtol=1e-6, atol=0)
                assert scheme.gain(length) == pytest.approx(growth, rel=1e-6)
                assert 2 * len(wanted) == said.rotations[layer_type].size


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_each_type_turns_as_transformers_computes_it(name, base):
    parameters = TABLE[name] | {"rope_theta": base}
    assert_same_turns(families.config("llama", rope_parameters=parameters, max_position_embeddings=longest(parameters)))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_each_family_as_it_comes(family):
    assert_same_turns(families.config(family))


@pytest.mark.parametrize("name", ["linear", "dynamic", "yarn from afar", "longrope", "llama3"])
def test_a_share_of_each_head(name):
    """GPT-NeoX turns 8 of 16 channels, and scales them as it would a head of 8."""
    parameters = TABLE[name] | {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    if name == "longrope":
        parameters |= {"short_factor": LISTS["short_factor"][:4], "long_factor": LISTS["long_factor"][:4]}
    config = families.config("gpt_neox", rope_parameters=parameters, max_position_embeddings=longest(parameters))
    assert_same_turns(config)
    assert described(config).rotations[""].size == 8


def test_llama_has_no_share_of_each_head():
    """With the default type it ignores partial_rotary_factor, and so does its description."""
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = families.config("llama", rope_parameters=parameters)
    assert_same_turns(config)
    assert described(config).rotations[""].size == 16


@pytest.mark.parametrize("name", ["linear", "dynamic", "yarn", "longrope", "llama3", "proportional"])
def test_each_type_of_layer_by_itself(name):
    local, full = {"rope_type": "default", "rope_theta": 10000.0}, TABLE[name] | {"rope_theta": 1e6}
    parameters = {"sliding_attention": local, "full_attention": full}
    config = families.config("gemma3", rope_parameters=parameters, max_position_embeddings=longest(TABLE[name]))
    assert_same_turns(config)
    said = described(config)
    assert said.layers == ("sliding_attention", "full_attention") * 2 and said.main == "full_attention"
    assert said.of(0).spec == {"kind": "rope", "base": 10000.0} and said.of(1).spec["base"] == 1e6


def test_the_train_length_is_what_the_type_calls_so():
    def length(**parameters) -> int:
        parameters |= {"rope_theta": 10000.0}
        config = families.config("llama", rope_parameters=parameters, max_position_embeddings=512)
        return described(config).rotations[""].train_length

    assert length(**YARN) == length(**LONG) == L0
    assert length(**LLAMA3) == 512  # says none itself
    assert length(rope_type="dynamic", factor=2.0) == length(rope_type="default") == 512


def test_layers_without_positions():
    assert described(families.config("smollm3")).layers == ("", "", "", "nope")
    assert described(families.config("smollm3")).of(3).spec == "nope"
    parameters = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": None}
    said = described(families.config("gemma4", rope_parameters=parameters))
    assert said.of(0).spec["kind"] == "rope" and said.of(1).spec == "nope" and said.of(1).size == 32


def test_layers_without_positions_of_which_the_configuration_says_nothing():
    kinds = ["sliding_attention", "full_attention"] * 2
    for cls in (Cohere2Config, Exaone4Config):
        config = cls(**families.SIZES | {"num_hidden_layers": 4}, layer_types=kinds, sliding_window=8)
        assert described(config).layers == ("", "nope") * 2


@pytest.mark.parametrize(
    "parameters, said",
    [
        ({"rope_type": "axial"}, "llama: rope_type axial has no counterpart in the lab, which reads default, linear,"),
        ({"rope_type": "ntk_alpha", "alpha": 2.0}, "llama: rope_type ntk_alpha has no counterpart in the lab"),
        ({"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}, "have alpha, which no encoding of the lab does: Hu"),
        ({"rope_type": "default", "mrope_section": [2, 3, 3]}, "its lanes are shared out to time, height and width"),
        (LONG | {"factor": 8.0, "short_mscale": 1.2, "long_mscale": 1.3}, "_mscale, which no encoding of the lab does"),
        (YARN | {"llama_4_scaling_beta": 0.1}, "llama_4_scaling_beta, which no encoding of the lab does: queries grow"),
        (YARN | {"factor": 0.5}, "llama: rope-yarn: factor must be at least 1, or auto, got 0.5"),
        (
            YARN | {"original_max_position_embeddings": 4},
            "llama: rope-yarn: the train length must be at least 8 tokens",
        ),
        ({"rope_type": "default", "rope_theta": None}, "llama: rope_parameters have no rope_theta, without which"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(parameters, said):
    with pytest.raises(LabError) as refused:
        described(families.config("llama", rope_parameters={"rope_theta": 10000.0} | parameters))
    assert said in str(refused.value)


def test_a_setting_that_transformers_ignores_is_refused():
    """In nested rope_parameters 5.24 looks for truncate beside the types of layers, where it is not."""
    local = {"rope_type": "default", "rope_theta": 10000.0}
    full = YARN | {"rope_theta": 1e6, "truncate": False, "original_max_position_embeddings": 1000}
    config = families.config("gemma3", rope_parameters={"sliding_attention": local, "full_attention": full})
    with pytest.raises(LabError, match="gemma3_text, full_attention: transformers ignores truncate: false"):
        described(config)
    config.rope_parameters["full_attention"]["truncate"] = True
    assert_same_turns(config)


def test_models_that_turn_nothing_or_something_else_are_refused():
    with pytest.raises(LabError, match="gpt2 has no rope_parameters: it does not turn queries and keys"):
        described(GPT2Config())
    with pytest.raises(LabError, match="recurrent_gemma has no max_position_embeddings in its configuration"):
        described(RecurrentGemmaConfig())
    with pytest.raises(
        LabError, match="glm4_moe: its code makes other angles of rope_parameters than RoPE's, over 22 c"
    ):
        described(Glm4MoeConfig())  # 21 of 42 channels, which is half a pair
    with pytest.raises(LabError, match="its lanes are shared out to time, height and width"):
        described(
            Qwen2VLConfig(text_config={"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}})
        )


@pytest.mark.slow
def test_every_family_of_this_transformers_as_it_comes():
    """Each turns as its own rotary module does, or is refused in words of the lab; more than a hundred are read."""
    read = 0
    for family in MODEL_FOR_CAUSAL_LM_MAPPING._config_mapping:
        try:
            config = CONFIG_MAPPING[family]().get_text_config()
        except (ValueError, StrictDataclassError):  # needs more than its defaults
            continue
        try:
            said = described(config)
        except LabError:
            continue
        model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        owners = vars(sys.modules[model.__module__]).values() if model else ()
        for cls in [one for one in owners if hasattr(one, "compute_default_rope_parameters")]:
            module = cls(config=config)
            for layer_type, one in said.rotations.items():
                angles = getattr(module, f"{layer_type}_inv_freq" if layer_type else "inv_freq", None)
                if one.spec != "nope":
                    torch.testing.assert_close(angles.double(), one.scheme().frequencies(1), rtol=1e-6, atol=0)
                    read += 1
    assert read > 100
