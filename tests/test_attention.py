"""Attention: the definition by hand, then every backend against it, for every encoding, layout and dtype."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from attention_cases import (
    CAP,
    DECAY,
    FUSED,
    HERE,
    LAYOUTS,
    NOTHING,
    ROWS,
    SLOPES,
    SUMMED,
    SYNTHETIC,
    TOLERANCE,
    D,
    H,
    Held,
    Largest,
    T,
    assert_same,
    at_pair_bias,
    at_pair_keep,
    both,
    learned_of,
    left_padded,
    made,
    packed,
    parts_of,
    random_inputs,
    scores_of,
    skip_unless_able,
    skipping,
    through,
    with_gradients,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lab import LabError
from lab.attention import BACKENDS, attend, attend_parts, capped, eager, sdpa
from positional import Positions, Scores, Shape, build
from positional.alibi import slopes

# eager is the definition


def by_hand(inputs: list[Tensor], seen, added, cap: float = math.inf) -> Tensor:
    """softmax over the keys that `seen(b, h, i, j)` says, of q·k/√D + added(b, h, i, j), one pair at a time."""
    capped = (lambda score: score) if cap == math.inf else lambda score: cap * math.tanh(score / cap)
    q, k, v = inputs
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        keys = [j for j in range(k.shape[2]) if seen(b, h, i, j)]
        products = [(q[b, h, i] @ k[b, h // group, j]).item() / math.sqrt(D) for j in keys]
        scores = [capped(product) + added(b, h, i, j) for product, j in zip(products, keys, strict=True)]
        weights = [math.exp(score) for score in scores]
        for j, weight in zip(keys, weights, strict=True):
            out[b, h, i] += weight / sum(weights) * v[b, h // group, j]
    return out


def test_eager_is_the_definition_of_every_word():
    pos = skipping()
    pos = Positions(pos.ids[:, :9], 5, pos.length, contiguous=False)
    inputs = random_inputs(pos, kv_heads=2)

    def seen(b, h, i, j):
        return 0 <= (i + 4) - j < 6 and (i * 5 + j * 3 + h + b) % 4 != 0

    def added(b, h, i, j):
        distance = (pos.ids[b, i + 4] - pos.ids[b, j]).item()
        return -slopes(H)[h] * distance + 0.3 * b - 0.2 * h + math.sin(i * 1.7 + j)

    for cap in (None, CAP):
        scores = Scores(slopes=SLOPES.double(), window=6, bias=at_pair_bias, keep=at_pair_keep, cap=cap)
        wanted = by_hand(inputs, seen, added, cap or math.inf)
        # at_pair_bias is fp32: 6e-8 of values near 1
        torch.testing.assert_close(attend(*inputs, scores, pos, "eager"), wanted, rtol=0, atol=1e-6)


def test_eager_is_the_definition_without_causality():
    pos = Positions.first(7, causal=False)
    inputs = random_inputs(pos)
    found = attend(*inputs, Scores(slopes=SLOPES, window=3), pos, "eager")
    wanted = by_hand(inputs, lambda b, h, i, j: abs(i - j) < 3, lambda b, h, i, j: -slopes(H)[h] * abs(i - j))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", HERE)
def test_packed_documents_are_as_if_alone(any_spec, shape, backend):
    scheme, pos = made(any_spec, shape), packed()
    inputs = random_inputs(pos)
    together = through(scheme, inputs, pos, backend)
    for row, start, end in [(0, 0, 10), (0, 10, 24), (1, 0, 3), (1, 3, 23), (1, 23, 24)]:
        parts = [x[row : row + 1, :, start:end] for x in inputs]
        alone = through(scheme, parts, Positions.first(end - start), backend)
        # Cosines and sines are fp32, and are the same for the same position.
        torch.testing.assert_close(together[row : row + 1, :, start:end], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", HERE)
def test_padding_on_the_left_changes_nothing(any_spec, shape, backend):
    scheme, pos = made(any_spec, shape), left_padded()
    inputs = random_inputs(pos)
    padded = through(scheme, inputs, pos, backend)[1:, :, 7:]
    alone = through(scheme, [x[1:, :, 7:] for x in inputs], Positions.first(T - 7), backend)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-9)


# every backend, every encoding


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kv_heads", [H, 2, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", FUSED)
def test_a_backend_agrees_with_eager_forward_and_backward(any_spec, shape, backend, layout, kv_heads, dtype):
    scheme, pos = made(any_spec, shape), LAYOUTS[layout]()
    inputs = random_inputs(pos, kv_heads=kv_heads)
    exact = with_gradients(lambda x: through(scheme, x, pos, "eager"), inputs, scheme.parameters())
    inputs = [x.to(dtype) for x in inputs]
    found = with_gradients(lambda x: through(scheme, x, pos, backend), inputs, scheme.parameters())
    assert all(x.isfinite().all() for x in found)
    assert_same(found, exact, TOLERANCE[dtype], SUMMED[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", HERE)
def test_bf16_is_close_to_the_exact_value_for_the_rounded_inputs(any_spec, shape, backend, layout):
    scheme, pos = made(any_spec, shape), LAYOUTS[layout]()
    q, k, v = random_inputs(pos, torch.bfloat16)
    parts = parts_of(scheme, q, k, pos)
    skip_unless_able(backend, parts, pos)
    found = attend_parts(parts, v, pos, backend)
    doubled = [(q.double(), k.double(), scores) for q, k, scores in parts]
    exact = attend_parts(doubled, v.double(), pos, "eager")
    assert found.dtype == torch.bfloat16
    # Weights, a bias of up to 4 and the output are each rounded to 8 bits: 2^-9 of 1, of 4 and of the output.
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2**-6)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kv_heads", [H, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("words", SYNTHETIC)
@pytest.mark.parametrize("backend", FUSED)
def test_a_backend_runs_every_combination_of_words(backend, words, layout, kv_heads, dtype):
    pos = LAYOUTS[layout]()
    scores, learned, inputs = scores_of(words, pos), learned_of(words), random_inputs(pos, kv_heads=kv_heads)
    exact = with_gradients(lambda x: attend(*x, scores, pos, "eager"), inputs, learned)
    found = with_gradients(lambda x: attend(*x, scores, pos, backend), [x.to(dtype) for x in inputs], learned)
    assert all(x.isfinite().all() for x in found)  # also where a query sees nothing
    assert_same(found, exact, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("words", ["nothing", *SYNTHETIC])
@pytest.mark.parametrize("backend", FUSED)
def test_a_backend_returns_the_log_sum_exp_of_every_combination_and_its_gradient(backend, words, layout, dtype):
    pos = LAYOUTS[layout]()
    scores, learned, inputs = scores_of(words, pos), learned_of(words), random_inputs(pos, kv_heads=2)

    def run(name: str, x: list[Tensor]) -> Tensor:
        """Output and sum as one tensor, so that the gradients of both come back together."""
        out, sums = attend(*x, scores, pos, name, lse=True)
        assert sums.shape == out.shape[:3] and sums.dtype == x[0].dtype
        return torch.cat([out, sums.clamp(min=-1e4)[..., None]], -1)  # -inf where a query sees nothing

    exact = with_gradients(partial(run, "eager"), inputs, learned)
    found = with_gradients(partial(run, backend), [x.to(dtype) for x in inputs], learned)
    assert_same(found, exact, TOLERANCE[dtype])


def test_eager_s_log_sum_exp_is_the_definition():
    pos = Positions.first(6)
    q, k, v = random_inputs(pos)
    _, sums = attend(q, k, v, Scores(beyond=2), pos, "eager", lse=True)
    for i in range(6):
        seen = (q[:, :, i : i + 1] * k[:, :, : max(0, i - 1)]).sum(-1) / math.sqrt(D)
        torch.testing.assert_close(sums[:, :, i], seen.exp().sum(-1).log(), rtol=0, atol=1e-12)


@given(
    tokens=st.integers(1, 80),
    queries=st.integers(1, 80),
    kv_heads=st.sampled_from([1, 2, 4]),
    window=st.none() | st.integers(1, 90),
    sinks=st.none() | st.integers(1, 90),
    words=st.sets(st.sampled_from(["slopes", "decay", "bias", "rows", "keep", "cap"])),
    causal=st.booleans(),
    chunk=st.sampled_from([1, 7, 512]),
    lse=st.booleans(),
)
@settings(deadline=None, max_examples=150, derandomize=True, database=None)
def test_a_backend_agrees_with_eager_at_any_size(tokens, queries, kv_heads, window, sinks, words, causal, chunk, lse):
    pos = Positions.first(tokens, queries=min(queries, tokens), causal=causal)
    every = {"slopes": SLOPES, "decay": DECAY[..., :tokens], "bias": at_pair_bias, "rows": ROWS, "keep": at_pair_keep}
    every["cap"] = CAP
    scores = Scores(window=window, sinks=window and sinks, **{word: every[word] for word in words})
    inputs = random_inputs(pos, kv_heads=kv_heads)
    exact = attend(*inputs, scores, pos, "eager", lse=lse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa, "CHUNK", chunk)
        patch.setattr(capped, "CHUNK", chunk)
        for backend in FUSED:
            # Slopes without causality are an fp32 mask: 6e-8 of up to 20.
            torch.testing.assert_close(attend(*inputs, scores, pos, backend, lse=lse), exact, rtol=0, atol=2e-6)


@given(
    window=st.integers(1, 40),
    more=st.sampled_from([-1, 0, 1]),
    queries=st.sampled_from([1, None]),
    word=st.sampled_from(["window", "beyond"]),
    sinks=st.none() | st.integers(1, 42),
    lse=st.booleans(),
)
@settings(deadline=None, max_examples=100, derandomize=True, database=None)
def test_a_window_s_edge_is_exact_where_it_meets_the_length(window, more, queries, word, sinks, lse):
    pos = Positions.first(max(1, window + more), queries=queries)
    inputs, scores = random_inputs(pos, torch.float32, kv_heads=2), Scores(**{word: window})
    if word == "window":
        scores = replace(scores, sinks=sinks)
    for backend in FUSED:
        found = attend(*inputs, scores, pos, backend, lse=lse)
        wanted = attend(*inputs, scores, pos, "eager", lse=lse)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@given(
    tokens=st.integers(3, 200),
    window=st.integers(1, 40),
    sinks=st.integers(1, 90),
    first=st.sampled_from([0, 1, 5]),
    queries=st.sampled_from([1, None]),
)
@settings(deadline=None, max_examples=100, derandomize=True, database=None)
def test_sinks_are_seen_once_and_are_those_at_the_first_positions(tokens, window, sinks, first, queries):
    """In bands and in chunks, whether or not they lie in the window, and where the first tokens are not at 0."""
    pos = Positions.first(tokens, queries=queries)
    pos = replace(pos, ids=pos.ids + first, length=tokens + first)
    inputs, scores = random_inputs(pos, kv_heads=2), Scores(window=window, sinks=sinks)
    wanted = attend(*inputs, scores, pos, "eager", lse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa, "CHUNK", 50)
        torch.testing.assert_close(attend(*inputs, scores, pos, "sdpa", lse=True), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sinks", [None, 4, 100])
@pytest.mark.parametrize(("tokens", "window"), [(300, 40), (700, 64), (769, 300), (1024, 256), (641, 320), (640, 320)])
def test_a_window_in_bands_agrees_with_eager(monkeypatch, tokens, window, sinks):
    """Windows below and above a block's size, a block cut short at the end, and, last, a window too wide for bands."""
    taken = []
    run = sdpa.banded
    monkeypatch.setattr(sdpa, "banded", lambda *a: taken.append(1) or run(*a))
    pos = Positions.first(tokens)
    inputs, scores = random_inputs(pos, kv_heads=2, batch=1), Scores(window=window, sinks=sinks)
    found, exact = both(lambda name, x: attend(*x, scores, pos, name), inputs, backend="sdpa")
    assert_same(found, exact, 1e-9)
    assert bool(taken) == (tokens > 2 * window + (sinks or 0))


@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 600])
def test_a_learned_bias_by_distance_agrees_with_eager_in_fp64(monkeypatch, tokens):
    """Forward, the inputs' gradients and the table's, over no, one and several borders of chunks."""
    taken = []
    run = sdpa.attend_by_distance
    monkeypatch.setattr(sdpa, "attend_by_distance", lambda *a: taken.append(1) or run(*a))
    scheme = made("relative", Shape(H * D, H, H, 1, 64))
    for queries in {tokens, max(1, tokens // 2)}:
        pos = Positions.first(tokens, queries=queries)
        inputs = random_inputs(pos, torch.float32, kv_heads=2)
        found, exact = (
            with_gradients(
                partial(through, scheme, pos=pos, backend=name), [x.to(dtype) for x in inputs], [scheme.table]
            )
            for name, dtype in (("sdpa", torch.float32), ("eager", torch.float64))
        )
        assert_same(found, exact, 1e-5, summed=1e-5)
    assert taken


def test_a_bias_by_distance_that_does_not_learn_sends_back_nothing_to_it():
    pos = Positions.first(300)
    inputs = random_inputs(pos, torch.float32)
    scores = Scores.of_distance(lambda d, h: -0.1 * d.float() - h, pos)
    found, exact = both(lambda name, x: attend(*x, scores, pos, name), inputs, backend="sdpa")
    assert_same(found, exact, 1e-5)


# several parts


def split_at(window: int, scores: Scores = NOTHING):
    """A scheme of two parts that say the same, near and far: together they are one."""

    def parts(q, k):
        return [(q, k, replace(scores, window=window)), (q, k, replace(scores, beyond=window))]

    return parts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [1, 9, T - 1, T])
@pytest.mark.parametrize("backend", HERE)
def test_parts_that_say_the_same_are_one_softmax(backend, window, layout):
    pos = LAYOUTS[layout]()
    q, k, v = random_inputs(pos, torch.float32, kv_heads=2)
    for scores in (NOTHING, Scores(slopes=SLOPES), Scores(bias=at_pair_bias), Scores(cap=CAP)):
        found = attend_parts(split_at(window, scores)(q, k), v, pos, backend)
        wanted = attend(q, k, v, scores, pos, "eager")
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", HERE)
def test_parts_send_back_the_gradient_of_one_softmax(backend, layout):
    pos = LAYOUTS[layout]()
    inputs = random_inputs(pos, kv_heads=2)
    for scores in (NOTHING, Scores(cap=CAP)):
        found = with_gradients(lambda x, s=scores: attend_parts(split_at(9, s)(*x[:2]), x[2], pos, backend), inputs)
        assert_same(found, with_gradients(lambda x, s=scores: attend(*x, s, pos, "eager"), inputs), 1e-9)


@pytest.mark.parametrize("backend", HERE)
def test_queries_that_see_nothing_in_any_part_have_no_output_and_no_gradient(backend):
    pos = Positions.first(8)
    q, k, v = (x.requires_grad_() for x in random_inputs(pos, torch.float32))
    out = attend_parts([(q, k, Scores(beyond=3)), (q, k, Scores(beyond=6))], v, pos, backend)
    for x, seen in zip(torch.autograd.grad(out.sum(), (q, k, v)), (slice(3, 8), slice(0, 5), slice(0, 5)), strict=True):
        assert x.isfinite().all() and not x[:, :, [i for i in range(8) if not seen.start <= i < seen.stop]].any()
    assert not out[:, :, :3].any() and out[:, :, 3:].isfinite().all() and out[:, :, 3:].any(-1).all()


def rotated(x: Tensor, place: int) -> Tensor:
    """RoPE with base 10000 of one (D,) vector, by hand: pairs are half a head apart."""
    half = len(x) // 2
    angle = place * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[:half], x[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


@pytest.mark.parametrize("backend", HERE)
def test_self_extend_is_the_paper_s_by_brute_force(shape, backend):
    """Keys nearer than the window at their distance, others at floor(i/g) + w - floor(w/g) - floor(j/g)."""
    group, window, pos = 3, 5, Positions.first(T)
    scheme = build({"kind": "self-extend", "group": group, "window": window}, shape)
    q, k, v = (x.double() for x in random_inputs(pos, torch.float32, kv_heads=2, batch=1))
    wanted = torch.zeros_like(q)
    for h, i in torch.cartesian_prod(torch.arange(H), torch.arange(T)).tolist():
        distances = [
            i - j if i - j < window else i // group + window - window // group - j // group for j in range(i + 1)
        ]
        products = [rotated(q[0, h, i], d) @ k[0, h // 2, j] for j, d in enumerate(distances)]
        wanted[0, h, i] = (torch.stack(products) / math.sqrt(D)).softmax(0) @ v[0, h // 2, : i + 1]
    found = through(scheme, [x.float() for x in (q, k, v)], pos, backend)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tokens", [16, 17, 18])
@pytest.mark.parametrize("backend", HERE)
def test_a_window_counts_the_query_itself(backend, tokens):
    """With 17, the last of 17 tokens still sees the first, and of 18 no longer."""
    pos = Positions.first(tokens)
    q, k, v = random_inputs(pos, batch=1)
    v = torch.zeros_like(v)
    v[:, :, 0] = 1
    seen = attend(q, k, v, Scores(window=17), pos, backend)[0, 0, -1, 0] > 0
    assert bool(seen) == (tokens <= 17)


@pytest.mark.parametrize("words", [*SYNTHETIC, "relative"])
@pytest.mark.parametrize("backend", FUSED)
def test_more_queries_than_a_chunk_agree_too(backend, words):
    pos = Positions.first(sdpa.CHUNK + 90)
    inputs = random_inputs(pos, batch=1)
    scheme = made("relative", Shape(H * D, H, H, 1, 64))
    scores = scheme.scores(*inputs[:2], pos) if words == "relative" else scores_of(words, pos, batch=1)
    learned = [*scheme.parameters(), *learned_of(words)]
    found, exact = both(lambda name, x: attend(*x, scores, pos, name), inputs, learned, backend=backend)
    assert_same(found, exact, 1e-9, summed=5e-5)  # 180000 terms in one bucket: √180000 · 6e-8


@pytest.mark.parametrize("backend", HERE)
def test_future_tokens_change_nothing(any_spec, shape, backend):
    scheme, pos, cut = made(any_spec, shape), Positions.first(T), 13
    inputs = random_inputs(pos)
    other = [torch.cat([x[:, :, :cut], -3 * x[:, :, cut:]], 2) for x in inputs]
    before, after = (through(scheme, x, pos, backend) for x in (inputs, other))
    torch.testing.assert_close(after[:, :, :cut], before[:, :, :cut], rtol=0, atol=1e-12)
    assert (after[:, :, cut:] - before[:, :, cut:]).abs().amax((0, 1, 3)).min() > 1e-2


@pytest.mark.parametrize("queries", [1, 2, 9])
@pytest.mark.parametrize("backend", HERE)
def test_the_last_queries_alone_are_those_of_the_whole(any_spec, shape, backend, queries):
    scheme, whole = made(any_spec, shape), Positions.first(T)
    q, k, v = random_inputs(whole)
    full = through(scheme, [q, k, v], whole, backend)
    last = through(scheme, [q[:, :, -queries:], k, v], Positions.first(T, queries=queries), backend)
    torch.testing.assert_close(last, full[:, :, -queries:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", FUSED)
def test_without_causality_a_backend_agrees_with_eager(any_spec, shape, backend):
    scheme, pos = made(any_spec, shape), Positions.first(T, causal=False)
    inputs = random_inputs(pos, kv_heads=2)
    skip_unless_able(backend, parts_of(scheme, *(x.requires_grad_() for x in inputs[:2]), pos), pos)
    found, exact = both(lambda name, x: through(scheme, x, pos, name), inputs, scheme.parameters(), backend=backend)
    assert_same(found, exact, 2e-6)  # slopes are an fp32 mask here: 6e-8 of up to 6
    assert not torch.allclose(found[0], through(scheme, inputs, Positions.first(T), backend))  # it did look ahead


@pytest.mark.parametrize("backend", HERE)
def test_relative_tells_ahead_from_behind_without_causality(shape, backend):
    """Values that are one at the key one ahead, and a table that favours the bucket of one ahead, find each other."""
    scheme, pos = build("relative", shape), Positions.first(8, causal=False)
    scheme.table.data[17] = 30.0
    q, k = torch.zeros(1, H, 8, D), torch.zeros(1, H, 8, D)
    v = torch.arange(8.0).view(1, 1, 8, 1).expand(1, H, 8, D)
    out = attend(q, k, v, scheme.scores(q, k, pos), pos, backend)
    torch.testing.assert_close(out[0, 0, :7, 0], torch.arange(1.0, 8.0), rtol=0, atol=1e-5)


# It was not always so: where positions restart without segments (`LabModel(position_ids=…)`), a key of the document
# before may lie ahead of the query; the extra channel then rewards its distance, which the definition penalises.
@pytest.mark.parametrize("backend", FUSED)
def test_slopes_hold_where_positions_do_not_rise(backend):
    ids = torch.tensor([[*range(10), *range(14)]])
    pos = Positions(ids, T, 14, contiguous=False)
    inputs, scores = random_inputs(pos), Scores(slopes=SLOPES)
    assert_same([attend(*inputs, scores, pos, "auto")], [attend(*inputs, scores, pos, "eager")], 1e-9)


# precision far out


# It was not always so: the centre is that of the length, not of the positions that are there; per row it would cost
# nothing, as softmax ignores it, and leave 2e-7.
@pytest.mark.parametrize("backend", FUSED)
def test_slopes_keep_their_precision_where_all_positions_are_large(backend):
    ids = torch.arange(T)[None] + 131072
    pos, scores = Positions(ids, T, 131072 + T), Scores(slopes=SLOPES)
    found = attend(*random_inputs(pos, torch.float32), scores, pos, backend)
    exact = attend(*random_inputs(pos), scores, pos, "eager")
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-6)


def alibi_case(tokens: int, heads: int, dtype, queries: int = 8):
    """The last queries of a long input under slopes, and their exact values for the inputs as rounded."""
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, heads, tokens, D, generator=draw).to(dtype) for _ in range(3))
    pos, scores = Positions.first(tokens, queries=queries), Scores(slopes=torch.tensor(slopes(heads)))
    last = q[:, :, -queries:]
    return (q, last, k, v), scores, pos, eager.attend(last.double(), k.double(), v.double(), scores, pos)


@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("tokens", [128, 2048, 8192])
def test_the_error_of_slopes_in_fp32_grows_with_length_as_documented(tokens, heads):
    (q, last, k, v), scores, pos, exact = alibi_case(tokens, heads, torch.float32)
    # The last query's scores are offset by slope · T/2, and rounded in proportion: one ulp of that, and of the rest.
    bound = scores.slopes.max().item() * tokens / 2 * 2**-23 + 1e-6
    assert (attend(last, k, v, scores, pos, "sdpa").double() - exact).abs().max() < bound
    whole = attend(q, k, v, scores, Positions.first(tokens), "sdpa")  # the causal kernel, not a mask
    assert (whole[:, :, -8:].double() - exact).abs().max() < bound


@pytest.mark.parametrize("heads", [8, 12])  # powers of two, and slopes that bf16 cannot hold
@pytest.mark.parametrize("tokens", [2048, 8192])
def test_slopes_in_bf16_cost_no_more_than_the_rounding_of_bf16(tokens, heads):
    (q, last, k, v), scores, pos, exact = alibi_case(tokens, heads, torch.bfloat16)
    found = attend(last, k, v, scores, pos, "sdpa").double()
    whole = attend(q, k, v, scores, Positions.first(tokens), "sdpa")[:, :, -8:].double()
    for one in (found, whole):
        # Weights below 1 and the output, each rounded by 2^-9. A position in bf16 would be off by 16 at 8192.
        torch.testing.assert_close(one, exact, rtol=2**-8, atol=2**-9)


@pytest.mark.parametrize("kv_heads", [H, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_decay_keeps_its_precision_far_out(dtype, kv_heads):
    """It adds up to 1200 here. In bf16, one part would be off by 2 and two by 0.01."""
    tokens = 8192
    decay = (0.3 * torch.rand(1, H, tokens, generator=torch.Generator().manual_seed(1))).cumsum(-1)
    pos = Positions.first(tokens, queries=8)
    q, k, v = random_inputs(pos, dtype, kv_heads, batch=1)
    found, sums = attend(q, k, v, Scores(decay=decay), pos, "sdpa", lse=True)
    exact = eager.attend(q.double(), k.double(), v.double(), Scores(decay=decay), pos, lse=True)
    # A score is offset by 600, and an ulp of that is 6e-5; in halves the weights and the output are rounded.
    close = {"rtol": 2**-8, "atol": 2**-9} if dtype.itemsize == 2 else {"rtol": 0, "atol": 1e-4}
    torch.testing.assert_close(found.double(), exact[0], **close)
    torch.testing.assert_close(sums.double(), exact[1], rtol=0, atol=3e-4)
    assert sums.dtype == torch.float32


def test_a_log_sum_exp_in_bf16_has_its_gradient():
    pos = Positions.first(T)
    inputs = random_inputs(pos, torch.bfloat16, kv_heads=2)

    def run(name: str, x: list[Tensor]) -> Tensor:
        out, sums = attend(*x, Scores(window=7), pos, name, lse=True)
        return torch.cat([out.float(), sums[..., None]], -1)

    found = with_gradients(partial(run, "sdpa"), inputs)
    exact = with_gradients(lambda x: run("eager", [one.double() for one in x]), inputs)
    assert all(x.any() for x in found)
    for mine, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(mine, wanted.to(mine.dtype), rtol=2**-7, atol=2**-7)


def test_slopes_that_bf16_cannot_hold_are_not_rounded_to_it():
    """Two keys, 1000 and 2000 behind, whose products make up for all but a little of their penalties of 74 and 149.

    Rounded to 8 bits, the last head's slope of 2^-3.75 would tilt the balance between them by 10 %.
    """
    pos = Positions.first(2048, queries=1)
    q, k, v = (torch.zeros(1, 24, n, D, dtype=torch.bfloat16) for n in (1, 2048, 2048))
    q[..., 0] = 8
    for behind, product, value in ((1000, 82, 1), (2000, 157, -1)):
        k[:, :, 2047 - behind, 0] = product * D**0.5 / 8
        v[:, :, 2047 - behind] = value
    scores = Scores(slopes=torch.tensor(slopes(24)))
    exact = eager.attend(q.double(), k.double(), v.double(), scores, pos)
    assert 0.1 < exact[0, -1].abs().max() < 0.9  # the two do compete
    torch.testing.assert_close(attend(q, k, v, scores, pos, "sdpa").double(), exact, rtol=0, atol=2**-7)


# It was not always so: a mask is cast to the dtype of the queries, so that a bias is rounded in proportion to what all
# keys of a query have in common, which softmax ignores; less each row's largest, it would cost one rounding of bf16.
@pytest.mark.parametrize("backend", HERE)
def test_what_a_bias_adds_to_all_keys_alike_costs_no_precision_in_bf16(backend):
    pos = Positions.first(64)
    q, k, v = random_inputs(pos, torch.bfloat16)
    scores = Scores(bias=lambda b, h, i, j: -32 - 0.1 * (i - j) + 0.0 * (h + b))
    exact = attend(q.double(), k.double(), v.double(), scores, pos, "eager")
    torch.testing.assert_close(attend(q, k, v, scores, pos, backend).double(), exact, rtol=2**-8, atol=2**-7)


# memory


def largest(scores_of, kv_heads: int = H, tokens: int = 2048, backend: str = "sdpa") -> int:
    """Elements of the largest tensor of a forward and backward pass."""
    pos = Positions.first(tokens)
    inputs = [x.requires_grad_() for x in random_inputs(pos, torch.float32, kv_heads, batch=1)]
    with Largest() as seen:
        attend(*inputs, scores_of(inputs[0], pos), pos, backend).sum().backward()
    return seen.elements


@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize("words", ["nothing", "slopes", "learned decay"])
def test_without_a_mask_sdpa_holds_nothing_larger_than_the_keys(words, kv_heads):
    of = (lambda q, pos: Scores(slopes=SLOPES)) if words == "slopes" else lambda q, pos: scores_of(words, pos, batch=1)
    assert largest(of, kv_heads) <= H * 2048 * (D + 8)


@pytest.mark.parametrize("sinks", [None, 4])
def test_a_window_is_held_in_bands_much_smaller_than_a_chunk(sinks):
    """Every 64 queries with their 71 keys, for all heads where the kernel widens a mask to them."""
    assert largest(lambda q, pos: Scores(window=7, sinks=sinks)) <= 2048 * H * (64 + 64 + 7 + (sinks or 0))


@pytest.mark.parametrize("words", [words for words in SYNTHETIC if words not in ("window", "window and sinks")])
def test_with_a_mask_sdpa_holds_a_chunk_of_queries_at_once(words):
    assert largest(lambda q, pos: scores_of(words, pos, batch=1)) <= 2048 * 2048 * H / 4


def test_capped_scores_are_held_by_chunks_much_smaller_than_those_of_a_mask():
    """The scores of 64 queries, or what enters attention."""
    assert largest(lambda q, pos: Scores(cap=CAP)) <= 2048 * H * max(D, capped.CHUNK)


def kept(scores_of, tokens: int = 4096) -> float:
    """What a forward pass keeps for its gradient: elements for each token."""
    pos = Positions.first(tokens)
    inputs = [x.requires_grad_() for x in random_inputs(pos, torch.float32, 1, batch=1)]
    with Held() as held:
        out = attend(*inputs, scores_of(inputs[0], pos), pos, "sdpa")
    assert out.requires_grad
    return held.elements / tokens


@pytest.mark.parametrize("words", ["learned bias", "learned rows", "learned decay", "learned decay and window"])
def test_what_is_kept_for_a_learned_gradient_grows_with_the_length_alone(words):
    many, few = (kept(lambda q, pos: scores_of(words, pos, batch=1), tokens) for tokens in (2048, 1024))
    assert many <= 1.05 * few


@pytest.mark.parametrize("words", ["keep", "bias", "slopes and keep", "cap", "cap and bias", "learned bias and cap"])
def test_the_masks_of_a_long_input_are_not_kept_either(words):
    many, few = (kept(lambda q, pos: scores_of(words, pos, batch=1), tokens) for tokens in (4096, 3072))
    assert many <= 1.05 * few


def test_the_measure_of_what_is_kept_sees_a_full_matrix(monkeypatch):
    monkeypatch.setattr(sdpa, "checkpoint", lambda run, *given, **how: run(*given))
    many, few = (kept(lambda q, pos: scores_of("learned rows", pos, batch=1), tokens) for tokens in (2048, 1024))
    assert many > 1.5 * few and many > H * 2048 / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("words", ["nothing", "window", "beyond", "decay", "bias", "learned rows", "cap"])
def test_a_log_sum_exp_needs_no_full_matrix_either(words, dtype):
    pos = Positions.first(2048)
    inputs = [x.requires_grad_() for x in random_inputs(pos, dtype, batch=1)]
    with Largest() as seen:
        out, sums = attend(*inputs, scores_of(words, pos, batch=1), pos, "sdpa", lse=True)
        (out.float().sum() + sums[:, :, 100:].sum()).backward()
    assert seen.elements <= 2048 * 2048 * H / 4


def test_a_learned_bias_is_held_by_chunks_too():
    scheme = made("relative", Shape(H * D, H, H, 1, 64))
    assert largest(lambda q, pos: scheme.scores(q, q, pos)) <= 2048 * 2048 * H / 4


def test_the_measure_of_memory_sees_a_full_matrix():
    assert largest(lambda q, pos: Scores(), tokens=256, backend="eager") == H * 256 * 256


# what is refused


def refusal(q: Tensor, k: Tensor, v: Tensor, pos: Positions, scores: Scores = NOTHING, backend: str = "auto") -> str:
    with pytest.raises(LabError) as caught:
        attend(q, k, v, scores, pos, backend)
    return str(caught.value)


def zeros(heads: int, tokens: int) -> Tensor:
    return torch.zeros(2, heads, tokens, D)


def test_more_queries_than_keys_are_refused():
    message = refusal(zeros(4, 9), zeros(4, 8), zeros(4, 8), Positions.first(8))
    assert message == "9 queries on 8 keys: queries are the last of the tokens, so at most as many"


def test_heads_that_cannot_share_keys_are_refused():
    message = refusal(zeros(4, 8), zeros(3, 8), zeros(3, 8), Positions.first(8))
    assert message == "4 query heads cannot share keys (2, 3, 8, 16) and values (2, 3, 8, 16)"
    message = refusal(zeros(4, 8), zeros(2, 8), zeros(2, 7), Positions.first(8))
    assert message == "4 query heads cannot share keys (2, 2, 8, 16) and values (2, 2, 7, 16)"


def test_positions_of_other_tokens_are_refused():
    q = zeros(4, 8)
    for pos, has in ((Positions.first(9), "9 queries on 9"), (Positions.first(8, queries=3), "3 queries on 8")):
        assert refusal(q, q, q, pos) == f"positions are for {has} tokens, attention got 8 on 8"


# It was not always so: three rows of positions for a batch of two; eager takes the first two without a word.
@pytest.mark.parametrize("backend", HERE)
def test_positions_of_other_rows_are_refused(backend):
    q, pos = zeros(4, 8), Positions(torch.arange(8).expand(3, 8), 8, 8)
    assert "3" in refusal(q, q, q, pos, Scores(slopes=SLOPES), backend)


def test_an_unknown_backend_is_told_what_there_is():
    q = zeros(4, 8)
    message = refusal(q, q, q, Positions.first(8), backend="flash9")
    assert message == f"no attention backend `flash9`; there are auto, {', '.join(BACKENDS)}"


def test_a_backend_that_lacks_a_word_or_refuses_a_call_says_which_can(monkeypatch):
    q, pos = zeros(4, 8), Positions.first(8)
    limited = SimpleNamespace(can=frozenset({"window"}), refuses=lambda *_: "needs a GPU")
    monkeypatch.setitem(BACKENDS, "limited", limited)
    message = refusal(q, q, q, pos, Scores(slopes=SLOPES, window=3, keep=at_pair_keep), "limited")
    assert message == "attention: limited does not run keep, slopes; sdpa, eager can, and auto picks sdpa"
    message = refusal(q, q, q, pos, Scores(window=3), "limited")
    assert message == "attention: limited needs a GPU; sdpa, eager can, and auto picks sdpa"


def test_auto_takes_the_first_backend_that_is_able(monkeypatch):
    taken = []
    first = SimpleNamespace(
        can=frozenset({"window"}),
        refuses=lambda *_: None,
        attend=lambda *_: taken.append("first") or torch.zeros(1),
    )
    order = {"first": first, **BACKENDS}
    monkeypatch.setattr("lab.attention.BACKENDS", order)
    q, pos = zeros(4, 8), Positions.first(8)
    attend(q, q, q, Scores(window=3), pos)
    assert taken == ["first"]
    assert attend(q, q, q, Scores(slopes=SLOPES), pos).shape == q.shape and taken == ["first"]


def test_a_query_that_sees_nothing_has_no_output():
    pos = Positions.first(8)
    inputs = random_inputs(pos)
    for backend in HERE:
        for cap in (None, CAP):
            out = attend(*inputs, Scores(keep=lambda b, h, i, j: (i != 3) & (j >= 0), cap=cap), pos, backend)
            assert not out[:, :, 3].any() and out[:, :, 4].all()


def test_a_scheme_and_its_copy_attend_alike(any_spec, shape):
    """Nothing that matters is kept outside the parameters."""
    scheme, pos = made(any_spec, shape), Positions.first(T)
    inputs = random_inputs(pos)
    twin = copy.deepcopy(scheme)
    assert torch.equal(through(twin, inputs, Positions.first(T), "auto"), through(scheme, inputs, pos, "auto"))
