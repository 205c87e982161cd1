"""The RoPE family: each kind against its formula in float64, published vectors, transformers, and its edge rules."""

# B batch · T tokens · D head size · L0 train length

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from test_positional import FAR, at, heads_of, of, output, refusal
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from lab.config import read
from positional import Positions, SchemeError
from positional.build import find, kinds
from positional.extension import Extension
from positional.rope import Rope, turned

VECTORS = json.loads(Path(__file__).with_name("rope_vectors.json").read_text())
SPREAD = {size: np.linspace(1, 8, size // 2).tolist() for size in (16, 32, 64, 128)}  # the λ of the vectors
BY_FACTOR = sorted(kind for kind in kinds() if issubclass(find(kind), Extension))
AUTO = sorted({*BY_FACTOR} - {"rope-dynamic", "rope-dynamic-yarn"})
"""Kinds whose factor may be given or `auto`."""


def options_for(kind: str, size: int, factor=8) -> dict:
    """What a kind of RoPE cannot be built without, for a head of this size."""
    if kind == "rope-longrope":
        return {"factor": factor, "short": [1.0] * (size // 2), "long": SPREAD[size]}
    if kind == "rope-resonance":
        return {"of": "rope"}
    if kind == "rerope":
        return {"window": 8}
    return {"factor": factor} if kind in BY_FACTOR and kind not in ("rope-dynamic-yarn", "rope-proportional") else {}


def lanes(kind: str, size: int, length: int = 1, train_length: int = 512, **options) -> np.ndarray:
    """The frequencies of a head of this size, (D/2,) float64."""
    found = of(kind, heads_of(size, train_length=train_length), **options).frequencies(length)
    assert found.dtype == torch.float64
    return found.numpy()


def plain(size: int, base: float = 10000.0) -> np.ndarray:
    """The formula; numpy's powers may differ from torch's in the last bit."""
    return base ** (-np.arange(0, size, 2) / size)


# the vectors


ROWS = {
    "default": ("rope", {}, 512),
    "linear_f8": ("rope-linear", {"factor": 8}, 512),
    "ntk_aware_f8": ("rope-ntk", {"factor": 8}, 512),
    "dynamic_f8_L512": ("rope-dynamic", {"factor": 8}, 512),
    "dynamic_f8_L513": ("rope-dynamic", {"factor": 8}, 513),
    "dynamic_f8_L1024": ("rope-dynamic", {"factor": 8}, 1024),
    "dynamic_f8_L2048": ("rope-dynamic", {"factor": 8}, 2048),
    "dynamic_f8_L4096": ("rope-dynamic", {"factor": 8}, 4096),
    "yarn_f8_trunc": ("rope-yarn", {"factor": 8}, 512),
    "yarn_f8_notrunc": ("rope-yarn", {"factor": 8, "truncate": False}, 512),
    "llama3_f8_lo1_hi4": ("rope-llama3", {"factor": 8}, 512),
    "ntk_by_parts_paper_f8": ("rope-llama3", {"factor": 8, "low": 1, "high": 32}, 512),
    "proportional_p0.25": ("rope-proportional", {"share": 0.25}, 512),
    "longrope_long_linspace1_8": ("rope-longrope", {"factor": 8}, 513),
    "ntk_su_vllm_f8": ("rope-ntk-mixed", {"factor": 8, "exponent": 1}, 512),
}
GAINS = {
    "yarn_f8": ("rope-yarn", {"factor": 8}),
    "yarn_f8_mscale1_all0.8": ("rope-yarn", {"factor": 8, "mscale": 1, "mscale_all_dim": 0.8}),
    "longrope_f8_L512": ("rope-longrope", {"factor": 8}),
}


def of_row(row: str, size: int):
    """The scheme of a row of the vectors, and the length it is for."""
    kind, options, length = ROWS[row]
    return of(kind, heads_of(size), **options_for(kind, size) | options), length


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("row", VECTORS["d64"])
def test_frequencies_are_the_reference_vectors(row, size):
    scheme, length = of_row(row, size)
    np.testing.assert_allclose(scheme.frequencies(length).numpy(), VECTORS[f"d{size}"][row], rtol=1e-12)  # both float64


def test_every_vector_has_a_kind():
    assert VECTORS["d64"].keys() == VECTORS["d128"].keys() == ROWS.keys()
    assert VECTORS["attention_factor"].keys() == GAINS.keys()


@pytest.mark.parametrize("row", VECTORS["attention_factor"])
def test_queries_and_keys_grow_by_the_reference_factors(row):
    kind, options = GAINS[row]
    scheme = of(kind, heads_of(64), **options_for(kind, 64) | options)
    for length in (1, 512, 4096):  # at every length, short ones too
        assert scheme.gain(length) == pytest.approx(VECTORS["attention_factor"][row], rel=1e-14)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (64, {1: 0.519223974, 4: 0.164795934, 8: 0.0390203645, 12: 0.00967581886, 16: 0.00246493216}),
        (128, {1: 0.682311756, 8: 0.171784988, 16: 0.0403305658, 24: 0.00995730413, 32: 0.0025295748}),
    ],
)
def test_ntk_mixed_is_the_vector_of_the_authors_exponent(size, wanted):
    found = lanes("rope-ntk-mixed", size, factor=8)
    assert [found[lane] for lane in wanted] == pytest.approx(list(wanted.values()), rel=5e-9)  # half of the ninth digit
    assert found.sum() == pytest.approx({64: 2.443713074, 128: 4.711090571}[size], rel=1e-9)


@pytest.mark.parametrize("row", VECTORS["d64"])
def test_angles_are_right_to_fp32_at_position_131072(row):
    scheme, _ = of_row(row, 128)
    if ROWS[row][0] == "rope-dynamic":
        pytest.skip("its frequencies are others at this length")
    ids = np.array([FAR - 1, FAR])
    angles, gain = ids[:, None] * np.array(VECTORS["d128"][row]), scheme.gain(FAR)
    cos, sin = (part[0, 0].double().numpy() for part in scheme.turn(torch.tensor(ids)[None], FAR + 1))
    # fp32 rounds a cosine by 3e-8, one that has grown above 1 by 6e-8; an fp32 angle would be off by 4e-3.
    # float64 angles: 131072 · 2e-16, nothing.
    atol = 4e-8 if gain == 1 else 7e-8
    np.testing.assert_allclose(cos, gain * np.cos(angles), rtol=0, atol=atol)
    np.testing.assert_allclose(sin, gain * np.sin(angles), rtol=0, atol=atol)


# transformers


def theirs(rope_type: str, size: int, train_length: int, length: int | None = None, base: float = 10000.0, **options):
    """transformers' frequencies and attention factor."""
    own = {"original_max_position_embeddings": train_length} if rope_type in ("yarn", "longrope", "llama3") else {}
    config = LlamaConfig(
        hidden_size=size,
        num_attention_heads=1,
        max_position_embeddings=train_length,  # what `dynamic` takes for the train length
        rope_parameters={"rope_type": rope_type, "rope_theta": base, **own, **options},
    )
    found, gain = ROPE_INIT_FUNCTIONS[rope_type](config, seq_len=length)
    return found.double().numpy(), gain


def assert_as_transformers(scheme, length: int, wanted, rtol: float = 1e-6) -> None:
    frequencies, gain = wanted
    np.testing.assert_allclose(scheme.frequencies(length).numpy(), frequencies, rtol=rtol)  # theirs are fp32
    assert scheme.gain(length) == pytest.approx(gain, rel=1e-12)


SIZES = pytest.mark.parametrize("size", [32, 64, 128])
TRAINED = pytest.mark.parametrize("train_length", [64, 512, 4096, 8192])
FACTORS = pytest.mark.parametrize("factor", [1, 2, 8, 31.5])
BASES = pytest.mark.parametrize("base", [10000.0, 500000.0])


@SIZES
@FACTORS
@BASES
def test_linear_is_that_of_transformers(size, factor, base):
    scheme = of("rope-linear", heads_of(size), factor=factor, base=base)
    assert_as_transformers(scheme, 700, theirs("linear", size, 512, base=base, factor=factor))


@SIZES
@TRAINED
@FACTORS
@pytest.mark.parametrize("times", [0.5, 1, 1.01, 2, 8])
def test_dynamic_is_that_of_transformers(size, train_length, factor, times):
    length = math.ceil(train_length * times)
    scheme = of("rope-dynamic", heads_of(size, train_length=train_length), factor=factor)
    assert_as_transformers(scheme, length, theirs("dynamic", size, train_length, length, factor=factor))


@SIZES
@TRAINED
@FACTORS
@BASES
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"truncate": False},
        {"fast": 16, "slow": 2},
        {"fast": 1.01},  # both ends of the ramp in one lane
        {"attention_factor": 0.7},
        {"mscale": 0.707, "mscale_all_dim": 0.707},
        {"mscale": 1, "mscale_all_dim": 0.8, "attention_factor": 1.5},  # replaces, and does not multiply
        {"mscale": 0, "mscale_all_dim": 1},  # 0 is none
    ],
    ids=str,
)
def test_yarn_is_that_of_transformers(size, train_length, factor, base, options):
    scheme = of("rope-yarn", heads_of(size, train_length=train_length), factor=factor, base=base, **options)
    named = {{"fast": "beta_fast", "slow": "beta_slow"}.get(name, name): value for name, value in options.items()}
    # Near the ramp's end they keep 1 - γ, which fp32 knows to 6e-8: that much, of a lane `factor` times slower.
    rtol = 1e-6 + 6e-8 * factor
    assert_as_transformers(scheme, 99, theirs("yarn", size, train_length, base=base, factor=factor, **named), rtol)


@pytest.mark.parametrize(("train_length", "base"), [(8, 1e4), (131072, 1e4), (10**7, 1e4), (8, 100), (4096, 100)])
def test_yarn_is_that_of_transformers_where_the_ramp_meets_its_ends(train_length, base):
    scheme = of("rope-yarn", heads_of(64, train_length=train_length), factor=4, base=base)
    assert_as_transformers(scheme, 99, theirs("yarn", 64, train_length, base=base, factor=4), 1e-6 + 6e-8 * 4)


def test_gpt_oss_has_the_ramp_that_was_read_from_it():
    scheme = of("rope-yarn", heads_of(64, train_length=4096), factor=32, base=150000.0, truncate=False)
    assert scheme.lane_of(32) == pytest.approx(8.092779115512402, rel=1e-14)
    assert scheme.lane_of(1) == pytest.approx(17.39802450158856, rel=1e-14)
    assert scheme.gain(1) == pytest.approx(1.3465735902799727, rel=1e-14)


@SIZES
@TRAINED
@FACTORS
@BASES
def test_llama3_is_that_of_transformers(size, train_length, factor, base):
    for low, high in [(1, 4), (1, 32), (0.5, 3)]:
        scheme = of(
            "rope-llama3", heads_of(size, train_length=train_length), factor=factor, base=base, low=low, high=high
        )
        wanted = theirs(
            "llama3", size, train_length, base=base, factor=factor, low_freq_factor=low, high_freq_factor=high
        )
        assert_as_transformers(scheme, 99, wanted)


@SIZES
@TRAINED
@FACTORS
def test_longrope_is_that_of_transformers_on_both_sides_of_the_train_length(size, train_length, factor):
    short, long = np.linspace(0.98, 1.3, size // 2).tolist(), SPREAD[size]
    for given in ({}, {"attention_factor": 0.9}):
        scheme = of(
            "rope-longrope", heads_of(size, train_length=train_length), short=short, long=long, factor=factor, **given
        )
        for length in (1, train_length, train_length + 1, 9 * train_length):
            wanted = theirs(
                "longrope", size, train_length, length, short_factor=short, long_factor=long, factor=factor, **given
            )
            assert_as_transformers(scheme, length, wanted)


@SIZES
@BASES
@pytest.mark.parametrize("share", [0.25, 0.3, 0.5, 0.75, 1])
@pytest.mark.parametrize("factor", [1, 8])
def test_proportional_is_that_of_transformers(size, base, share, factor):
    scheme = of("rope-proportional", heads_of(size), share=share, base=base, factor=factor)
    wanted = theirs("proportional", size, 512, base=base, partial_rotary_factor=share, factor=factor)
    assert_as_transformers(scheme, 99, wanted)
    assert np.array_equal(scheme.frequencies(99).numpy() == 0, wanted[0] == 0)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rope_turns_queries_and_keys_like_llama(base):
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, rope_parameters={"rope_type": "default", "rope_theta": base}
    )
    q, k, ids = torch.randn(2, 1, 9, 64), torch.randn(2, 1, 9, 64), torch.randint(0, 500, (2, 9))
    wanted = modeling_llama.apply_rotary_pos_emb(q, k, *modeling_llama.LlamaRotaryEmbedding(config)(q, ids))
    found = of("rope", heads_of(64), base=base).rotate(q, k, Positions(ids, 9, 500, contiguous=False))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-4)  # Llama's fp32 angles: 500 · 6e-8, on values to 4


@pytest.mark.parametrize("share", [0.25, 0.5, 1])
def test_partial_turns_queries_and_keys_like_gpt_neox(share):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}
    config = GPTNeoXConfig(hidden_size=64, num_attention_heads=1, rope_parameters=rope)
    q, k, ids = torch.randn(2, 1, 9, 64), torch.randn(2, 1, 9, 64), torch.randint(0, 500, (2, 9))
    wanted = modeling_gpt_neox.apply_rotary_pos_emb(q, k, *modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(q, ids))
    found = of("rope-partial", heads_of(64), share=share).rotate(q, k, Positions(ids, 9, 500, contiguous=False))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-4)  # as above
        assert torch.equal(mine[..., int(64 * share) :], other[..., int(64 * share) :])


# configurations


@pytest.mark.parametrize("kind", [kind for kind in kinds() if "rope" in kind or kind == "xpos"])
def test_a_config_of_its_name_trains_each_kind(kind):
    run = read(Path(__file__).parents[1] / "configs" / "schemes" / f"{kind}.yaml")
    spec = run.model.positional
    assert run.name == kind == (spec if isinstance(spec, str) else spec["kind"])


# rope


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        ("half", [5.07828356, -1.12138811, 2.64639660, 3.95995017, 0.45938665, 6.22434645, 7.14118933, 8.01989992]),
        (
            "interleaved",
            [2.20151073, -0.39159990, 0.71504553, 4.94860686, 4.69387629, 6.24239741, 6.95991267, 8.03489985],
        ),
    ],
)
def test_rope_turns_the_published_vectors(layout, wanted):
    x = torch.arange(1.0, 9.0).expand(1, 1, 1, 8)
    for turned_x in of("rope", heads_of(8), layout=layout).rotate(x, x, at(torch.tensor([5]))):
        torch.testing.assert_close(turned_x[0, 0, 0], torch.tensor(wanted), rtol=0, atol=1e-6)  # 2 ulp of fp32 at 8


@pytest.mark.parametrize("kind", [kind for kind in kinds() if issubclass(find(kind), Rope) and kind != "self-extend"])
def test_the_two_layouts_are_one_encoding_of_permuted_channels(kind, shape):
    """Channels 0, 2, 4, … then 1, 3, 5, … of what is turned; the others stay where they are."""
    q, k, pos = torch.randn(1, 4, 9, 16), torch.randn(1, 4, 9, 16), Positions.first(9)
    options = options_for(kind, 16)
    if kind == "rope-resonance":
        half, woven = (of(kind, shape, of={"kind": "rope", "layout": name}) for name in ("half", "interleaved"))
    else:
        half, woven = (of(kind, shape, **options, layout=name) for name in ("half", "interleaved"))
    channels = 2 * len(half.frequencies(9))
    order = torch.tensor([*range(0, channels, 2), *range(1, channels, 2), *range(channels, 16)])
    for mine, other in zip(half.rotate(q[..., order], k[..., order], pos), woven.rotate(q, k, pos), strict=True):
        assert torch.equal(mine, other[..., order])


@pytest.mark.parametrize("base", [500.0, 500000.0, 5e6])
def test_a_larger_base_slows_every_lane_but_the_first(base):
    """Adjusted base frequency (Xiong et al. 2023) is this option."""
    np.testing.assert_allclose(lanes("rope", 64, base=base), plain(64, base), rtol=1e-14)


def test_rope_turns_the_last_queries_by_their_own_positions():
    for kind in ("rope", "xpos"):
        scheme, q, k = of(kind, heads_of(8)), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8)
        whole, keys = scheme.rotate(q, k, Positions.first(5))
        last, same = scheme.rotate(q[:, :, 3:], k, Positions.first(5, queries=2))
        assert torch.equal(last, whole[:, :, 3:]) and torch.equal(same, keys)


def test_turning_half_precision_is_done_in_fp32():
    x, angle = torch.randn(1, 1, 50, 8).bfloat16(), torch.rand(1, 1, 50, 4)
    exact = turned(x.float(), angle.cos(), angle.sin())
    assert torch.equal(turned(x, angle.cos(), angle.sin()), exact.bfloat16())


@pytest.mark.parametrize("kind", ["rope", "rope-linear", "rope-ntk", "rope-yarn", "rope-partial", "xpos"])
def test_rope_refuses_what_it_cannot_turn(kind):
    spec = {"kind": kind} | options_for(kind, 64)
    before = "" if kind == "rope" else f"{kind}: "
    assert refusal(spec, heads_of(7, heads=4)) == (
        f"{before}rope turns pairs of channels and needs an even head size, got 7 (width 28 / heads 4)"
    )
    for base in (1, 0.5, -10):
        message = refusal(spec | {"base": base}, heads_of(8))
        assert message == f"{before}rope: base must be above 1, got {base}; the paper's is 10000"


# the factor


@pytest.mark.parametrize(("length", "factor"), [(1, 1), (511, 1), (512, 1), (513, 513 / 512), (4096, 8)])
@pytest.mark.parametrize("kind", AUTO)
def test_an_auto_factor_is_length_over_train_length_and_at_least_one(kind, length, factor):
    auto, given = (of(kind, heads_of(64), factor=f) for f in ("auto", factor))
    assert torch.equal(auto.frequencies(length), given.frequencies(length))
    assert auto.gain(length) == given.gain(length)


@pytest.mark.parametrize("kind", AUTO)
def test_a_factor_that_is_given_is_the_same_at_every_length(kind):
    scheme = of(kind, heads_of(64), factor=8)
    assert torch.equal(scheme.frequencies(4096), scheme.frequencies(1)) and scheme.gain(4096) == scheme.gain(1)


@pytest.mark.parametrize("kind", BY_FACTOR)
def test_factor_one_is_plain_rope(kind, shape):
    """Bit for bit, in frequencies and in queries and keys. Dynamic kinds are so up to the train length alone."""
    scheme = of(kind, shape, **options_for(kind, 16, factor=1) | ({"share": 1} if kind == "rope-proportional" else {}))
    q = torch.randn(1, 4, 64, 16)
    assert torch.equal(scheme.frequencies(64), of("rope", shape).frequencies(64)) and scheme.gain(64) == 1
    for mine, other in zip(*(s.rotate(q, q, Positions.first(64)) for s in (scheme, of("rope", shape))), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("size", [4, 64, 128])
@pytest.mark.parametrize("factor", [2, 8, 31.5])
@pytest.mark.parametrize("kind", sorted({*AUTO} - {"rope-proportional"}))
def test_the_last_lane_slows_down_by_the_factor(kind, factor, size):
    """For kinds with a ramp where its wavelength exceeds the train length: 512 < 2π·100, at the least."""
    assert lanes(kind, size, factor=factor)[-1] == pytest.approx(plain(size)[-1] / factor, rel=1e-14)


@pytest.mark.parametrize("kind", kinds())
def test_the_first_lane_turns_by_one_radian_a_token(kind):
    """But where the method says otherwise."""
    cls = find(kind)
    if not issubclass(cls, Rope) or kind == "self-extend":
        pytest.skip("no RoPE")
    first = of(kind, heads_of(64), **options_for(kind, 64)).frequencies(4096)[0]
    others = {
        "rope-linear": 1 / 8,
        "rope-ntk-mixed": 8 ** -((1 / 32) ** 0.625),
        "rope-resonance": 2 * math.pi / 6,
    }
    assert first == pytest.approx(others.get(kind, 1), rel=1e-15)


@pytest.mark.parametrize("kind", BY_FACTOR)
@pytest.mark.parametrize("factor", [0.99, 0, -8])
def test_a_factor_below_one_is_refused(kind, factor, shape):
    messages = {
        "rope-dynamic": f"got {factor}; 1 slows the last lane by length ÷ train length",
        "rope-dynamic-yarn": f"`factor` must be auto, got {factor}",
    }
    said = messages.get(kind, f"or auto, got {factor}; 8 is for inputs 8 × the train length")
    message = refusal({"kind": kind, "factor": factor}, shape)
    wanted = f"{kind}: {'' if kind == 'rope-dynamic-yarn' else 'factor must be at least 1, '}{said}"
    assert message.partition("; factor: ")[0] == wanted.partition("; factor: ")[0]


def test_a_dynamic_factor_cannot_be_auto(shape):
    message = refusal({"kind": "rope-dynamic", "factor": "auto"}, shape)
    assert message.startswith("rope-dynamic: `factor` must be a number, got 'auto'; factor: s, how fast ")


@pytest.mark.parametrize("kind", [*AUTO, "rope-dynamic", "rope-dynamic-yarn"])
def test_a_factor_of_the_length_depends_on_the_longest_position(kind, shape):
    options = {"factor": "auto"} if kind in AUTO else options_for(kind, 16)
    scheme = of(kind, shape, **options)
    here, there = (output(scheme, shape, at(torch.arange(20) + p)) for p in (0, 1000))
    assert (there - here).abs().max() > 0.1
    assert not scheme.prefix_consistent
    assert kind not in AUTO or of(kind, shape, factor=8).prefix_consistent


# ntk


@pytest.mark.parametrize("size", [4, 64, 128])
def test_ntk_is_rope_with_a_larger_base(size):
    larger = 10000.0 * 8 ** (size / (size - 2))
    np.testing.assert_allclose(lanes("rope-ntk", size, factor=8), lanes("rope", size, base=larger), rtol=1e-13)


@pytest.mark.parametrize("kind", ["rope-ntk", "rope-dynamic"])
def test_ntk_refuses_a_head_of_one_lane(kind):
    message = refusal({"kind": kind, "factor": 8}, heads_of(2))
    assert message == f"{kind}: needs a head size above 2: with one lane there is none to keep and none to stretch"


@pytest.mark.parametrize("exponent", [0.2, 0.625, 1, 2.5])
@pytest.mark.parametrize("size", [2, 64, 128])
def test_ntk_mixed_is_its_formula(size, exponent):
    a = math.log(6) / (size / 2) ** exponent
    wanted = plain(size) / np.exp(a * np.arange(1, size // 2 + 1) ** exponent)
    np.testing.assert_allclose(lanes("rope-ntk-mixed", size, factor=6, exponent=exponent), wanted, rtol=1e-13)


@pytest.mark.parametrize("exponent", [0, -1])
def test_ntk_mixed_refuses_an_exponent_that_is_not_above_0(exponent, shape):
    assert refusal({"kind": "rope-ntk-mixed", "factor": 8, "exponent": exponent}, shape) == (
        f"rope-ntk-mixed: exponent must be above 0, got {exponent}; the author's is 0.625, and 0 is rope-linear"
    )


# dynamic


@pytest.mark.parametrize("kind", ["rope-dynamic", "rope-dynamic-yarn"])
def test_dynamic_kinds_begin_at_the_train_length_without_a_jump(kind):
    scheme = of(kind, heads_of(64), **options_for(kind, 64))
    before, last, after = (scheme.frequencies(length).numpy() for length in (511, 512, 513))
    assert np.array_equal(before, lanes("rope", 64)) and np.array_equal(last, before)
    assert not np.array_equal(after, last)
    np.testing.assert_allclose(after, last, rtol=0.016)  # (1 + 8/512) of the slowest lane, at most
    assert scheme.gain(511) == scheme.gain(512) == 1 and scheme.gain(513) == pytest.approx(1, abs=2e-4)


def test_dynamic_is_ntk_by_a_factor_that_grows_faster_than_the_length():
    """At 8 times the train length, 8² - 8 + 1."""
    np.testing.assert_array_equal(lanes("rope-dynamic", 64, 4096, factor=8), lanes("rope-ntk", 64, factor=57))
    np.testing.assert_array_equal(lanes("rope-dynamic", 64, 4096, factor=1), lanes("rope-ntk", 64, factor=8))


@pytest.mark.parametrize("length", [1, 512, 513, 4096])
def test_dynamic_yarn_is_yarn_by_length_over_train_length(length):
    dynamic = of("rope-dynamic-yarn", heads_of(64), fast=16)
    yarn = of("rope-yarn", heads_of(64), fast=16, factor=max(1, length / 512))
    assert torch.equal(dynamic.frequencies(length), yarn.frequencies(1)) and dynamic.gain(length) == yarn.gain(1)


# by parts, yarn


@pytest.mark.parametrize("truncate", [True, False])
def test_by_parts_is_yarn_without_growth(truncate):
    parts, yarn = (
        of(kind, heads_of(64), factor=8, truncate=truncate, fast=20) for kind in ("rope-by-parts", "rope-yarn")
    )
    assert torch.equal(parts.frequencies(1), yarn.frequencies(1)) and parts.gain(1) == 1


@pytest.mark.parametrize(
    ("size", "base", "ends"),
    [
        (32, 1e4, {64: (0, 5), 128: (0, 6), 256: (0, 7), 512: (1, 8), 1024: (2, 9), 2048: (4, 11)}),
        (64, 1e4, {64: (0, 9), 128: (0, 11), 256: (0, 13), 512: (3, 16), 1024: (5, 18), 2048: (8, 21), 4096: (10, 23)}),
        (128, 1e4, {512: (6, 31), 1024: (11, 36), 2048: (16, 41), 4096: (20, 46)}),
        (64, 5e5, {512: (2, 11), 2048: (5, 15), 4096: (7, 16)}),
    ],
)
def test_the_ramp_begins_and_ends_at_the_published_lanes(size, base, ends):
    for train_length, (low, high) in ends.items():
        scheme = of("rope-by-parts", heads_of(size, train_length=train_length), factor=8, base=base)
        np.testing.assert_allclose(
            scheme.ramp(), np.clip((np.arange(size // 2) - low) / (high - low), 0, 1), rtol=0, atol=1e-15
        )


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("train_length", [8, 64, 128, 201])
def test_trained_on_201_tokens_or_less_yarn_keeps_the_first_lane_alone(train_length, truncate):
    found = lanes("rope-yarn", 64, train_length=train_length, factor=8, truncate=truncate)
    kept = found == lanes("rope", 64)
    assert kept[0] and not kept[1:].any()


def test_a_ramp_of_hardly_any_width_is_a_step():
    """8 tokens: lane 0 turns 1.27324 times, and both ends fall on it."""
    found = lanes("rope-by-parts", 64, train_length=8, factor=8, truncate=False, slow=1.273239, fast=1.27325)
    assert found[0] == 1 and np.allclose(found[1:], plain(64)[1:] / 8, rtol=1e-14)


def test_lanes_that_all_turn_often_are_all_kept():
    """Where transformers' range is turned round and every lane slows down."""
    found = lanes("rope-by-parts", 64, train_length=10**7, factor=8, base=2.0)
    np.testing.assert_array_equal(found, lanes("rope", 64, base=2.0))


@pytest.mark.parametrize("kind", ["rope-by-parts", "rope-yarn", "rope-dynamic-yarn"])
@pytest.mark.parametrize(("train_length", "slow", "least"), [(6, 1, 8), (7, 1, 8), (12, 2, 13), (1, 1, 8)])
def test_by_parts_refuses_a_train_length_in_which_no_lane_turns(kind, train_length, slow, least):
    spec = {"kind": kind, "slow": slow} | options_for(kind, 64)
    assert refusal(spec, heads_of(64, train_length=train_length)) == (
        f"{kind}: the train length must be at least {least} tokens, 2π·slow of them or 8, got {train_length}: "
        f"no lane would turn {slow} times in training, and the ramp would end before it begins"
    )


@pytest.mark.parametrize(("fast", "slow"), [(1, 1), (1, 2), (32, 0), (32, -1)])
def test_by_parts_refuses_a_ramp_that_ends_before_it_begins(fast, slow, shape):
    assert refusal({"kind": "rope-by-parts", "factor": 8, "fast": fast, "slow": slow}, shape) == (
        "rope-by-parts: slow must be above 0 and below fast, both in turns within the train length, "
        f"got slow {slow} and fast {fast}; the paper's are 1 and 32"
    )


def test_yarn_grows_queries_and_keys_alike(shape):
    """So that scores grow by the square: 1.459 for a factor of 8."""
    q, pos = torch.randn(1, 4, 9, 16), Positions.first(9)
    parts, yarn = (of(kind, shape, factor=8).rotate(q, q, pos) for kind in ("rope-by-parts", "rope-yarn"))
    for mine, other in zip(yarn, parts, strict=True):
        torch.testing.assert_close(mine, other * (0.1 * math.log(8) + 1), rtol=0, atol=2e-6)  # 4 ulp of fp32 at 4
    assert of("rope-yarn", shape, factor=8).gain(9) ** 2 == pytest.approx(1.45913, abs=1e-5)


@pytest.mark.parametrize("given", [{"mscale": 0.707}, {"mscale_all_dim": 1}, {"mscale": -1, "mscale_all_dim": 1}])
def test_yarn_refuses_one_mscale_without_the_other(given, shape):
    assert refusal({"kind": "rope-yarn", "factor": 8} | given, shape) == (
        "rope-yarn: mscale and mscale_all_dim go together and are not negative, "
        f"got {given.get('mscale')} and {given.get('mscale_all_dim')}: transformers ignores one without the other and "
        "DeepSeek does not; attention_factor says it outright"
    )


@pytest.mark.parametrize(("kind", "whose"), [("rope-yarn", "YaRN's"), ("rope-longrope", "the paper's")])
def test_an_attention_factor_that_is_not_above_0_is_refused(kind, whose, shape):
    message = refusal({"kind": kind, "attention_factor": 0} | options_for(kind, 16), shape)
    assert message == f"{kind}: attention_factor must be above 0, got 0; left out, it is {whose}"


# llama3


def test_llama3_keeps_blends_and_scales_the_published_numbers_of_lanes():
    for size, counts in ((64, (11, 5, 16)), (128, (21, 10, 33))):
        ratio = lanes("rope-llama3", size, factor=8) / lanes("rope", size)
        scaled = np.isclose(ratio, 1 / 8, rtol=1e-14)
        assert ((ratio == 1).sum(), ((ratio < 1) & ~scaled).sum(), scaled.sum()) == counts


@pytest.mark.parametrize(("low", "high"), [(4, 4), (4, 1), (0, 4), (-1, 4)])
def test_llama3_refuses_bands_that_overlap(low, high, shape):
    assert refusal({"kind": "rope-llama3", "factor": 8, "low": low, "high": high}, shape) == (
        "rope-llama3: low must be above 0 and below high, both in turns within the train length, "
        f"got low {low} and high {high}; Llama 3.1 has 1 and 4"
    )


# longrope


LISTS = {"short": [1.0] * 8, "long": SPREAD[16]}


@pytest.mark.parametrize(("switch", "at_boundary"), [("input", "short"), ("target", "long")])
def test_longrope_switches_lists_by_the_input_or_by_the_target(switch, at_boundary, shape):
    scheme = of("rope-longrope", shape, factor=8, switch=switch, **LISTS)
    wanted = {name: plain(16) / np.array(factors) for name, factors in LISTS.items()}
    for length, name in [(1, at_boundary), (64, at_boundary), (65, "long"), (640, "long")]:
        np.testing.assert_allclose(scheme.frequencies(length).numpy(), wanted[name], rtol=1e-14)
    assert scheme.prefix_consistent == (switch == "target")


def test_longrope_has_no_target_beyond_training_at_factor_one(shape):
    scheme = of("rope-longrope", shape, factor=1, switch="target", **LISTS)
    assert torch.equal(scheme.frequencies(640), of("rope", shape).frequencies(640)) and scheme.gain(640) == 1


def test_longrope_changes_all_tokens_when_one_more_comes(shape):
    scheme = of("rope-longrope", shape, factor=8, **LISTS)
    whole, longer = (output(scheme, shape, Positions(torch.arange(20)[None], 20, length)) for length in (64, 65))
    assert (whole - longer).abs().max() > 0.1


@pytest.mark.parametrize("name", ["short", "long"])
def test_longrope_refuses_lists_that_do_not_fit_the_head(name, shape):
    for factors in ([1.0] * 7, [1.0] * 7 + [0.0], []):
        spec = {"kind": "rope-longrope", "factor": 8} | LISTS | {name: factors}
        assert refusal(spec, shape) == (
            f"rope-longrope: {name} must hold a number above 0 for each of D/2 = 8 lanes, got {len(factors)}: {factors}"
        )


def test_longrope_refuses_a_factor_or_a_train_length_without_a_growth(shape):
    spec = {"kind": "rope-longrope"} | LISTS
    assert refusal(spec | {"factor": 0.5}, shape) == (
        "rope-longrope: factor must be at least 1, got 0.5; Phi-3 has 32, for 128k tokens trained on 4k"
    )
    assert refusal(spec | {"factor": 2}, heads_of(16, train_length=1)) == (
        "rope-longrope: the growth divides by ln(train length), which must be above 1, got 1"
    )


# partial, proportional


def test_partial_is_rope_on_a_smaller_head():
    q, pos = torch.randn(1, 1, 9, 64), Positions.first(9)
    partial = of("rope-partial", heads_of(64)).rotate(q, q, pos)[0]
    assert torch.equal(partial[..., :16], of("rope", heads_of(16)).rotate(q[..., :16], q[..., :16], pos)[0])
    assert torch.equal(partial[..., 16:], q[..., 16:])


@pytest.mark.parametrize(("share", "channels"), [(0, 0), (1.5, 24), (0.1, 1), (0.2, 3), (-0.5, -8)])
def test_partial_refuses_a_share_without_whole_pairs(share, channels, shape):
    assert refusal({"kind": "rope-partial", "share": share}, shape) == (
        f"rope-partial: share must be above 0 to 1 and leave an even number of channels, got {share}: {channels} "
        "of 16; GPT-NeoX has 0.25, 16 of 64"
    )


def test_proportional_turns_the_fast_lanes_as_ever_and_leaves_the_others_as_they_are():
    scheme, q = of("rope-proportional", heads_of(64)), torch.randn(1, 1, 9, 64)
    found, other = (s.rotate(q, q, Positions.first(9))[0] for s in (scheme, of("rope", heads_of(64))))
    moving = torch.tensor([*range(24), *range(32, 56)])  # lane i is channels i and i + 32
    still = torch.tensor([*range(24, 32), *range(56, 64)])
    assert torch.equal(found[..., moving], other[..., moving]) and torch.equal(found[..., still], q[..., still])


@pytest.mark.parametrize(("share", "turning"), [(0, 0), (1.01, 8), (0.1, 0), (-1, -8)])
def test_proportional_refuses_a_share_without_a_lane(share, turning, shape):
    assert refusal({"kind": "rope-proportional", "share": share}, shape) == (
        f"rope-proportional: share must be above 0 to 1 and leave a lane that turns, got {share}: {turning} of 8; "
        "the paper's best is 0.75"
    )


# resonance


INNER = ["rope", {"kind": "rope-yarn", "factor": 8}, {"kind": "rope-linear", "factor": 3}, "rope-partial"]


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_resonance_rounds_the_wavelengths_of_another(inner):
    scheme = of("rope-resonance", heads_of(64), of=inner)
    kind, options = (inner, {}) if isinstance(inner, str) else (inner["kind"], {"factor": inner["factor"]})
    other = of(kind, heads_of(64), **options)
    wanted = np.round(2 * np.pi / other.frequencies(1).numpy())
    np.testing.assert_allclose(2 * np.pi / scheme.frequencies(1).numpy(), wanted, rtol=1e-14)
    assert scheme.gain(1) == other.gain(1)


def test_resonance_repeats_its_angles_exactly():
    """The paper's point: position m and m plus a wavelength are one to a lane."""
    scheme = of("rope-resonance", heads_of(64), of="rope")
    wavelengths = (2 * math.pi / scheme.frequencies(1)).round().long()
    assert wavelengths[:6].tolist() == [6, 8, 11, 15, 20, 26]  # 6.28, 8.38, 11.17, 14.90, 19.87, 26.50
    cos, sin = scheme.turn(torch.cat([torch.zeros(1, dtype=torch.long), wavelengths])[None], 9)
    for lane in range(32):
        assert cos[0, 0, 1 + lane, lane] == 1 and abs(sin[0, 0, 1 + lane, lane]) < 1e-11


def test_resonance_keeps_what_stands_still_and_what_depends_on_the_length(shape):
    found = of("rope-resonance", shape, of={"kind": "rope-proportional", "share": 0.5}).frequencies(1)
    assert (found[:4] > 0).all() and (found[4:] == 0).all()
    dynamic = of("rope-resonance", shape, of={"kind": "rope-yarn", "factor": "auto"})
    assert not dynamic.prefix_consistent and dynamic.gain(640) == pytest.approx(0.1 * math.log(10) + 1)
    assert of("rope-resonance", shape, of="rope").prefix_consistent
    spaced = {"kind": "rope", "base": 500.0, "layout": "interleaved"}
    assert of("rope-resonance", shape, of=spaced).layout == "interleaved"


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        ("alibi", "ALiBi"),
        ("nope", "NoPE"),
        ("xpos", "XPos"),
        ({"kind": "self-extend", "group": 2, "window": 9}, "SelfExtend"),
    ],
    ids=str,
)
def test_resonance_refuses_what_does_more_than_turn(inner, name, shape):
    assert refusal({"kind": "rope-resonance", "of": inner}, shape) == (
        f"rope-resonance: of must be a kind of RoPE that says frequencies alone, such as rope or rope-yarn, got {name}"
    )


# clip


@pytest.mark.parametrize(("size", "train_length", "base", "clipped"), [(64, 512, 1e4, 16), (128, 8192, 5e5, 29)])
def test_clip_fades_the_lanes_that_never_turn_once_in_training(size, train_length, base, clipped):
    """Half the lanes at 512 tokens and base 10000; 29 of Llama 3's 64."""
    share = lanes("rope-clip", size, train_length=train_length, base=base) / lanes("rope", size, base=base)
    window = np.hanning(2 * clipped - 1)[clipped - 1 :]  # from its peak down
    np.testing.assert_allclose(share[-clipped:], window, rtol=0, atol=1e-15)
    assert (share[: 1 - clipped] == 1).all() and share[-1] == 0


def test_clip_fades_as_many_as_it_is_told():
    share = lanes("rope-clip", 64, lanes=3) / lanes("rope", 64)
    np.testing.assert_allclose(share[-3:], [1, 0.5, 0], rtol=0, atol=1e-15)
    assert (share[:-2] == 1).all()


@pytest.mark.parametrize("train_length", [45000, 50000])
def test_clip_of_one_lane_or_none_is_plain_rope(train_length):
    """The last lane's wavelength is 47117 tokens, the one before's 35333."""
    assert np.array_equal(lanes("rope-clip", 64, train_length=train_length), lanes("rope", 64))


@pytest.mark.parametrize("count", [-1, 0, 1, 9])
def test_clip_refuses_lanes_that_make_no_fade(count, shape):
    assert refusal({"kind": "rope-clip", "lanes": count}, shape) == (
        f"rope-clip: lanes must be 2 to 8, the lanes of a head, got {count}; "
        "left out, those that turn less than once within the train length"
    )


# xpos


def xpos_score(q: np.ndarray, k: np.ndarray, distance: int, scale_base: float = 512.0) -> tuple[float, float]:
    """Of a query and a key so far apart, in halves: the score by the paper's formula, and the sum of absolute terms."""
    size = len(q)
    zeta = (2 * np.arange(size // 2) + 0.4 * size) / (1.4 * size)
    q, k = q[: size // 2] + 1j * q[size // 2 :], k[: size // 2] + 1j * k[size // 2 :]
    terms = q * k.conj() * zeta ** (distance / scale_base) * np.exp(1j * distance * plain(size))
    return terms.real.sum(), np.abs(terms).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale_base", [512, 2048])
def test_xpos_scores_are_the_formula_up_to_the_longest_input(scale_base, dtype):
    scheme = of("xpos", heads_of(64), scale_base=scale_base)
    assert scheme.limit == {512: 33994, 2048: 135977}[scale_base] and scheme.limit > 16384
    ids = torch.tensor([0, 1, 100, 2047, 16384, scheme.limit - 2, scheme.limit - 1])
    q, k = (torch.randn(1, 1, len(ids), 64, dtype=dtype) for _ in range(2))
    scores = torch.matmul(*((x if n == 0 else x.mT) for n, x in enumerate(scheme.rotate(q, k, at(ids)))))[0, 0]
    assert scores.isfinite().all()  # those of keys ahead too
    for i, m in enumerate(ids.tolist()):
        for j, n in enumerate(ids.tolist()[: i + 1]):
            wanted, size = xpos_score(q[0, 0, i].double().numpy(), k[0, 0, j].double().numpy(), m - n, scale_base)
            # fp32: cosines, queries and keys are each rounded by 6e-8 of themselves.
            assert scores[i, j].item() == pytest.approx(
                wanted, rel=0, abs=size * (5e-7 if dtype.itemsize == 4 else 1e-11)
            )


def test_xpos_has_the_published_zetas():
    """Read off two keys 512 apart that each hold one lane alone, turned to where the angle is no matter."""
    scheme, pos = of("xpos", heads_of(8)), at(torch.tensor([0, 512]))
    for lane, zeta in enumerate([0.285714, 0.464286, 0.642857, 0.821429]):
        x = torch.zeros(1, 1, 2, 8)
        x[..., [lane, lane + 4]] = 1
        q, k = scheme.rotate(x, x, pos)
        assert (q[0, 0, 1].norm() * k[0, 0, 0].norm()).item() == pytest.approx(2 * zeta, rel=3e-6)


def test_xpos_is_rope_where_nothing_shrinks():
    """ζ^0: at the middle of the positions."""
    q = torch.randn(1, 1, 9, 8)
    turned_by = [of(kind, heads_of(8)).rotate(q, q, Positions.first(9)) for kind in ("rope", "xpos")]
    for mine, other in zip(*turned_by, strict=True):
        assert torch.equal(mine[:, :, 4], other[:, :, 4]) and not torch.equal(mine[:, :, 0], other[:, :, 0])


def test_xpos_has_a_middle_for_each_row():
    """What one row holds does not change another's queries."""
    scheme, q = of("xpos", heads_of(8)), torch.randn(1, 1, 9, 8).expand(2, 1, 9, 8)
    ids = torch.stack([torch.arange(9), torch.arange(9) + 5000])
    rows = scheme.rotate(q, q, Positions(ids, 9, 5009))[0]
    assert torch.equal(rows[:1], scheme.rotate(q[:1], q[:1], Positions.first(9))[0])


def test_xpos_counts_tokens_where_positions_are_whole_and_positions_where_they_are_not():
    scheme, q = of("xpos", heads_of(8)), torch.randn(1, 1, 2, 8)
    scheme.rotate(q, q, at(torch.tensor([FAR, FAR + 1])))
    with pytest.raises(SchemeError) as caught:
        scheme.rotate(q, q, at(torch.tensor([0, FAR])))
    assert str(caught.value) == (
        "xpos with scale_base 512 takes at most 33994 tokens in torch.float32, got 131073: "
        "beyond, queries and keys overflow"
    )


def test_xpos_takes_shorter_inputs_in_half_precision():
    scheme, long = of("xpos", heads_of(8)), torch.ones(1, 1, 2267, 8)
    for dtype, most in ((torch.bfloat16, 33994), (torch.float16, 2266)):
        q = 16 * long[:, :, :most].to(dtype)
        turned_q, turned_k = scheme.rotate(q, q, Positions.first(q.shape[2]))
        assert turned_q.isfinite().all() and turned_k.isfinite().all()
    with pytest.raises(SchemeError, match="at most 2266 tokens in torch.float16, got 2267"):
        scheme.rotate(long.half(), long.half(), Positions.first(2267))


@pytest.mark.parametrize("scale_base", [0, -512, 5])
def test_xpos_refuses_a_scale_base_that_overflows_within_the_train_length(scale_base):
    assert refusal({"kind": "xpos", "scale_base": scale_base}, heads_of(8)) == (
        "xpos: scale_base must be at least 7.71 tokens for a train length of 512, or fp32 overflows, "
        f"got {scale_base}; the paper's is 512"
    )
