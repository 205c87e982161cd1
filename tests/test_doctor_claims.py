"""What the doctor says transformers does, it does: every such claim tried on a tiny model of the installed version."""

import importlib
import json
import math
from pathlib import Path

import pytest
import torch
import transformers
from doctor_configs import BAD, GOOD
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lab.doctor import examine, lanes_of, of
from lab.doctor.entries import entries
from lab.doctor.family import SCALES_SOFTMAX, WHOLE_HEAD
from lab.doctor.lanes import Lanes
from lab.rope.otherwise import OTHERWISE

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "vocab_size": 32,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "pad_token_id": None,
}
"""Heads of 16 channels, 8 lanes."""
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}


def config_of(raw: dict):
    return CONFIG_MAPPING[raw["model_type"]](
        **{k: v for k, v in json.loads(json.dumps(raw)).items() if k != "model_type"}
    )


def model(**fields):
    return AutoModelForCausalLM.from_config(config_of(TINY | fields)).eval()


def rotary(**fields):
    return next(one for name, one in model(**fields).named_modules() if name.endswith("rotary_emb"))


def same(one: dict, other: dict) -> bool:
    """Up to one rounding: YaRN adds two shares of a frequency."""
    a, b = rotary(**one), rotary(**other)
    return torch.allclose(a.inv_freq, b.inv_freq, rtol=2e-7, atol=0) and a.attention_scaling == b.attention_scaling


def codes(fields: dict, tmp_path: Path) -> set[str]:
    raw = {name: value for name, value in (TINY | fields).items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return {one.code for one in examine(str(tmp_path)).findings if one.level != "note"}


def run(fields: dict) -> None:
    model(**fields)(torch.arange(100)[None] % 32)


# What fails


@pytest.mark.parametrize(
    ("code", "fields", "error", "said"),
    [
        ("unknown-type", {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, KeyError, "'ntk'"),
        ("unknown-type", {"rope_scaling": {"rope_type": "YARN", "factor": 2.0}}, KeyError, "'YARN'"),
        ("unknown-type", {"rope_scaling": LISTS | {"type": "su"}}, KeyError, "'su'"),
        ("unknown-type", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, KeyError, "'mrope'"),
        ("missing-key", {"rope_scaling": {"rope_type": "linear"}}, KeyError, "Missing required keys"),
        ("missing-key", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, KeyError, "Missing required keys"),
        ("not-a-number", {"rope_scaling": {"rope_type": "linear", "factor": "2.0"}}, TypeError, "unsupported operand"),
        ("not-a-number", {"rope_scaling": {"rope_type": "linear", "factor": None}}, TypeError, "unsupported operand"),
        ("not-a-number", {"rope_theta": None}, TypeError, "unsupported operand"),
        ("not-a-number", {"rope_theta": "10000"}, TypeError, "unsupported operand"),
        ("not-a-dictionary", {"rope_scaling": "linear"}, Exception, "rope_parameters"),
        ("longest", {"max_position_embeddings": "128"}, Exception, "max_position_embeddings"),
        (
            "list-length",
            {"rope_scaling": LISTS | {"rope_type": "longrope", "long_factor": [2.0] * 7}},
            RuntimeError,
            "7",
        ),
        (
            "list-values",
            {"rope_scaling": LISTS | {"rope_type": "longrope", "short_factor": ["a"] * 8}},
            ValueError,
            "str",
        ),
        ("share-ignored", {"partial_rotary_factor": 0.5, "rope_scaling": YARN}, RuntimeError, "must match the size"),
        ("odd-head", {"head_dim": 15}, Exception, "even rotary dimension|size of tensor"),
        ("odd-width", {"hidden_size": 66}, Exception, "not a multiple"),
        (
            "layers-left-out",
            {
                "model_type": "qwen3",
                "layer_types": ["full_attention", "sliding_attention"],
                "num_hidden_layers": 2,
                "rope_parameters": {"full_attention": {"rope_type": "default"}},
            },
            KeyError,
            "rope_type|sliding_attention",
        ),
        (
            "phi3-type",
            {"model_type": "phi3", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            Exception,
            "linear",
        ),
        (
            "old-type",
            {"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}},
            KeyError,
            "Missing",
        ),
        (
            "missing-key",
            {"model_type": "phimoe", "rope_scaling": LISTS | {"rope_type": "longrope"}},
            Exception,
            "short_mscale",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value else "",
)
def test_what_is_said_to_fail_fails(code, fields, error, said, tmp_path):
    """said: of two, the second is how transformers 5.17 says it."""
    assert code in codes(fields, tmp_path)
    with pytest.raises(error, match=said):
        run(fields)


# What goes on in silence


@pytest.mark.parametrize(
    ("code", "fields", "as_if"),
    [
        ("missing-type", {"rope_scaling": {"factor": 2.0}}, {}),
        ("factor-1", {"rope_scaling": {"rope_type": "linear", "factor": 1.0}}, {}),
        ("not-a-number", {"rope_scaling": {"rope_type": "linear", "factor": True}}, {}),
        ("typo", {"rope_scaling": YARN | {"beta_fst": 3}}, {"rope_scaling": YARN}),
        ("beta-0", {"rope_scaling": YARN | {"beta_slow": 0}}, {"rope_scaling": YARN}),
        ("mscale-alone", {"rope_scaling": YARN | {"mscale": 0.5}}, {"rope_scaling": YARN}),
        ("not-a-flag", {"rope_scaling": YARN | {"truncate": "false"}}, {"rope_scaling": YARN | {"truncate": True}}),
        ("types-disagree", {"rope_scaling": YARN | {"type": "linear"}}, {"rope_scaling": YARN}),
        (
            "missing-original",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            {"rope_scaling": YARN | {"original_max_position_embeddings": 128}},
        ),
        (
            "originals-disagree",
            {"rope_scaling": YARN, "original_max_position_embeddings": 32},
            {"rope_scaling": YARN | {"original_max_position_embeddings": 32}},
        ),
        (
            "forms-disagree",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 7777.0}
            | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 7777.0},
        ),
        (
            "bases-disagree",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 20000.0},
            {"rope_theta": 5e5},
        ),
        ("layers-untyped", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, {}),
        ("share-ignored", {"partial_rotary_factor": 0.5}, {}),
        ("dynamic-raised", {"rope_scaling": YARN | {"rope_type": "dynamic"}}, {}),
        (
            "missing-share",
            {"rope_scaling": {"rope_type": "proportional", "factor": 2.0}},
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            "phi3-type",
            {"model_type": "phi3", "rope_scaling": LISTS | {"rope_type": "yarn", "factor": 2.0}},
            {"model_type": "phi3", "rope_scaling": LISTS | {"rope_type": "longrope", "factor": 2.0}},
        ),
        (
            "originals-disagree",
            {"model_type": "phi3", "rope_scaling": LISTS | {"type": "su", "factor": 3.0}},
            {"model_type": "phi3", "original_max_position_embeddings": 4096}
            | {"rope_scaling": LISTS | {"type": "longrope", "factor": 3.0, "original_max_position_embeddings": 4096}},
        ),
        (
            "too-short",
            {"head_dim": 64, "rope_scaling": YARN | {"original_max_position_embeddings": 4, "attention_factor": 1.0}},
            {"head_dim": 64},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_said_to_be_silent_is_as_if_it_were_written_so(code, fields, as_if, tmp_path):
    assert code in codes(fields, tmp_path)
    assert same(fields, as_if)


def test_a_base_that_is_missing_is_the_family_s(tmp_path):
    raw = {name: value for name, value in TINY.items() if name != "rope_theta"}
    for family, base in (("llama", 1e4), ("smollm3", 2e6), ("phi3", 1e4), ("olmo", 1e4)):
        config = config_of(raw | {"model_type": family})
        assert config.rope_parameters["rope_theta"] == base
        (tmp_path / "config.json").write_text(json.dumps(raw | {"model_type": family}))
        (found,) = (one for one in examine(str(tmp_path)).findings if one.code == "missing-base")
        assert found.problem == f"is missing: transformers takes {base:g}"


def test_a_misspelt_type_of_layer_is_ignored_by_gemma():
    parameters = {
        "full_atention": {"rope_type": "linear", "factor": 2.0},
        "sliding_attention": {"rope_type": "default"},
    }
    config = config_of(TINY | {"model_type": "gemma3_text", "head_dim": 16, "rope_parameters": parameters})
    assert config.rope_parameters["full_attention"] == {"rope_type": "default", "rope_theta": 10000.0}


def test_truncate_is_ignored_for_one_type_of_layer():
    """Where it does count: beside the types, and in one dictionary for all."""
    full = YARN | {"rope_theta": 1e4, "truncate": False}
    gemma = {"model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 2, "sliding_window_pattern": 2}
    nested = [
        rotary(**gemma, rope_parameters={"full_attention": one, "sliding_attention": {"rope_type": "default"}})
        for one in (full, full | {"truncate": True})
    ]
    assert torch.equal(*(one.full_attention_inv_freq for one in nested))
    assert not same({"rope_scaling": YARN | {"truncate": False}}, {"rope_scaling": YARN | {"truncate": True}})


def test_dynamic_remembers_the_longest_input():
    one = rotary(rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    first = one.inv_freq.clone()
    at = {length: torch.arange(length)[None] for length in (60, 128, 512)}
    for length, stays in ((512, True), (128, True), (60, False)):
        one(torch.zeros(1), at[length])
        assert torch.equal(one.inv_freq, first) != stays


def test_phimoe_never_uses_the_long_list_and_phi3_does():
    lists = LISTS | {"rope_type": "longrope", "short_mscale": 1.0, "long_mscale": 1.0}
    positions, x = torch.arange(100)[None], torch.zeros(1)
    moe = {"model_type": "phimoe", "rope_scaling": lists}
    long, alike = rotary(**moe), rotary(**moe | {"rope_scaling": lists | {"long_factor": [1.0] * 8}})
    assert torch.equal(long(x, positions)[0], alike(x, positions)[0])
    lists = {name: value for name, value in lists.items() if "mscale" not in name}
    phi = {"model_type": "phi3", "original_max_position_embeddings": 64}
    long = rotary(**phi, rope_scaling=lists)
    alike = rotary(**phi, rope_scaling=lists | {"long_factor": [1.0] * 8})
    assert not torch.equal(long(x, positions)[0], alike(x, positions)[0])


def test_half_precision_rounds_frequencies_when_cast_and_not_when_loaded(tmp_path):
    whole = model()
    exact = whole.model.rotary_emb.inv_freq.clone()
    whole.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(loaded.model.rotary_emb.inv_freq, exact)
    cast = whole.to(torch.bfloat16).model.rotary_emb.inv_freq.double()
    assert (cast - exact).abs().max() > 0 and ((cast - exact) / exact).abs().max() < 0.004
    made = lanes_of(entries(of(TINY))[0])
    off = float((cast - exact.double()).abs().max()) * 128
    assert made.rounding == pytest.approx(off, rel=1e-4)  # theirs is fp32, whose own rounding is 1e-5 of this


@pytest.mark.parametrize("family", sorted(WHOLE_HEAD))
def test_a_family_said_to_turn_whole_heads_does(family):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    head = {} if family == "falcon" else {"head_dim": 16}  # which derives it
    config = config_of({"model_type": family, "hidden_size": 64, "num_attention_heads": 4, **head})
    nested = "full_attention" in config.rope_parameters
    plain = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    config.rope_parameters = {one: plain for one in ("full_attention", "sliding_attention")} if nested else plain
    rope = rotary_class(config)
    found, _ = rope.compute_default_rope_parameters(config, **{"layer_type": "full_attention"} if nested else {})
    assert len(found) == 8


def rotary_class(config):
    name = config.model_type.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    # The model of text is the one whose name is the shortest.
    return getattr(module, min((one for one in vars(module) if one.endswith("RotaryEmbedding")), key=len))


def test_families_said_to_scale_the_softmax_do_and_others_do_not():
    folder = Path(transformers.__file__).parent / "models"
    known = {path.parent.name for path in folder.glob("*/modeling_*.py")}
    does = {path.parent.name for path in folder.glob("*/modeling_*.py") if "* mscale * mscale" in path.read_text()}
    assert SCALES_SOFTMAX & known == {one for one in does if not one.endswith("_vl")}


@pytest.mark.parametrize("family", sorted(set(OTHERWISE) - {"context-lab"}))
def test_families_said_to_have_no_rope_have_none(family):
    assert not hasattr(CONFIG_MAPPING[family](), "rope_parameters")


# The numbers

SAME = [
    name
    for name in GOOD
    if name not in ("GPT-J-6B", "Qwen2-VL-7B", "GPT-2", "BLOOM", "Falcon-RW", "ELECTRA", "a run of the lab")
]


@pytest.mark.parametrize("name", [*SAME, "beta 0", "one mscale", "mscale in Llama", "growth given", "linear in Llama"])
def test_lanes_and_growth_are_those_of_transformers_own_rotary(name):
    raw = (GOOD | BAD)[name][0] if name in GOOD | BAD else GOOD["Llama-2-7B-32K"][0]
    config = of(raw)
    theirs = config_of(config.raw)
    rope = rotary_class(theirs)(theirs)
    for entry in entries(config):
        prefix = "" if entry.layers is None else f"{entry.layers}_"
        made = lanes_of(entry)
        assert isinstance(made, Lanes), made
        ours = 2 * math.pi / torch.tensor(made.short, dtype=torch.float64)
        torch.testing.assert_close(ours, getattr(rope, f"{prefix}inv_freq").double(), rtol=1e-6, atol=0)
        ends = torch.tensor([[0, made.target - 1]])  # at position 0, a cosine is the growth
        cos, _ = rope(torch.zeros(1), ends, **{} if entry.layers is None else {"layer_type": entry.layers})
        assert made.gain == pytest.approx(float(cos.flatten()[0].real), rel=1e-6)
