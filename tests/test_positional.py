"""Every encoding: the properties all must have, then each against its paper's formula or another implementation."""

# B batch · T tokens · H heads · D head size · C width · P how far all positions are shifted

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from lab import check
from lab.attention import attend_parts, eager
from positional import Positions, SchemeError, Shape, build
from positional.alibi import slopes

ABSOLUTE = {"sinusoidal", "learned", "self-extend", "fire", "logn", "ssmax"}
"""Kinds whose output depends on where the text begins: self-extend groups positions. No other kind's does."""
ORDERLESS = {"nope", "window", "logn", "ssmax", "pose", "random-positions"}
"""Kinds to which two tokens that trade places before a third are the same."""
FAR = 131072


def of(kind: str, shape: Shape, **options):
    return build({"kind": kind, **options}, shape)


def heads_of(size: int, heads: int = 1, train_length: int = 512) -> Shape:
    return Shape(size * heads, heads, heads, 2, train_length)


def at(ids: Tensor) -> Positions:
    """These positions in one row."""
    return Positions(ids[None], len(ids), int(ids.max()) + 1, bool((ids.diff() == 1).all()))


def output(scheme, shape: Shape, pos: Positions, dtype=torch.float64) -> Tensor:
    """What the first layer's attention makes of the same random tokens at these positions: (1, H, T, D)."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(1, pos.tokens, shape.width, dtype=torch.float64, generator=draw).to(dtype)
    mix = torch.randn(3, shape.width, shape.width, dtype=torch.float64, generator=draw).to(dtype) / shape.width**0.5
    x = scheme.embed(x, pos)
    q, k, v = (x @ mix).unflatten(-1, (shape.heads, -1)).transpose(-2, -3).unsqueeze(1)
    scheme = scheme.at(0)
    pos = replace(pos, notes=scheme.note(x, pos))
    return attend_parts(scheme.parts(q, k, pos), v, pos, "eager")


def randomised(scheme):
    """With weights that are not zero, so that a learned table that is never read would show."""
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.normal_()
    return scheme


def refusal(spec, shape: Shape) -> str:
    with pytest.raises(SchemeError) as caught:
        build(spec, shape)
    return str(caught.value)


# every kind


@pytest.mark.parametrize("name", check.PROPERTIES)
def test_every_property_holds(any_spec, shape, name):
    """What `lab check` tries on a user's own encoding."""
    try:
        found = check.PROPERTIES[name](any_spec, shape)
    except check.Skips as reason:
        pytest.skip(str(reason))
    kind = any_spec["kind"]
    if name == "shift":
        assert ("absolute" in (found or "")) == (kind in ABSOLUTE), found
    if name == "order":
        assert (found is not None) == (kind in ORDERLESS), found
    if name == "paper":
        assert found is None


@pytest.mark.parametrize("kind", ["rope-linear", "rope-ntk"])
def test_an_auto_factor_depends_on_the_longest_position(kind, shape):
    scheme = of(kind, shape, factor="auto")
    here, there = (output(scheme, shape, at(torch.arange(20) + p)) for p in (0, 1000))
    assert (there - here).abs().max() > 0.1
    assert not scheme.prefix_consistent and of(kind, shape, factor=8).prefix_consistent


# It was not always so: `Rope.rotate` remembers its angles under id(self), and a new scheme may get a dead one's id.
def test_two_encodings_may_share_positions_one_after_the_other(shape):
    """What one keeps there for its other layers must not be found by another that sits at the same address."""
    pos, q = Positions.first(8), torch.ones(1, 4, 8, 16)
    for base in range(2, 40):
        shared = of("rope", shape, base=float(base)).rotate(q, q, pos)[0]
        alone = of("rope", shape, base=float(base)).rotate(q, q, Positions.first(8))[0]
        assert torch.equal(shared, alone)


# nope


def test_nope_does_nothing(shape):
    scheme, pos, x, q = of("nope", shape), Positions.first(9), torch.randn(1, 9, 64), torch.randn(1, 4, 9, 16)
    turned_q, turned_k = scheme.rotate(q, q, pos)
    assert scheme.embed(x, pos) is x and turned_q is q and turned_k is q
    assert not scheme.scores(q, q, pos).needs and not list(scheme.parameters())


# sinusoidal


def test_sinusoidal_is_the_vector_of_the_paper_at_width_8_and_position_3():
    table = of("sinusoidal", heads_of(8)).table(torch.tensor([3]))[0]
    wanted = [0.14112, -0.989992, 0.29552, 0.955336, 0.0299955, 0.99955, 0.003, 0.9999955]
    torch.testing.assert_close(table, torch.tensor(wanted), rtol=0, atol=1e-6)  # the digits given


@pytest.mark.parametrize(("width", "base"), [(64, 10000.0), (128, 500.0)])
def test_sinusoidal_is_the_formula_in_float64_at_any_position(width, base):
    ids = np.array([0, 1, 2, 511, 4096, 65537, FAR])
    angles = ids[:, None] / base ** (2 * np.arange(width // 2) / width)
    table = of("sinusoidal", heads_of(width), base=base).table(torch.tensor(ids)).double().numpy()
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), rtol=0, atol=2**-24)  # half an ulp of fp32 below 1
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), rtol=0, atol=2**-24)


def test_sinusoidal_is_added_at_the_positions_of_the_queries():
    scheme, x = of("sinusoidal", heads_of(8)), torch.randn(1, 2, 8)
    ids = torch.tensor([[5, 6, 7, 9]])
    added = scheme.embed(x, Positions(ids, 2, 10, contiguous=False)) - x
    torch.testing.assert_close(added, scheme.table(torch.tensor([[7, 9]])), rtol=0, atol=1e-6)


def test_sinusoidal_refuses_an_odd_width_and_a_base_that_is_none():
    odd = Shape(width=9, heads=1, kv_heads=1, layers=1, train_length=8)
    assert refusal("sinusoidal", odd) == "sinusoidal needs an even width, got 9: sines and cosines come in pairs"
    message = refusal({"kind": "sinusoidal", "base": 1}, heads_of(8))
    assert message == "sinusoidal: base must be above 1, got 1; the paper's is 10000"


# learned


def test_learned_adds_the_row_of_each_position(shape):
    scheme, x = of("learned", shape), torch.randn(2, 3, 64)
    ids = torch.tensor([[0, 1, 2, 3], [9, 8, 63, 0]])
    added = scheme.embed(x, Positions(ids, 3, 64, contiguous=False)) - x
    torch.testing.assert_close(added, scheme.table[ids[:, 1:]], rtol=0, atol=1e-6)


def test_learned_starts_at_the_spread_asked_for():
    table = of("learned", heads_of(512), std=0.5).table
    assert table.shape == (512, 512) and table.std().item() == pytest.approx(0.5, rel=0.01)  # 4 standard errors: 0.0055
    assert refusal({"kind": "learned", "std": -1}, heads_of(8)) == "learned: std must not be negative, got -1"


def test_learned_has_no_vector_beyond_its_table(shape):
    scheme = of("learned", shape)
    assert scheme.limit == 64
    scheme.embed(torch.zeros(1, 64, 64), Positions.first(64))
    with pytest.raises(SchemeError) as caught:
        scheme.embed(torch.zeros(1, 65, 64), Positions.first(65))
    assert str(caught.value) == (
        "learned has a vector for each of 64 positions and none for position 64: "
        "run at most 64 tokens, or train at a longer length"
    )


# relative


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (64, 256), (16, 128), (32, 1024), (4, 3)])
def test_relative_buckets_are_those_of_t5(shape, buckets, farthest, causal):
    distance = torch.arange(-4095, 4096)
    ours = of("relative", shape, buckets=buckets, farthest=farthest).bucket(distance, causal)
    theirs = T5Attention._relative_position_bucket(-distance, not causal, buckets, farthest)
    assert torch.equal(ours, theirs)


def test_relative_buckets_are_the_vector_read_from_t5(shape):
    bucket = of("relative", shape).bucket
    causal = (
        {d: d for d in range(16)} | {d: 16 for d in (16, 17, 18)} | {19: 17, 20: 17, 21: 18, 23: 18, 24: 19, 26: 19}
    )
    causal |= {27: 20, 30: 20, 31: 21, 40: 23, 46: 24, 63: 26, 90: 29, 112: 30, 113: 31, 100000: 31, -1: 0, -50: 0}
    both = {1: 1, -1: 17, 8: 8, -8: 24, 32: 12, -32: 28, 127: 15, -127: 31}  # by distance: a key ahead is negative
    for vector, is_causal in ((causal, True), (both, False)):
        assert bucket(torch.tensor(list(vector)), is_causal).tolist() == list(vector.values())


def test_relative_adds_its_tables_entry_for_head_and_distance(shape):
    scheme, pos = randomised(of("relative", shape)), Positions.first(200, queries=3)
    q = torch.zeros(1, 4, 3, 16)
    bias = scheme.scores(q, q, pos).bias(*eager.grid(1, 4, 3, 200, "cpu"))
    for head, query, key, bucket in [(0, 2, 199, 0), (3, 2, 189, 10), (1, 0, 0, 31), (2, 1, 158, 23)]:
        assert bias[0, head, query, key] == scheme.table[bucket, head]


def test_relative_starts_without_a_preference(shape):
    assert not of("relative", shape).table.any()


@pytest.mark.parametrize("buckets", [0, 2, 30, -4])
def test_relative_refuses_buckets_that_do_not_halve_twice(shape, buckets):
    message = refusal({"kind": "relative", "buckets": buckets}, shape)
    assert message == f"relative: buckets must be a positive multiple of 4, got {buckets}; T5 has 32"


def test_relative_refuses_a_farthest_within_the_exact_buckets(shape):
    message = refusal({"kind": "relative", "farthest": 16}, shape)
    assert message == "relative: farthest must exceed buckets/2 = 16, got 16; T5 has 128"


# alibi


@pytest.mark.parametrize("heads", range(1, 65))
def test_alibi_slopes_are_those_of_bloom_and_mpt(heads):
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # slope · 1
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]  # slope · (0 - 1)
    # BLOOM takes powers of a base rounded to fp32: up to 16 times its error of 6e-8.
    torch.testing.assert_close(torch.tensor(slopes(heads)), bloom, rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.tensor(slopes(heads)), mpt, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (1, [2**-8]),
        (3, [0.0625, 0.00390625, 0.25]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (12, [2.0**-n for n in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)]),
    ],
)
def test_alibi_slopes_are_the_published_ones(heads, wanted):
    assert slopes(heads) == pytest.approx(wanted, rel=1e-15)


def test_alibi_says_its_slopes_and_nothing_else_in_fp32():
    q = torch.zeros(1, 6, 1, 8, dtype=torch.bfloat16)
    said = of("alibi", heads_of(8, heads=6)).scores(q, q, Positions.first(1))
    assert said.needs == {"slopes"} and said.slopes.dtype == torch.float32 and said.slopes.tolist() == slopes(6)


# window


def visible_to_the_last(spec, shape: Shape, pos: Positions) -> list[int]:
    """The tokens that the last query sees, in row 0."""
    q = torch.zeros(1, shape.heads, pos.queries, shape.head_dim)
    seen = eager.visible(
        build(spec, shape).scores(q, q, pos), pos, *eager.grid(1, shape.heads, pos.queries, pos.tokens, "cpu")
    )
    return seen[0, 0, -1].nonzero().flatten().tolist()


@pytest.mark.parametrize("queries", [1, 3, 12])
def test_a_window_shows_the_last_tokens_and_sinks_the_first(shape, queries):
    pos = Positions.first(12, queries=queries)
    for window, sinks, seen in [(1, 0, [11]), (4, 0, [8, 9, 10, 11]), (3, 2, [0, 1, 9, 10, 11]), (12, 1, [*range(12)])]:
        assert visible_to_the_last({"kind": "window", "window": window, "sinks": sinks}, shape, pos) == seen


def test_sinks_are_the_first_tokens_of_a_text_and_not_of_the_row(shape):
    """Behind padding, which is another segment, and in a row that holds two texts."""
    spec = {"kind": "window", "window": 2, "sinks": 1}
    ids, segments = torch.tensor([[0, 0, 0, 1, 2, 3]]), torch.tensor([[-1, -1, 0, 0, 0, 0]])
    assert visible_to_the_last(spec, shape, Positions(ids, 6, 4, segments=segments)) == [2, 4, 5]
    ids, segments = torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    assert visible_to_the_last(spec, shape, Positions(ids, 7, 4, segments=segments)) == [3, 5, 6]


def test_a_window_says_how_far_it_reaches(shape):
    """What a cache may forget; in a stack, beyond the member that reaches least far."""
    assert of("window", shape, window=7).reach == 7 and of("window", shape, window=7, sinks=1).reach is None
    assert build(["rope", {"kind": "window", "window": 7}], shape).reach == 7
    assert build(["rope", "relative"], shape).reach is None


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (-1, 4), (8, -1)])
def test_a_window_refuses_what_is_none(shape, window, sinks):
    assert refusal({"kind": "window", "window": window, "sinks": sinks}, shape) == (
        f"window must be at least 1 and sinks not negative, got window {window} and sinks {sinks}; 512 and 4 are usual"
    )


# It was not always so: YAML's .nan and .inf are floats; the comparisons that should refuse them are false for NaN, and
# nothing bounds them from above, so that training would begin and every loss be NaN.
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("spec", [("rope", "base"), ("sinusoidal", "base"), ("rope-ntk", "factor"), ("learned", "std")])
def test_a_number_that_is_not_finite_is_refused(spec, value, shape):
    kind, option = spec
    assert f"got {value}" in refusal({"kind": kind, option: value}, shape)
