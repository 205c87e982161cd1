"""What only an NVIDIA GPU can show: every backend that runs there against eager in fp64, and the memory it takes.

Nothing here runs without one; on a CPU, test_backends.py tests what is said to the kernels.
"""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size

from dataclasses import replace

import pytest
import torch
from attention_cases import made, parts_of, skip_unless_able
from torch import Tensor

from lab.attention import BACKENDS, attend, attend_parts, choose, eager
from positional import Positions, Scores, Shape
from positional.alibi import slopes

pytestmark = pytest.mark.gpu

H, D = 4, 64
HALVES = [torch.float16, torch.bfloat16]
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-11}
"""Half a unit in the last place of a number near 1; for fp32 what TF32 would leave, were it switched on."""
KERNELS = [name for name in BACKENDS if name != "eager"]
SHAPE = Shape(width=H * D, heads=H, kv_heads=H, layers=2, train_length=64)


def plain(tokens: int, **how) -> Positions:
    return Positions.first(tokens, device="cuda", **how)


def left_padded(tokens: int) -> Positions:
    mask = torch.ones(2, tokens, dtype=torch.int64, device="cuda")
    mask[1, : tokens // 3] = 0
    ids = (mask.cumsum(-1) - 1).clamp(min=0)
    return Positions(ids, tokens, tokens, segments=mask)


def packed(tokens: int) -> Positions:
    """Documents of 70 and 45 tokens, the last cut short; their positions begin anew."""
    place = torch.stack([torch.arange(tokens) % 70, torch.arange(tokens) % 45]).cuda()
    return Positions(place, tokens, 70, segments=(place == 0).cumsum(-1))


LAYOUTS = {
    "plain": lambda: plain(200),
    "whole blocks": lambda: plain(256),
    "last queries": lambda: plain(200, queries=5),
    "one query": lambda: plain(200, queries=1),
    "left-padded": lambda: left_padded(200),
    "packed": lambda: packed(200),
}


def decay(tokens: int = 256) -> Tensor:
    """(1, H, T) of the log of a gate of each token, added up; cut to the tokens that there are by `words_for`."""
    draw = torch.Generator("cuda").manual_seed(5)
    return (0.3 * torch.rand(1, H, tokens, generator=draw, device="cuda")).cumsum(-1)


def words_for(words: str, pos: Positions) -> Scores:
    scores = WORDS[words]()
    return scores if scores.decay is None else replace(scores, decay=scores.decay[..., : pos.tokens])


WORDS = {
    "nothing": Scores,
    "window": lambda: Scores(window=70),
    "beyond": lambda: Scores(beyond=70),
    "slopes": lambda: Scores(slopes=torch.tensor(slopes(H), device="cuda")),
    "slopes and window": lambda: Scores(slopes=torch.tensor(slopes(H), device="cuda"), window=70),
    "slopes and beyond": lambda: Scores(slopes=torch.tensor(slopes(H), device="cuda"), beyond=70),
    "bias": lambda: Scores(bias=lambda b, h, i, j: 0.3 * b - 0.2 * h + torch.sin(i * 1.7 + j)),
    "decay": lambda: Scores(decay=decay()),
    "decay and window": lambda: Scores(decay=decay(), window=70),
    "window and sinks": lambda: Scores(window=70, sinks=5),
    "cap": lambda: Scores(cap=0.8),
    "cap and window": lambda: Scores(cap=0.8, window=70),
    "cap and slopes": lambda: Scores(cap=0.8, slopes=torch.tensor(slopes(H), device="cuda")),
    "rows": lambda: Scores(rows=lambda i, j: torch.sin(i[:, None] * 1.7 + j).expand(1, H, -1, -1)),
    "keep": lambda: Scores(keep=lambda b, h, i, j: (i * 5 + j * 3 + h + b) % 4 != 0),
}


def inputs_for(pos: Positions, dtype, kv_heads: int = H, batch: int = 2) -> list[Tensor]:
    sizes = (H, pos.queries), (kv_heads, pos.tokens), (kv_heads, pos.tokens)
    draw = torch.Generator("cuda").manual_seed(3)
    return [torch.randn(batch, *size, D, generator=draw, device="cuda").to(dtype) for size in sizes]


def gradients(run, inputs: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """Output, and what flows back to inputs and parameters."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = run(inputs)
    draw = torch.Generator("cuda").manual_seed(4)
    weight = torch.randn(out.shape, generator=draw, device="cuda").to(out.dtype)
    found = torch.autograd.grad((out * weight).sum(), inputs + parameters, allow_unused=True)
    return [out.detach(), *(torch.zeros((), device="cuda") if x is None else x for x in found)]


def assert_close(found: list[Tensor], exact: list[Tensor], dtype) -> None:
    """Each within 8 roundings of its largest value: weights, products, output and each step back are all rounded."""
    for mine, right in zip(found, exact, strict=True):
        scale = max(1.0, right.abs().max().item())
        torch.testing.assert_close(mine.double(), right.double(), rtol=0, atol=8 * ROUNDING[dtype] * scale)


def compare(parts_of, pos: Positions, backend: str, dtype, kv_heads: int, parameters=()) -> None:
    """Forward and backward where the backend has both; forward alone for parts, of whose sums flash has no gradient."""
    inputs, parameters = inputs_for(pos, dtype, kv_heads), list(parameters)
    skip_unless_able(backend, parts_of(*inputs[:2]), pos)

    def run(name: str):
        return lambda x: attend_parts(parts_of(*x[:2]), x[2], pos, name)

    doubled = [x.double() for x in inputs]
    if len(parts_of(*inputs[:2])) > 1:
        with torch.no_grad():
            return assert_close([run(backend)(inputs)], [run("eager")(doubled)], dtype)
    assert_close(gradients(run(backend), inputs, parameters), gradients(run("eager"), doubled, parameters), dtype)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_backend_agrees_with_eager_in_fp64(any_spec, backend, layout, kv_heads, dtype):
    scheme, pos = made(any_spec, SHAPE).cuda(), LAYOUTS[layout]()
    compare(lambda q, k: parts_of(scheme, q, k, pos), pos, backend, dtype, kv_heads, scheme.parameters())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_backend_agrees_on_every_word(backend, words, layout, dtype):
    pos = LAYOUTS[layout]()
    scores = words_for(words, pos)
    compare(lambda q, k: [(q, k, scores)], pos, backend, dtype, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_backend_returns_the_log_sum_exp(backend, words, layout):
    pos = LAYOUTS[layout]()
    scores = words_for(words, pos)
    q, k, v = inputs_for(pos, torch.bfloat16, 2)
    skip_unless_able(backend, [(q, k, scores)] * 2, pos)
    with torch.no_grad():
        _, sums = attend(q, k, v, scores, pos, backend, lse=True)
        _, exact = eager.attend(q.double(), k.double(), v.double(), scores, pos, lse=True)
    assert sums.shape == q.shape[:3] and sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), exact, rtol=1e-3, atol=2e-2)  # products of bf16 are summed in fp32


@pytest.mark.parametrize("backend", ["flex", "sdpa"])
def test_a_log_sum_exp_has_its_gradient(backend):
    pos = plain(200)

    def run(name: str):
        return lambda x: attend(*x, Scores(window=70), pos, name, lse=True)[1]

    inputs = inputs_for(pos, torch.bfloat16)
    exact = gradients(run("eager"), [x.double() for x in inputs], [])
    assert_close(gradients(run(backend), inputs, []), exact, torch.bfloat16)


@pytest.mark.parametrize("backend", ["flex", "sdpa"])
def test_a_learned_decay_gets_its_gradient(backend):
    pos = plain(200)
    learned = decay(200).requires_grad_()
    compare(lambda q, k: [(q, k, Scores(decay=learned))], pos, backend, torch.bfloat16, 2, [learned])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_window_of_a_long_input(backend, dtype):
    pos = plain(4096)
    inputs = inputs_for(pos, dtype, batch=1)
    for window in (1, 512, 4095, 4096, 5000):
        scores = Scores(window=window)
        skip_unless_able(backend, [(*inputs[:2], scores)], pos)
        found = attend(*inputs, scores, pos, backend)
        last = replace(pos, queries=64, memo={})
        q, k, v = (x.double() for x in inputs)
        assert_close([found[:, :, -64:]], [eager.attend(q[:, :, -64:], k, v, scores, last)], dtype)
        first = plain(64)
        assert_close([found[:, :, :64]], [eager.attend(*(x[:, :, :64] for x in (q, k, v)), scores, first)], dtype)


@pytest.mark.parametrize("tokens", [2048, 16384])
@pytest.mark.parametrize("backend", ["flash3", "flash4", "flash2", "sdpa", "varlen"])
def test_slopes_in_bf16_keep_their_precision_far_out(backend, tokens):
    """Whether native or in channels of their own: a position in bf16 would be off by 32 at 16384."""
    scores, pos = WORDS["slopes"](), plain(tokens)
    inputs = inputs_for(pos, torch.bfloat16, batch=1)
    skip_unless_able(backend, [(*inputs[:2], scores)], pos)
    found = attend(*inputs, scores, pos, backend)[:, :, -8:]
    q, k, v = (x.double() for x in inputs)
    assert_close([found], [eager.attend(q[:, :, -8:], k, v, scores, plain(tokens, queries=8))], torch.bfloat16)


@pytest.mark.parametrize("words", ["slopes", "window", "window and sinks", "bias", "cap"])
def test_memory_grows_with_length_and_not_with_its_square(words):
    """T×T scores of 4 heads would be 2 GiB in bf16; inputs, output and gradients are 48 MiB."""
    scores, pos = WORDS[words](), plain(16384)
    inputs = [x.requires_grad_() for x in inputs_for(pos, torch.bfloat16, batch=1)]
    attend(*inputs, scores, pos).sum().backward()  # whatever is compiled or kept is so now
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(*inputs, scores, pos).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 400 * 2**20


@pytest.mark.parametrize("words", ["nothing", "window"])
def test_keys_shared_in_fp32_are_not_every_pair_either(words):
    """4 GiB of scores, were torch to fall back to its own maths."""
    pos = plain(16384)
    inputs = [x.requires_grad_() for x in inputs_for(pos, torch.float32, kv_heads=1, batch=1)]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(*inputs, WORDS[words](), pos, "sdpa").sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 800 * 2**20


@pytest.mark.parametrize("backend", ["auto", *KERNELS])
def test_self_extend_is_that_of_eager(backend):
    scheme, pos = made({"kind": "self-extend", "group": 4, "window": 32}, SHAPE), plain(300)
    q, k, v = inputs_for(pos, torch.bfloat16, 2)
    parts, doubled = scheme.parts(q, k, pos), scheme.parts(q.double(), k.double(), pos)
    if backend != "auto":
        skip_unless_able(backend, parts, pos)
    with torch.no_grad():
        found = attend_parts(parts, v, pos, backend)
        assert_close([found], [attend_parts(doubled, v.double(), pos, "eager")], torch.bfloat16)


def test_self_extend_trains_without_every_pair():
    scheme, pos = made({"kind": "self-extend", "group": 4, "window": 32}, SHAPE), plain(300)
    q, k, v = (x.requires_grad_() for x in inputs_for(pos, torch.bfloat16))
    assert {choose(scores, q, k, pos, lse=True) for q, k, scores in scheme.parts(q, k, pos)} == {"flex"}

    def run(name: str):
        return lambda x: attend_parts(scheme.parts(*x[:2], pos), x[2], pos, name)

    inputs = [x.detach() for x in (q, k, v)]
    exact = gradients(run("eager"), [x.double() for x in inputs], [])
    assert_close(gradients(run("auto"), inputs, []), exact, torch.bfloat16)


def test_a_learned_bias_trains_in_flex_as_in_eager():
    """At a length that is no multiple of a block, where torch once returned NaN."""
    scheme, pos = made("relative", SHAPE).cuda(), plain(333)
    compare(lambda q, k: scheme.parts(q, k, pos), pos, "flex", torch.bfloat16, 2, scheme.parameters())


if not torch.cuda.is_available():  # at the end, so that what stands above is at least read everywhere
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
