"""Attention without causality, and of queries that are no tokens: what encodings say there, and who runs it."""

# B batch · T tokens (keys) · Q queries · H heads · D head size

import math

import pytest
import torch
from attention_cases import (
    CROSS,
    FUSED,
    HERE,
    REMOTE,
    SLOPES,
    SYNTHETIC,
    B,
    D,
    H,
    T,
    across,
    assert_same,
    at_pair_bias,
    at_pair_keep,
    both,
    half_hidden,
    made,
    parts_of,
    random_inputs,
    skip_unless_able,
    through,
)
from conftest import spec_of
from stand_ins import install

from lab import LabError
from lab.attention import attend, obstacle
from positional import Positions, Scores, Shape, build
from positional.build import kinds

ACROSS = {
    "nothing": Scores(),
    "slopes": Scores(slopes=SLOPES.double()),
    "bias": Scores(bias=at_pair_bias),
    "keep": Scores(keep=at_pair_keep),
    "slopes and keep": Scores(slopes=SLOPES.double(), keep=at_pair_keep),
}
ONE_WAY = {
    "cable": "a token's gate says how much is forgotten of what came before it",
    "cope-contextual": "it counts tokens from a key up to the query",
    "dual-chunk": "its chunks all lie behind the query",
    "fire": "a query's own position bounds the distances behind it alone, and the network has seen no others",
    "fox": "a token's gate says how much is forgotten of what came before it",
    "lambda-mask": "its near and far keys both lie behind the query",
    "logn": "it takes a query to see as many tokens as lie up to it",
    "rerope": "its near and far keys both lie behind the query",
    "self-extend": "its near and far keys both lie behind the query",
    "ssmax": "it takes a query to see as many tokens as lie up to it",
    "xpos": "a score shrinks with the distance behind, and grows without bound with the distance ahead",
}


def by_hand(inputs, hidden=(0, 0), slopes=None) -> torch.Tensor:
    """softmax(q·k/√D - slope·|distance|)·v one query at a time; row b does not see its last hidden[b] keys."""
    q, k, v = inputs
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        keys = T - hidden[b]
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores = [
                    float(q[b, h, i] @ k[b, h, j]) / math.sqrt(q.shape[-1])
                    - (slopes[h] * abs(3 * i - j) if slopes else 0)
                    for j in range(keys)
                ]
                top = max(scores)
                weights = [math.exp(s - top) for s in scores]
                out[b, h, i] = sum(w / sum(weights) * v[b, h, j] for j, w in enumerate(weights))
    return out


@pytest.mark.parametrize("backend", HERE)
def test_queries_of_their_own_attend_as_the_formula_says(backend):
    pos = half_hidden()
    inputs = random_inputs(pos)
    found = attend(*inputs, Scores(), pos, backend)
    torch.testing.assert_close(found, by_hand(inputs, hidden=(0, 7)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", HERE)
def test_distances_are_between_the_positions_of_both(backend):
    pos = across(5)
    inputs = random_inputs(pos)
    found = attend(*inputs, Scores(slopes=SLOPES.double()), pos, backend)
    torch.testing.assert_close(found, by_hand(inputs, slopes=SLOPES.tolist()), rtol=0, atol=1e-7)  # slopes are fp32


@pytest.mark.parametrize("layout", CROSS)
@pytest.mark.parametrize("words", ACROSS)
@pytest.mark.parametrize("backend", FUSED)
def test_a_backend_agrees_with_eager_across(backend, words, layout):
    pos = CROSS[layout]()
    inputs = random_inputs(pos, kv_heads=2)
    found, exact = both(lambda name, x: attend(*x, ACROSS[words], pos, name), inputs, backend=backend)
    assert_same(found, exact, 1e-9)


@pytest.mark.parametrize("layout", CROSS)
@pytest.mark.parametrize("words", ACROSS)
@pytest.mark.parametrize("backend", REMOTE)
def test_a_kernel_for_gpus_runs_it_or_says_what_it_cannot(monkeypatch, backend, words, layout):
    install(monkeypatch)
    pos = CROSS[layout]()
    inputs = random_inputs(pos, kv_heads=1)
    with torch.no_grad():
        q, k, _ = inputs
        if reason := obstacle(backend, ACROSS[words], q, k, pos):
            able = backend == "flex" or (words == "nothing" and layout != "padded keys")
            assert not able, reason
            return
        found, exact = (attend(*inputs, ACROSS[words], pos, name) for name in (backend, "eager"))
    assert_same([found], [exact], 1e-6)


def test_a_flash_kernel_says_why_it_does_not_take_a_padded_source(monkeypatch):
    install(monkeypatch)
    pos = half_hidden()
    with pytest.raises(LabError) as caught:
        attend(*random_inputs(pos), Scores(), pos, "flash2")
    assert str(caught.value) == (
        "attention: flash2 takes padded or packed tokens only where all of them ask, and without `beyond`; sdpa, eager "
        "can, and auto picks sdpa"
    )


@pytest.mark.parametrize("backend", HERE)
def test_values_may_be_of_another_size_than_keys(backend):
    q, k, v = random_inputs(across(5))
    v = torch.cat([v, 2 * v[..., :3]], -1)
    found = attend(q, k, v, Scores(), across(5), backend)
    assert found.shape == (B, H, 5, D + 3)
    torch.testing.assert_close(found, by_hand([q, k, v]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("words", ["window", "decay", "beyond", "window and sinks"])
def test_words_that_count_tokens_are_refused_where_queries_are_none(words):
    pos = across(5)
    with pytest.raises(LabError, match="cross-attention has no .*: they count the tokens between a key and its query"):
        attend(*random_inputs(pos), SYNTHETIC[words], pos)


def test_more_queries_than_tokens_are_for_queries_that_are_none():
    q, k, v = random_inputs(across(T + 5))
    with pytest.raises(LabError, match="queries are the last of the tokens, so at most as many"):
        attend(q, k, v, Scores(), Positions.first(T, causal=False))


# without causality


def test_which_encodings_are_causal_only_and_why(shape):
    found = {kind: build(spec_of(kind), shape).causal_only for kind in kinds()}
    assert {kind: why for kind, why in found.items() if why} == ONE_WAY


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (["rope", "logn"], ONE_WAY["logn"]),
        ({"kind": "alternate", "schemes": ["rope", "fox"]}, ONE_WAY["fox"]),
        (["sinusoidal", "alibi"], None),
    ],
)
def test_a_stack_is_causal_only_where_a_member_is(shape, spec, why):
    assert build(spec, shape).causal_only == why


@pytest.mark.parametrize("backend", HERE)
def test_padding_at_the_end_changes_nothing_without_causality(any_spec, shape, backend):
    scheme = made(any_spec, shape)
    if scheme.causal_only or not scheme.prefix_consistent:
        pytest.skip(scheme.causal_only or "it follows the longest row")
    ids, segments = torch.arange(T)[None], (torch.arange(T) >= T - 7).long()[None].neg()
    pos = Positions(ids, T, T, contiguous=True, causal=False, segments=segments)
    inputs = [x[:1] for x in random_inputs(pos)]
    skip_unless_able(backend, parts_of(scheme, *inputs[:2], pos), pos)
    padded = through(scheme, inputs, pos, backend)[:, :, : T - 7]
    alone = through(scheme, [x[:, :, : T - 7] for x in inputs], Positions.first(T - 7, causal=False), backend)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["alibi", "sandwich", "kerple"])
def test_a_penalty_without_causality_is_the_same_ahead_as_behind(shape, kind):
    scheme, pos = made(kind, shape), Positions.first(9, causal=False)
    q, k, v = torch.zeros(1, H, 9, D), torch.zeros(1, H, 9, D), torch.randn(1, H, 9, D)
    out = through(scheme, [q, k, v], pos, "eager")
    mirrored = through(scheme, [q, k, v.flip(2)], pos, "eager").flip(2)
    torch.testing.assert_close(out, mirrored)


def test_a_head_may_be_of_another_size_than_its_share_of_the_width():
    shape = Shape(width=64, heads=4, kv_heads=4, layers=2, train_length=16, key_size=6)
    scheme = build("rope", shape)
    assert shape.head_dim == 6 and scheme.frequencies(16).shape == (3,)
    assert build("relative-shaw", shape).table.shape == (2, 33, 6)
    assert build("sinusoidal", shape).table(torch.arange(2)).shape == (2, 64)
