"""Backends for GPUs, said to stand-ins for their kernels; what is refused, what is chosen, what runs out of memory."""

import inspect
from dataclasses import replace

import pytest
import torch
from attention_cases import (
    CAP,
    DECAY,
    LAYOUTS,
    NOTHING,
    REMOTE,
    ROWS,
    SLOPES,
    SYNTHETIC,
    B,
    D,
    H,
    Largest,
    T,
    assert_same,
    at_pair_bias,
    at_pair_keep,
    both,
    learned_of,
    made,
    parts_of,
    random_inputs,
    scores_of,
    skip_unless_able,
    through,
)
from stand_ins import gpu, install, torch_ragged, torch_ragged_before

from lab import LabError
from lab.attention import BACKENDS, attend, choose, eager, flash2, flash4, flex, obstacle, order, sdpa, varlen
from positional import Positions, Scores, Shape, build

FLASH = [name for name in REMOTE if name != "flex"]
WORDS = {"nothing": NOTHING} | SYNTHETIC
SAID = [(name, words) for name in REMOTE for words in WORDS if WORDS[words].needs <= BACKENDS[name].can]


@pytest.fixture
def installed(monkeypatch):
    install(monkeypatch)


def agree(run, inputs, parameters, backend: str) -> None:
    """Forward and backward; flex has no gradient on a CPU, whether compiled or not."""
    if backend == "flex":
        with torch.no_grad():
            return assert_same([run("flex", inputs)], [run("eager", inputs)], 1e-6)  # slopes and biases are fp32
    found, exact = both(run, inputs, parameters, backend=backend)
    assert_same(found, exact, 1e-9)


# what is said to the kernels


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", REMOTE)
def test_a_kernel_is_told_what_an_encoding_says(any_spec, shape, installed, backend, layout):
    scheme, pos = made(any_spec, shape), LAYOUTS[layout]()
    inputs = random_inputs(pos, kv_heads=2)
    parts = parts_of(scheme, *inputs[:2], pos)
    skip_unless_able(backend, parts, pos)
    if len(parts) > 1:  # merged by sums, which flash kernels return without a gradient
        with torch.no_grad():
            wanted = through(scheme, inputs, pos, "eager")
            return assert_same([through(scheme, inputs, pos, backend)], [wanted], 1e-6)
    agree(lambda name, x: through(scheme, x, pos, name), inputs, scheme.parameters(), backend)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "words"), SAID)
def test_a_kernel_is_told_every_combination_of_words(installed, backend, words, layout, causal):
    pos = replace(LAYOUTS[layout](), causal=causal)
    scores, inputs = scores_of(words, pos), random_inputs(pos, kv_heads=1)
    skip_unless_able(backend, [(*inputs[:2], scores)], pos)
    agree(lambda name, x: attend(*x, scores, pos, name), inputs, learned_of(words), backend)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "words"), SAID)
def test_a_kernel_s_log_sum_exp_is_that_of_the_definition(installed, backend, words, layout):
    pos = LAYOUTS[layout]()
    scores, inputs = scores_of(words, pos), random_inputs(pos, kv_heads=2)
    skip_unless_able(backend, [(*inputs[:2], scores)], pos)
    out, sums = attend(*inputs, scores, pos, backend, lse=True)
    wanted, exact = attend(*inputs, scores, pos, "eager", lse=True)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(sums.double(), exact, rtol=1e-6, atol=1e-6)


def ran(backend: str, scores: Scores, layout: str) -> bool:
    pos = LAYOUTS[layout]()
    q, k, _ = random_inputs(pos)
    return obstacle(backend, scores, q, k, pos) is None


def test_the_tests_above_skip_no_more_than_the_kernels_cannot(installed):
    """A kernel that refused everything would pass them all."""

    def able(backend: str, needs: frozenset[str], layout: str) -> bool:
        indexed = layout not in ("skipping", "left-padded")
        if needs & {"sinks", "bias", "rows", "keep"} or ("beyond" in needs and layout in ("left-padded", "packed")):
            return False
        channels = needs & {"decay"} if backend == "flash2" and indexed else needs & {"decay", "slopes"}
        return "cap" not in needs or (backend != "varlen" and not channels)

    for backend in FLASH:
        for layout in LAYOUTS:
            found = {words for words, scores in SYNTHETIC.items() if ran(backend, scores, layout)}
            assert found == {words for words, scores in SYNTHETIC.items() if able(backend, scores.needs, layout)}
    able = {words for words, scores in SYNTHETIC.items() if "rows" not in scores.needs}
    assert all(
        able == {words for words, scores in SYNTHETIC.items() if ran("flex", scores, layout)} for layout in LAYOUTS
    )


def test_torch_s_kernel_before_it_had_shared_keys_is_given_keys_of_its_own_for_each_head(monkeypatch):
    install(monkeypatch, torch_ragged_before)
    pos = Positions.first(T)
    inputs = random_inputs(pos, kv_heads=2)
    agree(lambda name, x: attend(*x, Scores(window=7), pos, name), inputs, (), "varlen")


def test_torch_s_kernel_has_the_arguments_on_record():
    from torch.nn.attention.varlen import varlen_attn

    found, recorded = (inspect.signature(one).parameters for one in (varlen_attn, torch_ragged))
    assert set(inspect.signature(torch_ragged_before).parameters) <= set(found) <= set(recorded)
    assert all(found[name].kind == recorded[name].kind for name in found)


@pytest.mark.parametrize("backend", FLASH)
def test_slopes_that_learn_get_their_gradient(installed, backend):
    pos = Positions.first(T)
    steep = SLOPES.clone().requires_grad_()
    run = lambda name, x: attend(*x, Scores(slopes=steep), pos, name)  # noqa: E731
    found, exact = both(run, random_inputs(pos), [steep], backend=backend)
    assert found[-1].any()
    assert_same(found, exact, 1e-9)


def test_flash_attn_2_is_given_slopes_only_where_positions_are_indices(installed, monkeypatch):
    given = []
    call = flash2.call
    monkeypatch.setattr(flash2, "call", lambda *a, **o: given.append(o["slopes"]) or call(*a, **o))
    for layout in ("plain", "last queries", "packed", "skipping", "left-padded"):
        pos = LAYOUTS[layout]()
        attend(*random_inputs(pos), Scores(slopes=SLOPES), pos, "flash2")
    assert [slopes is not None for slopes in given] == [True, True, True, False, False]


# flex's blocks


@pytest.mark.parametrize("words", ["nothing", "window", "window and sinks", "beyond", "keep", "beyond and window"])
@pytest.mark.parametrize(("queries", "tokens"), [(700, 700), (1, 700), (129, 640), (512, 512)])
def test_blocks_are_those_that_are_seen(words, queries, tokens):
    scores = WORDS[words]
    if words == "window":
        scores = Scores(window=200)
    pos = Positions.first(tokens, queries=queries)
    mask = flex.blocks(scores, pos, 1, H)
    seen = eager.visible(scores, pos, *eager.grid(1, H, queries, tokens, "cpu"))
    side = [-(-n // flex.BLOCK) * flex.BLOCK for n in (queries, tokens)]
    whole = torch.zeros(*seen.shape[:2], *side, dtype=torch.bool)
    whole[:, :, :queries, :tokens] = seen
    tiles = whole.unflatten(3, (-1, flex.BLOCK)).unflatten(2, (-1, flex.BLOCK)).transpose(3, 4).flatten(4)
    assert torch.equal(mask.to_dense().bool(), tiles.any(-1))
    assert torch.equal(mask.full_kv_num_blocks, tiles.all(-1).sum(-1).int())


@pytest.mark.parametrize("words", [*(words for name, words in SAID if name == "flex"), "relative"])
def test_flex_agrees_where_there_are_many_blocks_and_a_part_of_one(installed, words):
    pos = Positions.first(300, queries=280)
    inputs = random_inputs(pos, kv_heads=2, batch=1)
    scheme = made("relative", Shape(H * D, H, H, 1, 64))
    scores = scheme.scores(*inputs[:2], pos) if words == "relative" else scores_of(words, pos, batch=1)
    agree(lambda name, x: attend(*x, scores, pos, name), inputs, (), "flex")


def test_heads_in_threes_share_keys_in_flex_too(installed):
    pos = Positions.first(T)
    q, k, v = random_inputs(pos, kv_heads=1)
    q = torch.cat([q, q[:, :2]], 1)
    k, v = (torch.cat([x, -x], 1) for x in (k, v))
    agree(lambda name, x: attend(*x, NOTHING, pos, name), [q, k, v], (), "flex")


@pytest.mark.parametrize("kv_heads", [H, 2])
@pytest.mark.parametrize("backend", FLASH)
def test_decay_is_said_to_halves_in_parts_that_they_hold(installed, backend, kv_heads):
    """One part of 8 bits would be off by 1 in a decay of 600, and tilt the balance of its keys as much."""
    pos = Positions.first(T)
    q, k, v = random_inputs(pos, torch.bfloat16, kv_heads)
    scores = Scores(decay=40 * DECAY[:, :, :T])
    found = attend(q, k, v, scores, pos, backend, lse=True)
    out, sums = attend(q.double(), k.double(), v.double(), scores, pos, "eager", lse=True)
    torch.testing.assert_close(found[0].double(), out, rtol=2**-8, atol=2**-9)
    torch.testing.assert_close(found[1].double(), sums, rtol=0, atol=1e-4)


@pytest.mark.parametrize("words", ["decay and slopes", "decay"])
def test_decay_and_slopes_beside_a_wide_head_say_how_many_channels_are_left(capability, installed, words):
    scores = scores_of(words, Positions.first(8))
    message = f"runs these {words} in channels of their own, and has too few left beside a head size of 256"
    assert refusal("flash3", scores, q=gpu(9, size=256)) == message
    assert refusal("flash3", scores, q=gpu(9, size=248)) == ""
    message = (
        f"takes head sizes up to 128 on Blackwell, {' among them, '.join(words.split(' and '))} among them, not 136"
    )
    assert refusal("flash4", scores, q=gpu(10, size=128)) == message


def test_layers_that_say_the_same_share_their_blocks(monkeypatch):
    built = []
    monkeypatch.setattr(flex, "block_mask", lambda *a: built.append(1))
    pos = Positions.first(T)
    for scores in (Scores(window=7), Scores(window=7), Scores(window=8), Scores(keep=at_pair_keep)) * 2:
        flex.blocks(scores, pos, B, H)
    assert len(built) == 3


def test_the_blocks_of_a_window_are_found_without_every_pair(installed):
    """Uncompiled, flex itself holds every pair; what it is told must not."""
    pos = Positions.first(2048)
    with Largest() as seen:
        flex.blocks(Scores(window=300, keep=at_pair_keep), pos, 1, H)
    assert seen.elements <= 2048 * flex.STRIP * H
    with Largest() as seen:
        flex.blocks(Scores(window=300), pos, 1, H)
    assert seen.elements <= 2048 * flex.STRIP


@pytest.mark.slow
@pytest.mark.parametrize("words", ["nothing", "window", "slopes and keep", "bias", "cap", "relative"])
def test_flex_compiled_for_a_cpu_agrees_with_eager(words):
    if not flex.compiles():
        pytest.skip("no C++ compiler")
    pos = Positions.first(300)
    inputs = random_inputs(pos, torch.float32, kv_heads=2)
    scheme = made("relative", Shape(H * D, H, H, 1, 64))
    with torch.no_grad():
        scores = scheme.scores(*inputs[:2], pos) if words == "relative" else scores_of(words, pos)
        assert_same([attend(*inputs, scores, pos, "flex")], [attend(*inputs, scores, pos, "eager")], 1e-5)


# what is refused


def refusal(backend: str, scores: Scores = NOTHING, pos: Positions | None = None, q=None, **how) -> str:
    """Why this call is refused, or an empty text."""
    pos = Positions.first(8) if pos is None else pos
    q = torch.zeros(B, H, pos.queries, D) if q is None else q
    return obstacle(backend, scores, q, torch.zeros(B, H, pos.tokens, D), pos, **how) or ""


@pytest.fixture
def capability(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: device.capability)


@pytest.mark.parametrize("backend", FLASH)
def test_flash_kernels_are_for_gpus(backend):
    assert refusal(backend) == "runs on an NVIDIA GPU, not on cpu"


def test_a_backend_that_is_not_installed_says_how_to_get_it(capability, monkeypatch):
    for module in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    for found in (flash2.version, flash4.installed, BACKENDS["flash3"].installed):
        found.cache_clear()
    assert refusal("flash2", q=gpu(9)) == "is not installed (pip install flash-attn --no-build-isolation)"
    assert refusal("flash3", q=gpu(9)).startswith("is not installed (build the folder `hopper`")
    assert refusal("flash4", q=gpu(9)).startswith("is not installed (pip install --pre flash-attn-4, in an environment")


def test_a_package_that_fails_to_import_in_any_way_is_not_installed(monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise OSError("undefined symbol")

    flash2.version.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", Broken())
    assert flash2.version() is None
    flash2.version.cache_clear()


@pytest.mark.parametrize("asked", [flash2.version, BACKENDS["flash3"].installed, flash4.installed, varlen.arguments])
def test_a_compiled_model_may_ask_what_is_installed(asked):
    run = torch.compile(lambda x: x + 1 if asked() else x - 1, backend="eager", fullgraph=True)
    assert run(torch.zeros(1)).abs() == 1


def test_an_old_flash_attn_is_told_to_be_renewed(capability, monkeypatch):
    monkeypatch.setattr(flash2, "version", lambda: (2, 5))
    wanted = "needs flash-attn 2.8, found 2.5 (pip install flash-attn --no-build-isolation --upgrade)"
    assert refusal("flash2", q=gpu(8)) == wanted


@pytest.mark.parametrize(
    ("backend", "q", "reason"),
    [
        ("flash2", gpu(7, 5), "runs on GPUs from Ampere on (compute capability 8.0), not on compute capability 7.5"),
        ("varlen", gpu(7, 5), "runs on GPUs from Ampere on (compute capability 8.0), not on compute capability 7.5"),
        ("flash3", gpu(8, 6), "runs on Hopper GPUs (compute capability 9.0), not on compute capability 8.6"),
        ("flash4", gpu(8), "runs on Hopper and Blackwell GPUs (capability 9, 10), not on compute capability 8.0"),
        ("varlen", gpu(9, dtype=torch.float32), "takes fp16 or bf16, not float32"),
        ("varlen", gpu(9, size=65), "takes head sizes up to 256 in multiples of 8, not 65"),
        ("varlen", gpu(9, size=264), "takes head sizes up to 256 in multiples of 8, not 264"),
        ("varlen", gpu(9), ""),
        ("flex", gpu(9, size=8), "takes head sizes from 16, not 8"),
        ("flex", gpu(9, dtype=torch.float64), "takes fp16, bf16 or fp32, not float64"),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_take_is_said(capability, backend, q, reason):
    assert refusal(backend, q=q) == reason


def test_slopes_beside_a_full_head_have_no_channel_left(capability, installed, monkeypatch):
    slopes = Scores(slopes=SLOPES)
    wanted = "runs these slopes in channels of their own, and has too few left beside a head size of 256"
    assert refusal("flash3", slopes, q=gpu(9, size=256)) == refusal("varlen", slopes, q=gpu(9, size=256)) == wanted
    assert refusal("flash2", slopes, q=gpu(9, size=256)) == ""
    assert refusal("flash4", slopes, q=gpu(10, size=128)).startswith("takes head sizes up to 128 on Blackwell")
    assert refusal("flash4", q=gpu(10, size=128)) == refusal("flash4", slopes, q=gpu(9, size=128)) == ""


def test_what_a_kernel_would_cap_with_the_scores_is_said(installed):
    pos, ahead = Positions.first(8), Positions(2 * torch.arange(8)[None], 8, 15)
    slopes, decay = Scores(slopes=SLOPES, cap=CAP), Scores(decay=DECAY[..., :8], slopes=SLOPES, cap=CAP)
    both = "runs these decay and slopes in channels of their own, which it would cap with the scores"
    assert refusal("flash3", decay) == refusal("flash4", decay) == both
    assert refusal("flash2", decay) == both.replace("decay and slopes", "decay")
    assert refusal("flash3", slopes, pos) == refusal("flash2", slopes, ahead) == both.replace("decay and ", "")
    assert refusal("flash2", slopes, pos) == refusal("flash3", Scores(cap=CAP), ahead) == ""
    assert refusal("varlen", Scores(cap=CAP)) == "does not run cap"


@pytest.mark.parametrize("backend", FLASH)
def test_what_flash_kernels_cannot_be_told_is_said(installed, backend):
    shared = torch.tensor([[0, 0, 1, 1, 0, 0, 1, 1]])
    apart = replace(Positions.first(8), segments=shared)
    assert refusal(backend, pos=apart) == "takes segments only of tokens that follow one another"
    asked = replace(Positions.first(8, queries=3), segments=shared.sort().values)
    wanted = "takes padded or packed tokens only where all of them ask, and without `beyond`"
    assert refusal(backend, pos=asked) == wanted
    assert refusal(backend, Scores(beyond=2), replace(asked, queries=8)) == wanted
    ahead = Positions(torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]), 8, 4)
    assert refusal(backend, Scores(slopes=SLOPES), ahead).startswith("runs slopes only where the keys a query sees lie")
    q = torch.zeros(B, H, 8, D, requires_grad=True)
    assert refusal(backend, q=q, lse=True) == "returns a log-sum-exp without its gradient"
    with torch.no_grad():
        assert refusal(backend, q=q, lse=True) == ""


def test_flex_on_a_cpu_says_what_it_lacks(monkeypatch):
    q = torch.zeros(B, H, 8, D, requires_grad=True)
    forward = "runs only forward on a CPU, without gradients (torch.no_grad())"
    assert refusal("flex", q=q) == refusal("flex", Scores(slopes=SLOPES.clone().requires_grad_())) == forward
    scheme = build("relative", Shape(H * D, H, H, 1, 64))
    pos = Positions.first(8)
    assert refusal("flex", scheme.scores(q, q, pos), pos) == forward
    assert refusal("flex", lse=True) == "returns no log-sum-exp on a CPU"
    assert refusal("flex", q=q.detach().double()) == "takes fp16, bf16 or fp32, not float64"
    monkeypatch.setattr(flex, "compiles", lambda: False)
    with torch.no_grad():
        assert refusal("flex", q=q) == "needs a C++ compiler on a CPU (install g++)"


def test_a_backend_asked_for_in_vain_says_who_can():
    pos = Positions.first(8)
    q = torch.zeros(B, H, 8, D)
    with pytest.raises(LabError) as caught:
        attend(q, q, q, Scores(bias=at_pair_bias), pos, "flash2")
    assert str(caught.value) == "attention: flash2 does not run bias; sdpa, eager can, and auto picks sdpa"
    with pytest.raises(LabError) as caught:
        attend(q, q, q, NOTHING, pos, "varlen")
    assert str(caught.value) == (
        "attention: varlen runs on an NVIDIA GPU, not on cpu; sdpa, eager can, and auto picks sdpa"
    )


def test_tensors_that_differ_in_kind_are_refused():
    pos = Positions.first(8)
    q = torch.zeros(B, H, 8, D)
    with pytest.raises(LabError) as caught:
        attend(q, q.bfloat16(), q, NOTHING, pos)
    wanted = "queries are float32 on cpu, keys bfloat16 on cpu and values float32 on cpu: attention takes one kind"
    assert str(caught.value) == wanted
    with pytest.raises(LabError, match="positions are on meta, queries on cpu"):
        attend(q, q, q, NOTHING, replace(pos, ids=pos.ids.to("meta")))


# what auto picks


def picked(scores: Scores, q, pos: Positions | None = None, lse: bool = False) -> str:
    return choose(scores, q, q, Positions.first(8) if pos is None else pos, lse=lse)


def test_auto_on_a_gpu_takes_the_fastest_that_is_exact(capability, monkeypatch):
    for found in (flash2.version, flash4.installed, BACKENDS["flash3"].installed):
        found.cache_clear()
    hopper, bias = gpu(9), Scores(bias=at_pair_bias)
    packed_ = replace(Positions.first(8), segments=torch.arange(8)[None] // 4)
    assert picked(NOTHING, hopper) == picked(Scores(slopes=SLOPES), hopper) == "sdpa"
    assert picked(Scores(window=3), hopper) == picked(NOTHING, hopper, packed_) == "varlen"
    assert picked(Scores(beyond=3), hopper, lse=True) == picked(NOTHING, hopper, lse=True) == "varlen"
    assert picked(bias, hopper) == picked(Scores(keep=at_pair_keep), hopper) == "flex"
    assert picked(Scores(window=3), gpu(7, 5, torch.float16)) == "flex"
    assert picked(Scores(window=3), gpu(9, dtype=torch.float32)) == "flex"
    assert picked(bias, gpu(9, size=8)) == "sdpa"
    assert picked(Scores(cap=CAP), hopper) == "flex"
    monkeypatch.setattr(flash2, "version", lambda: (2, 8))
    assert picked(NOTHING, hopper) == picked(Scores(window=3, slopes=SLOPES), hopper) == "flash2"
    assert picked(Scores(window=3, cap=CAP), hopper) == "flash2"
    monkeypatch.setattr(BACKENDS["flash3"], "installed", lambda: True)
    assert (
        picked(NOTHING, hopper) == "flash3" and picked(NOTHING, gpu(8)) == "flash2" and picked(bias, hopper) == "flex"
    )
    monkeypatch.setattr(flash4, "installed", lambda: True)
    assert picked(NOTHING, gpu(10)) == "flash4"


def test_auto_on_a_cpu_never_compiles():
    q = torch.zeros(B, H, 8, D)
    assert "flex" not in order(NOTHING, q, Positions.first(8))
    for words in WORDS:
        assert picked(WORDS[words], q) == "sdpa"


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("q", [torch.zeros(B, H, 8, D, requires_grad=True), gpu(9, dtype=torch.float64), gpu(5)])
def test_auto_never_takes_the_backend_that_holds_every_pair(capability, q, lse):
    for words in WORDS:
        assert choose(scores_of(words, Positions.first(8)), q, q, Positions.first(8), lse=lse) != "eager"


def test_auto_on_a_gpu_writes_sums_out_only_where_no_kernel_has_them(capability):
    for found in (flash2.version, flash4.installed, BACKENDS["flash3"].installed):
        found.cache_clear()
    q = gpu(9)
    q.requires_grad = True
    assert picked(NOTHING, q, lse=True) == "flex"  # flash kernels have no gradient for them
    assert picked(Scores(rows=ROWS), q, lse=True) == picked(Scores(rows=ROWS), q) == "sdpa"


# memory


def failing(message: str, kind: type = RuntimeError):
    def attend(*_):
        raise kind(message)

    return attend


CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."
)
GPU_MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"


@pytest.mark.parametrize(
    ("error", "asked"),
    [((CPU_MESSAGE, RuntimeError), "99 bytes"), ((GPU_MESSAGE, torch.OutOfMemoryError), "2.00 GiB")],
)
def test_memory_that_runs_out_says_where_and_what_would_fit(monkeypatch, error, asked):
    q, pos = torch.zeros(B, H, 8, D), Positions.first(8)
    monkeypatch.setattr(sdpa, "attend", failing(*error))
    with pytest.raises(LabError) as caught:
        attend(q, q, q, Scores(window=3), pos)
    sizes = "window of batch 2 × 4 heads × 8 queries × 8 keys of 16 (float32)"
    rest = "a smaller batch (train.batch, or a larger train.accumulate; eval.batch_tokens) or a shorter length"
    assert str(caught.value) == f"out of memory in attention: sdpa, {sizes}, asking for {asked}. Write {rest}"
    monkeypatch.setattr(eager, "attend", failing(*error))
    with pytest.raises(LabError) as caught:
        attend(q, q, q, Scores(window=3), pos, "eager")
    assert f"Write attention: sdpa, which holds no T×T matrix, or {rest}" in str(caught.value)


def test_memory_that_really_runs_out_is_one_clear_error():
    pos = Positions.first(2**20)
    q = torch.zeros(1, 1, 2**20, 8)
    with pytest.raises(LabError, match=r"out of memory in attention: eager, plain scores of batch 1 × 1 heads"):
        attend(q, q, q, NOTHING, pos, "eager")


def test_other_errors_stay_what_they_are(monkeypatch):
    q, pos = torch.zeros(B, H, 8, D), Positions.first(8)
    monkeypatch.setattr(sdpa, "attend", failing("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        attend(q, q, q, NOTHING, pos)


# autocast


def test_slopes_under_autocast_keep_their_precision():
    """It was not always so: positions in fp32 channels, which SDPA itself then rounded to bf16, off by 16 at 8192."""
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, H, 4096, D, generator=draw) for _ in range(3))
    pos, scores = Positions.first(4096), Scores(slopes=SLOPES)
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(q, k, v, scores, pos)
    exact = [x.bfloat16().double() for x in (q[:, :, -8:], k, v)]
    wanted = eager.attend(*exact, scores, Positions.first(4096, queries=8))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found[:, :, -8:].double(), wanted, rtol=2**-8, atol=2**-9)


def test_capped_scores_under_autocast_are_capped_before_they_are_rounded():
    """Were their products rounded to bf16 first, the sum of scores near 100 would be off by a quarter."""
    pos, scores = Positions.first(T), Scores(cap=200.0)
    q, k, v = (30 * x if n == 0 else x for n, x in enumerate(random_inputs(pos, torch.float32)))
    with torch.autocast("cpu", torch.bfloat16):
        _, sums = attend(q, k, v, scores, pos, "sdpa", lse=True)
    _, exact = eager.attend(*(x.bfloat16().double() for x in (q, k, v)), scores, pos, lse=True)
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_what_torch_cannot_compile_is_told_with_what_runs_it():
    """On a CPU torch 2.13 writes wrong C++ for a learned bias over fewer tokens than a block."""
    q = torch.zeros(1, 4, 64, 64)
    scheme, pos = build("relative", Shape(256, 4, 4, 1, 64)).requires_grad_(False), Positions.first(64)
    with torch.no_grad(), pytest.raises(LabError, match="cannot compile flex for 64 tokens.*attention: sdpa runs it"):
        attend(q, q, q, scheme.scores(q, q, pos), pos, "flex")
