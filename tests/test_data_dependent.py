"""Encodings that read the tokens themselves: each against loops over tokens in float64, in a model's own layers."""

# B batch · T tokens · H query heads · D head size · C width

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lab.cache import NAME
from lab.model import LabConfig, LabModel
from positional import Positions, SchemeError, Shape, build
from positional.alibi import slopes
from positional.fox import summed

B, T, V, C, H, G, LAYERS = 2, 14, 50, 32, 4, 2, 2
D = C // H
KINDS = ["fox", "cable", {"kind": "cope-contextual", "positions": 4}]
STACKS = [
    ["rope", "fox"],
    ["fox", {"kind": "window", "window": 5}],
    ["rope", "cope-contextual", {"kind": "window", "window": 5}],
    ["fox", "alibi", "ssmax"],
    ["logn", "cable", "cope-contextual"],
]


def model_of(positional, dtype=torch.float64, **changes) -> LabModel:
    """With weights as after training: gates that differ, vectors that are not zero."""
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "width": C, "layers": LAYERS, "heads": H, "kv_heads": G, "train_length": 8}
    model = LabModel(LabConfig(**sizes | changes, positional=positional)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for parameter in model.scheme.parameters():
            parameter.normal_(std=0.5)
    return model.to(dtype)


def packed() -> Positions:
    """Documents of 9 and 5 tokens in row 0, of 3, 10 and 1 in row 1."""
    lengths = [[9, 5], [3, 10, 1]]
    ids = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    segments = torch.stack([torch.cat([torch.full((n,), i) for i, n in enumerate(row)]) for row in lengths])
    return Positions(ids, T, 10, segments=segments)


def left_padded() -> Positions:
    mask = torch.ones(B, T, dtype=torch.int64)
    mask[1, :4] = 0
    return Positions((mask.cumsum(-1) - 1).clamp(min=0), T, T, segments=mask - 1)


LAYOUTS = {"plain": lambda: Positions.first(T), "left-padded": left_padded, "packed": packed}


def gates(scheme, layer: int, x: np.ndarray) -> np.ndarray:
    """w·x + b of each head for one token's (C,) hidden state."""
    weight, bias = (p[layer].detach().double().numpy() for p in (scheme.weight, scheme.bias))
    return weight @ x + bias


def fox(scheme, layer, x, q, k, h: int, i: int, j: int) -> float:
    """log of the product of the forget gates of tokens j+1 … i."""
    product = 1.0
    for token in range(j + 1, i + 1):
        product *= 1 / (1 + math.exp(-gates(scheme, layer, x[token])[h]))
    return math.log(product)


def cable(scheme, layer, x, q, k, h: int, i: int, j: int) -> float:
    """b_i - b_j, where b_t sums -softplus over the tokens from the first to t."""

    def b(last: int) -> float:
        return -sum(math.log1p(math.exp(gates(scheme, layer, x[token])[h])) for token in range(last + 1))

    return b(i) - b(j)


def cope(scheme, layer, x, q, k, h: int, i: int, j: int) -> float:
    """q·e[p] / √D; p counts the tokens j … i, each as far as its gate is open, and e is interpolated."""
    e = scheme.table[layer].detach().double().numpy()
    p = sum(1 / (1 + math.exp(-(q[h, i] @ k[h, token]) / math.sqrt(D))) for token in range(j, i + 1))
    p = min(p, len(e) - 1)
    low, high = math.floor(p), math.ceil(p)
    vector = (1 - (p - low)) * e[low] + (p - low) * e[high]
    return q[h, i] @ vector / math.sqrt(D)


ORACLES = dict(zip(("fox", "cable", "cope-contextual"), (fox, cable, cope), strict=True))


def attention_by_hand(model: LabModel, layer: int, x: Tensor, pos: Positions, oracle) -> Tensor:
    """What a layer of the model must make of (B, T, C) hidden states, each document by itself."""
    module, out = model.model.layers[layer].attention, torch.zeros(B, T, C, dtype=torch.float64)
    q, k, v = (y.unflatten(-1, (-1, D)).transpose(1, 2) for y in module.qkv(x).split(module.split, -1))
    k, v = (y.repeat_interleave(H // G, 1) for y in (k, v))
    segments = torch.zeros(B, T, dtype=torch.int64) if pos.segments is None else pos.segments
    for b in range(B):
        for segment in segments[b].unique():
            own = (segments[b] == segment).nonzero().flatten()
            document, queries, keys = x[b, own].numpy(), q[b, :, own].numpy(), k[b, :, own].numpy()
            heads = torch.zeros(len(own), H, D, dtype=torch.float64)
            for h, i in np.ndindex(H, len(own)):
                scores = [
                    queries[h, i] @ keys[h, j] / math.sqrt(D)
                    + oracle(model.scheme, layer, document, queries, keys, h, i, j)
                    for j in range(i + 1)
                ]
                weights = [math.exp(score) for score in scores]
                for j, weight in enumerate(weights):
                    heads[i, h] += weight / sum(weights) * v[b, h, own[j]]
            out[b, own] = heads.flatten(1)
    return module.out(out)


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("spec", KINDS, ids=list(ORACLES))
def test_a_layer_is_the_papers_loop_over_tokens(spec, layer, layout):
    pos, x = LAYOUTS[layout](), torch.randn(B, T, C, dtype=torch.float64)
    oracle = ORACLES[spec if isinstance(spec, str) else spec["kind"]]
    wanted = attention_by_hand(model_of(spec), layer, x, pos, oracle)
    real = torch.ones(B, T, dtype=torch.bool) if layout != "left-padded" else pos.segments == 0
    for backend in ("eager", "auto"):
        model = model_of(spec, attention=backend)
        found = model.model.layers[layer].attention(x, pos, model.scheme)
        torch.testing.assert_close(found[real], wanted[real], rtol=0, atol=1e-10)


@torch.no_grad()
def in_pieces(model: LabModel, ids: Tensor, sizes: list[int], mask: Tensor, **each: Tensor) -> Tensor:
    """Logits of tokens read piece by piece from a cache."""
    cache, parts, start = None, [], 0
    for size in sizes:
        new = slice(start, start + size)
        given = {name: value[:, new] for name, value in each.items()}
        out = model(ids[:, new], attention_mask=mask[:, : new.stop], use_cache=True, **given, **{NAME: cache})
        parts.append(out.logits)
        cache, start = out[NAME], new.stop
    return torch.cat(parts, 1)


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spec", [*KINDS, *STACKS], ids=str)
def test_tokens_read_from_a_cache_are_as_those_read_at_once(spec, layout):
    model, ids, pos = model_of(spec), torch.randint(V, (B, T)), LAYOUTS[layout]()
    mask, each = torch.ones(B, T, dtype=torch.int64), {}
    if layout == "left-padded":
        mask = pos.segments + 1
    if layout == "packed":
        each = {"segments": pos.segments, "position_ids": pos.ids}
    whole = model(ids, attention_mask=mask, **each).logits
    for sizes in ([1] * T, [5, 1, 1, 7]):
        found = in_pieces(model, ids, sizes, mask, **each)
        torch.testing.assert_close(
            found[mask.bool()], whole[mask.bool()], rtol=0, atol=1e-10 * whole.abs().max().item()
        )


@torch.no_grad()
@pytest.mark.parametrize("spec", [*KINDS, *STACKS[:2]], ids=str)
def test_generation_is_the_likeliest_token_of_full_forwards(spec):
    model, ids = model_of(spec), torch.randint(V, (B, 6))
    mask = torch.ones(B, 6, dtype=torch.int64)
    mask[1, :2] = 0
    found, wanted = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False), ids
    for _ in range(6):
        wanted = torch.cat([wanted, model(wanted, attention_mask=mask).logits[:, -1:].argmax(-1)], 1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    assert torch.equal(found, wanted)


# fox and cable


def notes_and_decay(kind: str, x: Tensor, segments: Tensor | None = None, **parameters: Tensor):
    scheme = build(kind, Shape(C, H, G, LAYERS, 8))
    for name, value in parameters.items():
        getattr(scheme, name).data = value
    pos = Positions(torch.arange(x.shape[1])[None], x.shape[1], x.shape[1], segments=segments, layer=1)
    pos = Positions(pos.ids, pos.queries, pos.length, segments=segments, layer=1, notes=scheme.note(x, pos))
    return pos.notes, scheme.scores(None, None, pos).decay


def test_forget_gates_that_read_nothing_are_alibi():
    """With w = 0 every step costs -log σ(b): b may be set so that this is a slope."""
    slope = torch.tensor(slopes(H), dtype=torch.float64)
    bias = -torch.expm1(slope).log().expand(LAYERS, H).clone()
    _, decay = notes_and_decay("fox", torch.randn(B, T, C).double(), weight=torch.zeros(LAYERS, H, C), bias=bias)
    wanted = slope[:, None] * torch.arange(T)
    torch.testing.assert_close(decay - decay[..., :1], wanted.expand(B, -1, -1), rtol=0, atol=1e-12)


def test_cable_is_fox_with_the_other_sign():
    x, weight, bias = torch.randn(B, T, C), torch.randn(LAYERS, H, C), torch.randn(LAYERS, H)
    (note, decay), (other, same) = (
        notes_and_decay(kind, x, weight=sign * weight, bias=sign * bias) for kind, sign in (("fox", 1), ("cable", -1))
    )
    torch.testing.assert_close(note, other, rtol=0, atol=1e-6)
    torch.testing.assert_close(decay, same, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["fox", "cable"])
def test_gates_start_at_a_half_as_in_the_papers(kind):
    scheme = build(kind, Shape(512, 8, 8, 4, 64))
    assert not scheme.bias.any() and scheme.weight.std().item() == pytest.approx(0.02, rel=0.03)
    note = scheme.note(torch.zeros(1, 1, 512), Positions.first(1))
    assert note.flatten().tolist() == pytest.approx([math.log(0.5)] * 8)


@pytest.mark.parametrize("kind", ["fox", "cable"])
def test_gates_are_fp32_whatever_the_model_is(kind):
    x, weight = torch.randn(B, T, C), torch.randn(LAYERS, H, C)
    exact, decay = notes_and_decay(kind, x, weight=weight)
    with torch.autocast("cpu", torch.bfloat16):
        within, also = notes_and_decay(kind, x, weight=weight)
    assert exact.dtype == decay.dtype == torch.float32 and torch.equal(within, exact) and torch.equal(also, decay)
    half, _ = notes_and_decay(kind, x.bfloat16(), weight=weight.bfloat16())
    wanted, _ = notes_and_decay(kind, x.bfloat16().float(), weight=weight.bfloat16().float())
    assert half.dtype == torch.float32 and torch.equal(half, wanted)


@pytest.mark.parametrize("tokens", [1, 2, 13, 64])
def test_sums_begin_anew_with_each_document_and_carry_nothing_over(tokens):
    draw = torch.Generator().manual_seed(1)
    segments = torch.randint(0, 2, (3, tokens), generator=draw).cumsum(-1)
    notes = torch.randn(3, tokens, 2, generator=draw)
    found = summed(notes, segments)
    for b, t in np.ndindex(3, tokens):
        own = (segments[b, : t + 1] == segments[b, t]).nonzero().flatten()
        exact = notes[b, own].double().sum(0)
        torch.testing.assert_close(found[b, t].double(), exact, rtol=0, atol=1e-5)
    other = torch.where((segments == segments[:, -1:])[..., None], notes, 1e6 * notes)
    last = segments == segments[:, -1:]
    assert torch.equal(summed(other, segments)[last], found[last])


# cope


def cope_rows(q: Tensor, k: Tensor, table: Tensor, segments: Tensor | None = None) -> Tensor:
    """(B, H, T, T) biases of a single layer with these vectors."""
    shape = Shape(q.shape[1] * q.shape[3], q.shape[1], k.shape[1], 1, 8)
    scheme = build({"kind": "cope-contextual", "positions": len(table)}, shape)
    scheme.table.data[0] = table
    tokens = torch.arange(q.shape[2])
    pos = Positions(tokens[None], len(tokens), len(tokens), segments=segments)
    return scheme.scores(q, k, pos).rows(tokens, tokens)


def test_cope_with_open_gates_counts_tokens_and_stops_at_its_last_position():
    q, k = torch.full((1, 1, 8, 4), 10.0), torch.full((1, 1, 8, 4), 10.0)
    table = torch.arange(5.0)[:, None].expand(5, 4) / 20  # q·e[p] / √4 = p
    rows = cope_rows(q, k, table)[0, 0]
    for i in range(8):
        assert rows[i, : i + 1].tolist() == pytest.approx([min(i - j + 1, 4) for j in range(i + 1)])


def test_cope_counts_only_the_tokens_that_the_query_selects():
    """Each third key opens the gate: all others share the count of the last such token."""
    q, k = torch.full((1, 2, 9, 4), 10.0), torch.full((1, 1, 9, 4), -10.0)
    k[:, :, ::3] = 10.0  # tokens 0, 3 and 6
    rows = cope_rows(q, k, torch.arange(8.0)[:, None].expand(8, 4) / 20)
    for head in rows[0]:
        assert head[8].tolist() == pytest.approx([3, 2, 2, 2, 1, 1, 1, 0, 0], abs=1e-6)


def test_cope_counts_within_a_document():
    q, k = torch.full((1, 1, 6, 4), 10.0), torch.full((1, 1, 6, 4), 10.0)
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    rows = cope_rows(q, k, torch.arange(8.0)[:, None].expand(8, 4) / 20, segments)[0, 0]
    assert rows[5, 3:].tolist() == pytest.approx([3, 2, 1]) and rows[2, :3].tolist() == pytest.approx([3, 2, 1])


def test_cope_starts_without_a_preference_and_refuses_a_single_position():
    shape = Shape(C, H, G, LAYERS, 8)
    assert not build("cope-contextual", shape).table.any() and build("cope-contextual", shape).table.shape == (2, 64, D)
    with pytest.raises(SchemeError) as caught:
        build({"kind": "cope-contextual", "positions": 1}, shape)
    assert str(caught.value) == "cope-contextual: positions must be at least 2, got 1; the paper's are 64"


def test_two_encodings_that_decay_are_refused_together():
    with pytest.raises(SchemeError, match="Fox and Cable both set `decay`: stack only one of them"):
        build(["fox", "cable"], Shape(C, H, G, LAYERS, 8))
