"""Encodings as fields of transformers' configurations: what is written is what is read, and what is computed."""

import json

import families
import pytest
import torch
from test_rope_config import L0, LISTS, assert_same_turns

from lab import LabError
from lab.rope.config import described
from lab.rope.fields import older, renewed, written
from lab.rope.left_out import resolved
from positional import SchemeError
from positional.build import kinds, parse

TARGET = 512
BOTH = {"short": LISTS["short_factor"], "long": LISTS["long_factor"]}
LASTING = {
    "rope": {"base": 20000.0},
    "rope-linear": {"factor": 8.0},
    "rope-dynamic": {"factor": 2.0},
    "rope-yarn": {"factor": 8.0},
    "rope-llama3": {"factor": 8.0, "low": 1.0, "high": 4.0},
    "rope-longrope": BOTH | {"factor": 8.0},
    "rope-proportional": {"share": 0.5},
}
"""Kinds that are read back as they were written."""
MORE = {
    "whole lanes or not": {"kind": "rope-yarn", "factor": 8.0, "truncate": False, "fast": 8.0, "slow": 2.0},
    "growth": {"kind": "rope-yarn", "factor": 8.0, "attention_factor": 1.3},
    "two growths": {"kind": "rope-yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.8},
    "longrope, growth": {"kind": "rope-longrope", **BOTH, "factor": 8.0, "attention_factor": 1.2},
    "proportional, slower": {"kind": "rope-proportional", "share": 0.75, "factor": 4.0},
}
SAME = {
    "ntk": ({"kind": "rope-ntk", "factor": 8.0}, "rope"),
    "by parts": ({"kind": "rope-by-parts", "factor": 8.0}, "rope-yarn"),
    "always long": ({"kind": "rope-longrope", **BOTH, "factor": 8.0, "switch": "target"}, "rope-longrope"),
    "linear, auto": ({"kind": "rope-linear", "factor": "auto"}, "rope-linear"),
    "yarn, auto": ({"kind": "rope-yarn", "factor": "auto"}, "rope-yarn"),
    "defaults of ours": ({"kind": "rope-llama3", "factor": 8.0}, "rope-llama3"),
    "a share of ours": ({"kind": "rope-proportional", "factor": 1.0}, "rope-proportional"),
    "a list of one": ([{"kind": "rope-yarn", "factor": 8.0}], "rope-yarn"),
    "a name": ("rope", "rope"),
}
"""Kinds that are read back as others, which compute the same."""


def changed(family: str, spec, target: int = TARGET, **how):
    """The family's configuration with what was written for it."""
    config = families.config(family)
    fields, why = written(spec, config, target=target, **how)
    assert fields is not None, why
    assert json.loads(json.dumps(fields)) == fields
    return renewed(config, fields)


def reason(family: str, spec, **how) -> str:
    fields, why = written(spec, families.config(family), target=TARGET, **how)
    assert fields is None and why
    return why


@pytest.mark.parametrize(
    "spec",
    [pytest.param({"kind": kind, **options}, id=kind) for kind, options in LASTING.items()]
    + [pytest.param(spec, id=name) for name, spec in MORE.items()],
)
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_what_is_written_is_read_back_and_computed(spec, base):
    spec = spec | {"base": base}
    config = changed("llama", spec)
    assert described(config).rotations[""].spec == spec
    assert_same_turns(config)


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("family", ["llama", "gemma3", "smollm3"])
def test_what_is_read_back_as_another_kind_computes_the_same(family, name):
    spec, kind = SAME[name]
    config = changed(family, spec)
    now = described(config)
    got, own = now.rotations[now.main], described(families.config(family)).rotations[now.main]
    assert parse(got.spec)[0] == kind
    wanted = type(own)(resolved(spec, own, TARGET), own.size, own.shape, own.head).scheme()
    for length in (1, L0, L0 + 1, TARGET):
        torch.testing.assert_close(got.scheme().frequencies(length), wanted.frequencies(length), rtol=1e-9, atol=0)
        assert got.scheme().gain(length) == pytest.approx(wanted.gain(length), rel=1e-9)
    assert_same_turns(config)


def test_the_fields_themselves():
    fields, why = written({"kind": "rope-yarn", "factor": "auto"}, families.config("llama"), target=TARGET)
    assert why == "" and fields == {
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
        },
    }
    fields, _ = written({"kind": "rope-ntk", "factor": 8}, families.config("llama"), target=TARGET)
    assert fields["rope_parameters"] == {"rope_type": "default", "rope_theta": pytest.approx(10000 * 8 ** (16 / 14))}
    assert fields["max_position_embeddings"] == 512


def test_dynamic_leaves_the_longest_input_at_the_train_length():
    """transformers has no other word for L0 of this type: with the target there, nothing would ever be scaled."""
    fields, _ = written({"kind": "rope-dynamic", "factor": 8.0}, families.config("llama"), target=TARGET)
    assert fields["max_position_embeddings"] == L0


def test_layers_of_a_window_keep_theirs():
    config = families.config("gemma3")
    before = config.rope_parameters["sliding_attention"]
    fields, _ = written({"kind": "rope-yarn", "factor": "auto"}, config, target=TARGET)
    assert fields["rope_parameters"]["sliding_attention"] == before
    full = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": L0}
    assert fields["rope_parameters"]["full_attention"] == full
    assert config.rope_parameters["full_attention"]["rope_type"] == "default"  # what was asked is as it was


def test_a_share_of_each_head_stays_the_share():
    config = changed("gpt_neox", {"kind": "rope-yarn", "factor": 8.0})
    assert config.rope_parameters["partial_rotary_factor"] == 0.5 and described(config).rotations[""].size == 8
    assert_same_turns(config)


def test_phi3_says_its_train_length_beside_its_parameters():
    """And that wins over what the parameters say."""
    parameters = {"original_max_position_embeddings": 512}
    fields, _ = written(
        {"kind": "rope-longrope", **BOTH, "factor": 8.0}, families.config("phi3", **parameters), target=TARGET
    )
    assert fields["original_max_position_embeddings"] == L0
    assert_same_turns(changed("phi3", {"kind": "rope-longrope", **BOTH, "factor": 8.0}))


def test_another_train_length():
    """A model extended once is extended from where it was trained, or from where one says."""
    once = changed("llama", {"kind": "rope-yarn", "factor": 8.0})
    twice, _ = written({"kind": "rope-yarn", "factor": "auto"}, once, target=1024)
    assert twice["rope_parameters"]["factor"] == 16.0
    tuned, _ = written({"kind": "rope-yarn", "factor": "auto"}, once, target=1024, train_length=512)
    assert tuned["rope_parameters"]["factor"] == 2.0
    assert tuned["rope_parameters"]["original_max_position_embeddings"] == 512


@pytest.mark.parametrize("family", families.FAMILIES)
def test_each_family_takes_it_or_says_why_not(family):
    fields, why = written({"kind": "rope-yarn", "factor": "auto"}, families.config(family), target=TARGET)
    refused = {
        "phi3": "phi3 does not take rope-yarn in its configuration: ",
    }
    if family in refused:
        assert fields is None and why.startswith(refused[family])
    else:
        assert_same_turns(renewed(families.config(family), fields))


@pytest.mark.parametrize(
    "spec, why",
    [
        ("rope-dynamic-yarn", "transformers has no word for rope-dynamic-yarn: no rope_type computes it"),
        ({"kind": "rope-ntk-mixed", "factor": 8.0}, "no word for rope-ntk-mixed: no rope_type computes it"),
        ({"kind": "rope-resonance", "of": "rope"}, "no word for rope-resonance: no rope_type computes it"),
        ("rope-clip", "no word for rope-clip: no rope_type computes it"),
        ("nope", "no word for nope: a configuration says how to turn by position, and it is not that"),
        ({"kind": "window", "window": 9}, "no word for window: a configuration says how to turn by position"),
        ("logn", "no word for logn: a configuration says how to turn by position"),
        (["rope", "logn"], "rope+logn is several encodings, and a configuration of transformers says one"),
        ({"kind": "rope", "layout": "interleaved"}, "rope: which channels are a pair is in transformers' code"),
    ],
)
def test_what_has_no_word_is_told(spec, why):
    assert why in reason("llama", spec)


def test_every_kind_is_written_or_told_why_not():
    """A new file is asked for the moment it exists."""
    from conftest import spec_of

    told = {kind: written(spec_of(kind), families.config("llama"), target=TARGET)[1] for kind in kinds()}
    silent = {kind for kind, why in told.items() if not why}
    assert silent == LASTING.keys() | {"rope-ntk", "rope-by-parts"}


def test_what_a_family_cannot_say_is_told():
    told = reason("gpt_neox", {"kind": "rope-proportional", "share": 0.5})
    assert told == "gpt_neox would turn 16 channels of a head for rope-proportional, and it was trained with 8"
    far = {"kind": "rope-yarn", "factor": 8.0, "truncate": False}
    assert "transformers ignores truncate: false" in reason("gemma3", far)
    assert written(far, families.config("llama"), target=TARGET)[0]["rope_parameters"]["truncate"] is False


def test_a_target_that_extends_nothing_and_an_encoding_that_cannot_be():
    with pytest.raises(LabError, match="a target of 32 tokens is below the train length, 64: it extends nothing"):
        written("rope", families.config("llama"), target=32)
    with pytest.raises(SchemeError, match="rope-yarn: factor must be at least 1"):
        written({"kind": "rope-yarn", "factor": 0.5}, families.config("llama"), target=TARGET)


# transformers 4


OLD = {
    "llama": ({"kind": "rope-yarn", "factor": "auto"}, {"rope_theta": 10000.0}),
    "gpt_neox": ({"kind": "rope-linear", "factor": "auto"}, {"rotary_emb_base": 10000.0, "rotary_pct": 0.5}),
    "gemma3": ({"kind": "rope-linear", "factor": "auto"}, {"rope_theta": 1e6, "rope_local_base_freq": 10000.0}),
    "phi3": (
        {"kind": "rope-longrope", **BOTH, "factor": 8.0},
        {"rope_theta": 10000.0, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 64},
    ),
    "smollm3": ({"kind": "rope-ntk", "factor": 8}, {"rope_theta": pytest.approx(2e6 * 8 ** (16 / 14))}),
}


@pytest.mark.parametrize("family", OLD)
def test_the_words_of_transformers_4(family):
    spec, wanted = OLD[family]
    config = changed(family, spec)
    old = older(config)
    scaling = old.pop("rope_scaling")
    assert old == wanted
    if spec["kind"] == "rope-ntk":
        assert scaling is None
    else:
        assert scaling["rope_type"] == spec["kind"].removeprefix("rope-") and "rope_theta" not in scaling


@pytest.mark.parametrize("family", OLD)
@pytest.mark.parametrize("spec", [{"kind": kind, **options} for kind, options in LASTING.items()], ids=list(LASTING))
def test_a_configuration_with_both_is_read_as_either(family, spec):
    if family == "gpt_neox" and spec["kind"] == "rope-longrope":
        spec = spec | {name: spec[name][:4] for name in ("short", "long")}  # it turns 4 lanes
    fields, _ = written(spec, families.config(family), target=TARGET)
    if fields is None or (old := older(renewed(families.config(family), fields))) is None:
        assert family in ("gpt_neox", "phi3", "gemma3") or spec["kind"] == "rope-proportional"
        return
    alone, both = renewed(families.config(family), fields), renewed(families.config(family), fields | old)
    assert described(both) == described(alone)
    assert_same_turns(both)


def test_it_has_none_where_it_would_take_another_factor():
    """transformers 4 takes YaRN's factor from the lengths."""
    fields, _ = written({"kind": "rope-yarn", "factor": 4.0}, families.config("llama"), target=TARGET)
    assert older(renewed(families.config("llama"), fields)) is None
    fields, _ = written({"kind": "rope-linear", "factor": 4.0}, families.config("llama"), target=TARGET)
    assert older(renewed(families.config("llama"), fields))["rope_scaling"]["factor"] == 4.0
    assert older(families.config("gemma4")) is None  # proportional came later
