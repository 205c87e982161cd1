"""Learned and fixed biases, and queries that grow: each against its paper's formula, written anew in float64."""

# B batch · T tokens · H heads · D head size · C width

import math
from functools import partial

import numpy as np
import pytest
import torch
from attention_cases import assert_same, made, packed, random_inputs, skipping, through, with_gradients
from torch import Tensor

from lab.attention import eager, sdpa
from positional import Positions, SchemeError, Shape, build
from positional.fire import lines

T, H, D = 24, 4, 16
SHAPE = Shape(width=H * D, heads=H, kv_heads=2, layers=2, train_length=64)


def of(kind: str, shape: Shape = SHAPE, **options):
    return build({"kind": kind, **options}, shape)


def refusal(spec, shape: Shape = SHAPE) -> str:
    with pytest.raises(SchemeError) as caught:
        build(spec, shape)
    return str(caught.value)


def by_distance(scheme, distances: list[int], pos: Positions) -> np.ndarray:
    """The bias at each distance, for every head: (H, N)."""
    q = torch.zeros(1, scheme.shape.heads, 1, scheme.shape.head_dim)
    with torch.no_grad():
        bias = scheme.scores(q, q, pos).bias
        return bias.vector(torch.tensor(distances), scheme.shape.heads).double().numpy()


def in_layer(pos: Positions, layer: int) -> Positions:
    return Positions(pos.ids, pos.queries, pos.length, pos.contiguous, pos.causal, pos.segments, layer)


def softmax_over(pos: Positions, inputs: list[Tensor], score) -> Tensor:
    """Attention of (B, H, T, D) float64 inputs with score(b, h, i, j), one pair of tokens at a time."""
    q, k, v = inputs
    out, group = torch.zeros_like(q), q.shape[1] // k.shape[1]
    segments = torch.zeros_like(pos.ids) if pos.segments is None else pos.segments
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        row = segments[b % len(segments)]
        seen = [j for j in range(i + 1) if row[j] == row[i]]
        weights = torch.tensor([score(b, h, i, j) for j in seen], dtype=torch.float64).softmax(0)
        out[b, h, i] = weights @ v[b, h // group, seen]
    return out


# kerple


def kerple(form: str, scale: list[float], rate: list[float]):
    """With the paper's r1 and r2 a head, which the parameters hold through a softplus or a sigmoid."""
    scheme = of("kerple", form=form)
    scale, rate = (torch.tensor(x, dtype=torch.float64) for x in (scale, rate))
    scheme.scale.data = scale.expm1().log().float()
    scheme.rate.data = (rate.expm1().log() if form == "log" else (rate / 2).logit()).float()
    return scheme


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_is_the_papers_kernel_of_distance(form):
    r1, r2, distances = [0.01, 0.3, 1.0, 2.0], [0.02, 0.5, 1.0, 1.9], [0, 1, 2, 7, 63, 512, 16383]
    found = by_distance(kerple(form, r1, r2), distances, Positions.first(1))
    for h, (a, b) in enumerate(zip(r1, r2, strict=True)):
        wanted = [-a * math.log(1 + b * d) if form == "log" else -a * d**b for d in distances]
        np.testing.assert_allclose(found[h], wanted, rtol=2e-5, atol=0)  # fp32 exponents: 1e-7 · log 16383


def test_kerple_s_power_of_one_is_alibi_s_line():
    found = by_distance(kerple("power", [0.25] * 4, [1.0] * 4), [0, 1, 10, 1000], Positions.first(1))
    np.testing.assert_allclose(found, np.tile([0, -0.25, -2.5, -250], (4, 1)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_treats_keys_ahead_as_those_behind(form):
    scheme = made({"kind": "kerple", "form": form}, SHAPE)
    found = by_distance(scheme, [-9, 9, -1, 1], Positions.first(T, causal=False))
    assert (found[:, ::2] == found[:, 1::2]).all() and found[:, 0].all()


@pytest.mark.parametrize(("form", "ranges"), [("log", (2, 1)), ("power", (1, 2))])
def test_kerple_starts_where_the_paper_draws(form, ranges):
    scheme = of("kerple", Shape(4096, 4096, 4096, 1, 64), form=form)
    scale = torch.nn.functional.softplus(scheme.scale)
    rate = torch.nn.functional.softplus(scheme.rate) if form == "log" else 2 * scheme.rate.sigmoid()
    for drawn, top in zip((scale, rate), ranges, strict=True):
        assert 0 < drawn.min() < 0.02 * top and 0.98 * top < drawn.max() < top
        assert drawn.mean().item() == pytest.approx(top / 2, abs=0.02 * top)  # 4 standard errors


def test_kerple_has_two_forms():
    message = refusal({"kind": "kerple", "form": "linear"})
    assert message.startswith(
        "kerple: `form` must be log or power, got 'linear'; form: log, which the paper found best"
    )


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_learns_by_the_kernel_that_holds_one_number_a_distance(monkeypatch, form):
    """Over a border of chunks, forward and backward, to eager in float64."""
    taken, run = [], sdpa.attend_by_distance
    monkeypatch.setattr(sdpa, "attend_by_distance", lambda *a: taken.append(1) or run(*a))
    scheme, pos = made({"kind": "kerple", "form": form}, SHAPE), Positions.first(300)
    inputs = random_inputs(pos, torch.float32, kv_heads=2, batch=1)
    found, exact = (
        with_gradients(partial(through, scheme, pos=pos, backend=name), [x.to(to) for x in inputs], scheme.parameters())
        for name, to in (("sdpa", torch.float32), ("eager", torch.float64))
    )
    assert_same(found, exact, 1e-5, summed=1e-5)
    assert taken


# sandwich


@pytest.mark.parametrize(("width", "heads"), [(128, 4), (8, 12), (2, 1)])
def test_sandwich_is_the_inner_product_of_sinusoids_by_a_ratio_a_head(width, heads):
    distances = np.array([0, 1, 2, 17, 511, 8191])
    angles = np.outer([0, 8191], 10000.0 ** (-2 * np.arange(width // 2) / width))  # two tokens, far apart
    product = np.cos(angles[1] - angles[0]).sum()
    scheme = of("sandwich", Shape(heads * D, heads, heads, 1, 64), width=width)
    found = by_distance(scheme, distances.tolist(), Positions.first(8192, queries=1))
    sines, cosines = np.sin(angles), np.cos(angles)
    assert sines[0] @ sines[1] + cosines[0] @ cosines[1] == pytest.approx(product, abs=1e-9)
    for h in range(heads):
        assert found[h, -1] == pytest.approx((product - width / 2) / (8 * (h + 1) / heads), rel=1e-6)
        assert found[h, 0] == 0
    table = [sum(math.cos(d / 10000 ** (2 * i / width)) for i in range(width // 2)) for d in distances]
    np.testing.assert_allclose(found[0], (np.array(table) - width / 2) / (8 / heads), rtol=1e-6, atol=1e-6)


def test_sandwich_knows_distances_ahead_and_those_of_packed_rows():
    scheme = of("sandwich")
    found = by_distance(scheme, [-5, 5], Positions.first(8, causal=False))
    assert (found[:, 0] == found[:, 1]).all() and found.all()
    pos = packed()
    q, k, v = random_inputs(pos)
    bias = scheme.scores(q, k, pos).bias(*eager.grid(2, H, 24, 24, "cpu"))  # row 1: documents of 3, 20 and 1
    assert bias[1, 0, 22, 3] == pytest.approx(by_distance(scheme, [19], Positions.first(24))[0, 0], abs=0)


@pytest.mark.parametrize("width", [0, 7, -2])
def test_sandwich_refuses_a_width_without_pairs(width):
    message = refusal({"kind": "sandwich", "width": width})
    assert message == f"sandwich: width must be a positive even number of channels, got {width}; the paper's is 128"


# fire


def fire_by_hand(scheme, layer: int, query: int, key: int) -> list[float]:
    """The bias of each head for tokens at these positions."""
    c, stretch, hidden, out = (
        x.detach().double().numpy() for x in (scheme.c, scheme.stretch, scheme.hidden, scheme.out)
    )

    def psi(x: float) -> float:
        return math.log(abs(c[layer]) * x + 1)

    x = psi(query - key) / (psi(max(query, abs(stretch[layer]) * scheme.threshold)) + 1e-6)
    units = [max(0.0, w * x + b) for w, b in zip(*hidden[:, layer], strict=True)]
    return [sum(u * o for u, o in zip(units, out[layer, :, h], strict=True)) for h in range(out.shape[2])]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(
    "layout", [skipping, packed, lambda: Positions.first(T, queries=5)], ids=["skipping", "packed", "last queries"]
)
def test_fire_is_the_papers_network_of_positions(layout, layer):
    scheme, pos = made("fire", SHAPE), in_layer(layout(), layer)
    q = torch.zeros(2, H, pos.queries, D, dtype=torch.float64)
    rows = scheme.scores(q, q, pos).rows(torch.arange(pos.queries), torch.arange(T))
    ids, last = pos.ids, pos.tokens - pos.queries
    for b, i, j in torch.cartesian_prod(torch.arange(len(ids)), torch.arange(pos.queries), torch.arange(T)).tolist():
        query, key = ids[b, i + last].item(), ids[b, j].item()
        if key <= query:
            wanted = fire_by_hand(scheme, layer, query, key)
            np.testing.assert_allclose(rows[b, :, i, j].detach(), wanted, rtol=1e-9, atol=1e-9)


def test_fire_stretches_every_query_past_the_threshold_over_all_that_it_sees():
    """With c = 1, distances 3, 7 and 15 seen from 15, 63 and 255 are log 4/log 16 = log 8/log 64 = log 16/log 256."""
    scheme, pos = made({"kind": "fire", "threshold": 10}, SHAPE), Positions.first(256)
    scheme.c.data.fill_(1), scheme.stretch.data.fill_(1)
    q = torch.zeros(1, H, 256, D, dtype=torch.float64)
    rows = scheme.scores(q, q, pos).rows(torch.arange(256), torch.arange(256))
    half = [rows[0, :, i, i - d] for i, d in ((15, 3), (63, 7), (255, 15))]
    first = [rows[0, :, i, 0] for i in (10, 63, 255)]
    for same in (half, first):
        for other in same[1:]:
            torch.testing.assert_close(other, same[0], rtol=0, atol=1e-5)  # the paper's 1e-6 in the denominator
    near = [rows[0, :, i, i - 2] for i in (2, 7, 10)]  # up to the threshold by distance alone, as of then not
    assert torch.equal(near[0], near[1]) and torch.equal(near[0], near[2])
    assert (rows[0, :, 255, 253] - near[0]).abs().max() > 1e-2


def test_fire_s_lines_are_its_hidden_units_with_their_gradients():
    weight, bias, out, x = (torch.randn(n, dtype=torch.float64) for n in (32, 32, (32, 5), (7, 40)))
    weight[3] = -weight[3].abs()  # a unit that stops where others start
    inputs = [tensor.requires_grad_() for tensor in (weight, bias, out, x)]
    points, slope, height = lines(*inputs[:3])
    line = torch.searchsorted(points, x.detach())
    found = slope[line] * x[..., None] + height[line]
    wanted = (x[..., None] * weight + bias).relu() @ out
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    mix = torch.randn_like(wanted)
    for mine, exact in zip(*(torch.autograd.grad((y * mix).sum(), inputs) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(mine, exact, rtol=0, atol=1e-11)


def test_fire_s_threshold_is_a_quarter_of_the_train_length_as_in_the_paper():
    assert of("fire", Shape(64, 4, 4, 2, 2048)).threshold == 512 and of("fire", threshold=100).threshold == 100
    message = refusal({"kind": "fire", "threshold": 0})
    assert message == "fire: threshold must be above 0 tokens, got 0; the paper's is a quarter of the train length"


# shaw


@pytest.mark.parametrize("farthest", [3, 16])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_shaw_is_attention_to_keys_each_with_the_vector_of_its_distance(backend, layer, farthest):
    scheme, pos = made({"kind": "relative-shaw", "farthest": farthest}, SHAPE), in_layer(skipping(), layer)
    inputs = random_inputs(pos, kv_heads=2)
    behind = (pos.ids[:, :, None] - pos.ids[:, None]).clamp(-farthest, farthest).numpy()  # (B, T, T)
    vectors = scheme.table[layer].detach().double().numpy()[behind + farthest]  # (B, T, T, D)
    q, k = inputs[0].numpy(), inputs[1].repeat_interleave(2, 1).numpy()
    scores = (np.einsum("bhid,bhjd->bhij", q, k) + np.einsum("bhid,bijd->bhij", q, vectors)) / math.sqrt(D)
    wanted = softmax_over(pos, inputs, lambda b, h, i, j: scores[b, h, i, j])
    torch.testing.assert_close(through(scheme, inputs, pos, backend), wanted, rtol=0, atol=1e-9)


def test_shaw_tells_ahead_from_behind_without_causality():
    scheme, pos = of("relative-shaw", farthest=4), Positions.first(8, causal=False)
    scheme.table.data[0, 4 - 1] = 5.0  # one ahead
    q, k = torch.ones(1, H, 8, D), torch.zeros(1, H, 8, D)
    v = torch.arange(8.0).view(1, 1, 8, 1).expand(1, H, 8, D)
    out = through(scheme, [q, k, v], pos, "eager")
    torch.testing.assert_close(out[0, 0, :7, 0], torch.arange(1.0, 8.0), rtol=0, atol=1e-5)


def test_shaw_starts_without_a_preference_and_refuses_no_distance_at_all():
    assert not of("relative-shaw").table.any() and of("relative-shaw").table.shape == (2, 33, D)
    message = refusal({"kind": "relative-shaw", "farthest": 0})
    assert message == "relative-shaw: farthest must be at least 1 token, got 0; the paper's is 16"


# transformer-xl


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("layout", [lambda: Positions.first(T), skipping, packed], ids=["plain", "skipping", "packed"])
def test_transformer_xl_is_the_papers_four_terms(layout, layer):
    scheme, pos = made("relative-xl", SHAPE), in_layer(layout(), layer)
    inputs = random_inputs(pos, kv_heads=2)
    q, k = inputs[0].numpy(), inputs[1].repeat_interleave(2, 1).numpy()
    u, v, weight = (x.detach().double().numpy() for x in (scheme.u, scheme.v, scheme.weight[layer]))
    lanes = 10000.0 ** (-2 * np.arange(H * D // 2) / (H * D))
    ids = pos.ids.expand(2, -1).numpy()

    def score(b: int, h: int, i: int, j: int) -> float:
        angles = (ids[b, i] - ids[b, j]) * lanes
        place = weight[h] @ np.concatenate([np.sin(angles), np.cos(angles)])
        terms = q[b, h, i] @ k[b, h, j], q[b, h, i] @ place, u[h] @ k[b, h, j], v[h] @ place
        return sum(terms) / math.sqrt(D)

    # Sinusoids are fp32: 3e-8 each, summed in vectors of 16 and of random weights up to 3.
    wanted = softmax_over(pos, inputs, score)
    torch.testing.assert_close(through(scheme, inputs, pos, "eager"), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", [lambda: Positions.first(T, queries=20), skipping], ids=["plain", "skipping"])
@pytest.mark.parametrize("kind", ["relative-xl", "fire", "cope-contextual"])
def test_rows_can_be_had_in_pieces(kind, layout, causal):
    """What a backend asks for a few queries and keys is what it would get of the whole."""
    scheme, pos = made(kind, SHAPE), layout()
    pos = Positions(pos.ids, pos.queries, pos.length, pos.contiguous, causal)
    q, k, _ = random_inputs(pos, kv_heads=2)
    rows = scheme.scores(q, k, pos).rows
    i, j = torch.arange(pos.queries), torch.arange(T)
    for queries, keys in [(slice(3, 9), slice(0, 13)), (slice(7, 8), slice(4, 5)), (slice(0, 20), slice(5, 24))]:
        whole, part = rows(i, j)[:, :, queries, keys], rows(i[queries], j[keys])
        torch.testing.assert_close(part, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["kerple", "sandwich", "relative-shaw", "relative-xl", "fire", "cope-contextual"])
def test_a_bias_is_fp32_in_a_step_that_is_not(kind):
    """Autocast would do its products in bf16, which leaves 3 digits."""
    scheme, pos = made(kind, SHAPE), Positions.first(T)
    q, k, _ = (x.bfloat16() for x in random_inputs(pos, kv_heads=2))
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            said = scheme.scores(q, k, pos)
            pairs = (
                said.bias(*eager.grid(2, H, T, T, "cpu")) if said.rows is None else said.rows(*[torch.arange(T)] * 2)
            )
        found.append(pairs)
    assert found[1].dtype == torch.float32 and torch.equal(*found)


def test_transformer_xl_looks_ahead_by_negative_distances():
    """The sinusoid of a key one ahead is that of one behind with its sines turned round."""
    scheme, pos = made("relative-xl", SHAPE), Positions.first(5, causal=False)
    q = torch.zeros(1, H, 5, D, dtype=torch.float64)
    rows = scheme.scores(q, q, pos).rows(torch.arange(5), torch.arange(5))
    lanes = 10000.0 ** (-2 * torch.arange(H * D // 2, dtype=torch.float64) / (H * D))
    for distance in (-3, 3):
        angles = distance * lanes
        place = scheme.weight[0].double() @ torch.cat([angles.sin(), angles.cos()])  # (H, D)
        wanted = (scheme.v.double() * place).sum(-1) / math.sqrt(D)
        torch.testing.assert_close(
            rows[0, :, 4 if distance > 0 else 1, 1 if distance > 0 else 4], wanted, atol=1e-6, rtol=0
        )


def test_transformer_xl_refuses_an_odd_width():
    assert refusal("relative-xl", Shape(9, 3, 3, 1, 8)) == (
        "relative-xl needs an even width, got 9: sines and cosines of a distance come in pairs"
    )


# queries that grow


def test_logn_changes_nothing_within_the_train_length():
    scheme, pos = of("logn"), Positions.first(64)
    q, k, _ = random_inputs(pos)
    assert all(mine is given for mine, given in zip(scheme.rotate(q, k, pos), (q, k), strict=True))
    q, k, _ = random_inputs(Positions.first(65))
    longer = scheme.rotate(q, k, Positions.first(65))
    assert torch.equal(longer[0][:, :, :64], q[:, :, :64]) and torch.equal(longer[1], k)


def test_logn_is_the_logarithm_to_the_train_length():
    """64² tokens are seen twice as sharply."""
    positions = [0, 62, 63, 64, 511, 4095, 131071]
    wanted = [max(1.0, math.log(p + 1) / math.log(64)) for p in positions]
    found = of("logn").factor(torch.tensor(positions))
    assert wanted[5] == pytest.approx(2) and found.dtype == torch.float32
    np.testing.assert_allclose(found, wanted, rtol=2**-24)


def test_ssmax_starts_at_the_papers_0_168_for_1024_tokens():
    assert of("ssmax", Shape(64, 4, 4, 2, 1024)).s.detach().unique().item() == pytest.approx(0.168, abs=5e-4)
    for length in (2, 100):
        mean = sum(math.log(n) for n in range(1, length + 1)) / length
        assert of("ssmax", Shape(64, 4, 4, 2, length)).s.detach().unique().item() == pytest.approx(1 / mean, rel=1e-6)


@pytest.mark.parametrize("layer", [0, 1])
def test_ssmax_is_a_softmax_to_the_base_of_how_many_tokens_there_are(layer):
    """n^(s·z) over its sum, as the paper has it; n is counted in each document."""
    scheme, pos = made("ssmax", SHAPE), in_layer(packed(), layer)
    inputs = random_inputs(pos, kv_heads=2)
    q, k, v = inputs
    wanted = torch.zeros_like(q)
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(H), torch.arange(T)).tolist():
        n, s = pos.ids[b, i].item() + 1, scheme.s[layer, h].item()
        seen = range(i + 1 - n, i + 1)
        powers = [n ** (s * (q[b, h, i] @ k[b, h // 2, j]).item() / math.sqrt(D)) for j in seen]
        for j, power in zip(seen, powers, strict=True):
            wanted[b, h, i] += power / sum(powers) * v[b, h // 2, j]
    torch.testing.assert_close(through(scheme, inputs, pos, "eager"), wanted, rtol=0, atol=2e-6)  # log n is fp32


@pytest.mark.parametrize("kind", ["logn", "ssmax"])
def test_a_train_length_without_a_logarithm_is_refused(kind):
    message = refusal(kind, Shape(64, 4, 4, 2, 1))
    assert message == f"{kind} needs a train length of at least 2 tokens, got 1: log 1 is zero"
