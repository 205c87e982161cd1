"""Encodings of several passes: every one against the T×T matrix of relative distances that its paper writes down."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lab.attention import attend_parts
from lab.model import LabConfig, LabModel
from positional import Positions, SchemeError, Shape, build

TRAINED, H, G, D = 20, 4, 2, 16
SHAPE = Shape(width=H * D, heads=H, kv_heads=G, layers=2, train_length=TRAINED)

Matrix = Callable[[int], tuple[Tensor, Tensor]]
"""T -> the (T, T) distances of query i from key j, and which of the keys with j <= i it sees."""


def indices(tokens: int) -> tuple[Tensor, Tensor]:
    return torch.arange(tokens)[:, None], torch.arange(tokens)[None]


def all_of(distances: Tensor) -> tuple[Tensor, Tensor]:
    return distances.double(), torch.ones_like(distances, dtype=torch.bool)


def lm_infinite(window: int, sinks: int) -> Matrix:
    def matrix(tokens):
        i, j = indices(tokens)
        return (i - j).clamp(max=TRAINED).double(), (i - j < window) | ((j < sinks) & (i >= 0))

    return matrix


def rectified(window: int, leak: float = float("inf")) -> Matrix:
    def matrix(tokens):
        i, j = indices(tokens)
        return all_of(torch.where(i - j < window, (i - j).double(), window + (i - j - window) / leak))

    return matrix


def chunked(s: int) -> Matrix:
    """Equations 2 to 7 of the paper: lists of positions of queries and keys, and which list a pair takes."""

    def matrix(tokens):
        c, w = TRAINED, TRAINED - s
        keys = [j % s for j in range(tokens)]
        within = [i % s for i in range(tokens)]
        inter = [c - 1] * tokens
        of_one_chunk = ([s + r for r in range(w)] + [c - 1] * s)[:s]
        successive = [of_one_chunk[i % s] for i in range(tokens)]
        rows = []
        for i in range(tokens):
            row = []
            for j in range(tokens):
                back = i // s - j // s
                row.append((within if back <= 0 else successive if back == 1 else inter)[i] - keys[j])
            rows.append(row)
        return all_of(torch.tensor(rows))

    return matrix


def grouped(group: int, window: int) -> Matrix:
    def matrix(tokens):
        i, j = indices(tokens)
        return all_of(torch.where(i - j < window, i - j, i // group + window - window // group - j // group))

    return matrix


CASES = {
    "lambda-mask": ({"kind": "lambda-mask", "sinks": 3}, lm_infinite(TRAINED, 3)),
    "lambda-mask, narrow": ({"kind": "lambda-mask", "window": 7, "sinks": 3}, lm_infinite(7, 3)),
    "lambda-mask without sinks": ({"kind": "lambda-mask", "window": 7, "sinks": 0}, lm_infinite(7, 0)),
    "rerope": ({"kind": "rerope", "window": 7}, rectified(7)),
    "rerope of one": ({"kind": "rerope", "window": 1}, rectified(1)),
    "leaky rerope": ({"kind": "rerope", "window": 7, "leak": 2.5}, rectified(7, 2.5)),
    "dual-chunk": ({"kind": "dual-chunk"}, chunked(15)),
    "dual-chunk, small": ({"kind": "dual-chunk", "chunk": 6}, chunked(6)),
    "dual-chunk, whole": ({"kind": "dual-chunk", "chunk": TRAINED}, chunked(TRAINED)),
    "self-extend": ({"kind": "self-extend", "group": 3, "window": 7}, grouped(3, 7)),
}
LENGTHS = [1, 6, 7, 8, 15, 16, TRAINED - 1, TRAINED, TRAINED + 1, 30, 31, 61]


def reference(inputs: list[Tensor], distances: Tensor, seen: Tensor, layout: str = "half") -> Tensor:
    """softmax(RoPE at these distances) · v for all T queries, in float64, causal."""
    q, k, v = (x.double() for x in inputs)
    k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
    first, second = (slice(0, D // 2), slice(D // 2, D)) if layout == "half" else (slice(0, D, 2), slice(1, D, 2))
    a, b = (q[..., lanes][:, :, :, None] for lanes in (first, second))
    c, d = (k[..., lanes][:, :, None] for lanes in (first, second))
    angles = distances[..., None] * 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)  # (T, T, D/2)
    scores = ((a * c + b * d) * angles.cos() + (a * d - b * c) * angles.sin()).sum(-1) / D**0.5
    causal = torch.ones(seen.shape, dtype=torch.bool).tril()
    return scores.masked_fill(~(seen & causal), float("-inf")).softmax(-1) @ v


def drawn(tokens: int, dtype=torch.float64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(tokens)
    return [torch.randn(2, n, tokens, D, generator=draw, dtype=torch.float64).to(dtype) for n in (H, G, G)]


def last(inputs: list[Tensor], queries: int) -> list[Tensor]:
    return [inputs[0][:, :, -queries:], *inputs[1:]]


def through(spec, inputs: list[Tensor], pos: Positions, backend: str) -> Tensor:
    return attend_parts(build(spec, SHAPE).parts(*inputs[:2], pos), inputs[2], pos, backend)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_paper_s_matrix_of_distances(name, tokens):
    spec, matrix = CASES[name]
    wanted = reference(drawn(tokens), *matrix(tokens))
    # Cosines and sines are fp32: 6e-8 each, times scores of a few units. In fp32 all is.
    for backend, dtype, tolerance in (("eager", torch.float64, 1e-6), ("sdpa", torch.float32, 1e-5)):
        inputs = drawn(tokens, dtype)
        found = through(spec, inputs, Positions.first(tokens), backend)
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=tolerance)
        for queries in {1, min(3, tokens), max(1, tokens - 8)}:
            found = through(spec, last(inputs, queries), Positions.first(tokens, queries=queries), backend)
            torch.testing.assert_close(found.double(), wanted[:, :, -queries:], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["lambda-mask, narrow", "leaky rerope", "dual-chunk, small", "self-extend"])
def test_interleaved_pairs_are_turned_by_the_same_distances(name):
    spec, matrix = CASES[name]
    found = through(spec | {"layout": "interleaved"}, drawn(50), Positions.first(50), "eager")
    torch.testing.assert_close(found, reference(drawn(50), *matrix(50), "interleaved"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CASES)
def test_documents_in_a_row_are_each_as_if_alone(name, backend):
    spec, matrix = CASES[name]
    lengths = [3, 40, 31]
    pos = Positions(
        torch.cat([torch.arange(n) for n in lengths])[None],
        sum(lengths),
        max(lengths),
        segments=torch.cat([torch.full((n,), at) for at, n in enumerate(lengths)])[None],
    )
    inputs = drawn(sum(lengths), torch.float32)
    found = through(spec, inputs, pos, backend).double()
    wanted = [
        reference(list(part), *matrix(n))
        for n, *part in zip(lengths, *(x.split(lengths, 2) for x in inputs), strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(wanted, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_matrix(name):
    spec, matrix = CASES[name]
    weight = torch.randn(2, H, 45, D, dtype=torch.float64)

    def gradients(run) -> list[Tensor]:
        inputs = [x.requires_grad_() for x in drawn(45)]
        return torch.autograd.grad((run(inputs) * weight).sum(), inputs)

    found = gradients(lambda x: through(spec, x, Positions.first(45), "auto"))
    wanted = gradients(lambda x: reference(x, *matrix(45)))
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_up_to_its_window_or_chunk_it_is_rope(name):
    spec, _ = CASES[name]
    tokens = spec.get("window", spec.get("chunk", 15))
    inputs = drawn(tokens, torch.float32)
    found, wanted = (through(one, inputs, Positions.first(tokens), "sdpa") for one in (spec, "rope"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert spec["kind"] == "lambda-mask" or len(build(spec, SHAPE).parts(*inputs[:2], Positions.first(tokens))) == 1


def test_without_sinks_a_lambda_mask_lets_a_cache_forget():
    assert build(CASES["lambda-mask without sinks"][0], SHAPE).reach == 7
    assert build(CASES["lambda-mask, narrow"][0], SHAPE).reach is None


def test_a_leak_of_one_is_rope_at_any_length():
    found, wanted = (
        through(spec, drawn(60), Positions.first(60), "eager")
        for spec in ({"kind": "rerope", "window": 7, "leak": 1}, "rope")
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "multiple"), [("dual-chunk, small", 6), ("self-extend", 3), ("leaky rerope", 1)])
def test_shifting_by_whole_groups_or_chunks_changes_nothing(name, multiple):
    pos = Positions.first(50)
    shifted = replace(pos, ids=pos.ids + 1000 * multiple, length=50 + 1000 * multiple, memo={})
    found, wanted = (through(CASES[name][0], drawn(50), at, "eager") for at in (shifted, pos))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_no_distance_of_dual_chunk_was_unseen_in_training():
    for chunk in range(1, TRAINED + 1):
        distances = chunked(chunk)(3 * TRAINED)[0].tril()
        assert distances.min() >= 0 and distances.max() < TRAINED


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_model_decodes_what_its_full_forward_says(name, queries):
    """Three times the train length, piece by piece."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "width": H * D, "layers": 2, "heads": H, "kv_heads": G, "train_length": TRAINED}
    model = LabModel(LabConfig(**sizes, positional=CASES[name][0])).eval().double()
    ids, cache, found = torch.randint(50, (2, 3 * TRAINED)), None, []
    with torch.no_grad():
        wanted = model(ids).logits
        for piece in (ids[:, :TRAINED], *ids[:, TRAINED:].split(queries, 1)):
            out = model(piece, use_cache=True, cache=cache)
            cache = out.get("cache", out.get("past_key_values"))
            found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"kind": "lambda-mask", "window": 21},
            "lambda-mask: window must be between 1 and the train length 20 and sinks not negative, got window 21 and "
            "sinks 10; the paper's are the train length and 10 to 100",
        ),
        (
            {"kind": "lambda-mask", "sinks": -1},
            "lambda-mask: window must be between 1 and the train length 20 and sinks not negative, got window 20 and "
            "sinks -1; the paper's are the train length and 10 to 100",
        ),
        (
            {"kind": "rerope", "window": 0},
            "rerope: window must be between 1 and the train length 20, got 0 tokens; Su's is 1024 for a train length "
            "of 4096",
        ),
        (
            {"kind": "rerope", "window": 7, "leak": 0.5},
            "rerope: leak must be at least 1, or null for none, got 0.5; Su's is 16",
        ),
        (
            {"kind": "dual-chunk", "chunk": 21},
            "dual-chunk: chunk must be between 1 and the train length 20, got 21 tokens; the paper's is 3/4 of it",
        ),
        (
            {"kind": "self-extend", "group": 0, "window": 7},
            "self-extend: group must be at least 1 and window between 1 and the train length 20, got group 0 and "
            "window 7; the paper's are 8 and 1024 for a train length of 4096",
        ),
    ],
    ids=str,
)
def test_what_an_option_may_be_is_said(spec, message):
    with pytest.raises(SchemeError) as caught:
        build(spec, SHAPE)
    assert str(caught.value) == message
