"""Evaluation: models whose loss is known beforehand, windows counted by hand, files cut short, tables as text."""

import json
import math
import struct
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

import eval.score
from eval import EvalError
from eval.perplexity import Point, measure, octaves
from eval.plan import Window, equal_token
from eval.score import score
from eval.store import Store, append, lines
from lab.figure import curve
from lab.model import LabConfig, LabModel
from lab.rows import Row, Rows, read, write
from lab.table import markdown

V = 50
"""Words. No other size in these tests is 50, so a tensor with this size is one of logits."""


# Models with known answers


class Known(nn.Module):
    """A model of which nothing is known but `.logits`; counts how often and on how many tokens it was run."""

    def __init__(self):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))
        self.forwards = self.tokens = 0

    def forward(self, ids: Tensor) -> SimpleNamespace:
        self.forwards += 1
        self.tokens += ids.numel()
        return SimpleNamespace(logits=self.logits(ids))

    def logits(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, V)


class Copier(Known):
    """Is sure that the next token is the one `back` before it, at the places below `until`; beyond, it is clueless."""

    def __init__(self, back: int, until: int = 10**9):
        super().__init__()
        self.back, self.until = back, until

    def logits(self, ids):
        places = torch.arange(ids.shape[1])
        sure = F.one_hot(ids[:, (places - self.back + 1).clamp(min=0)], V) * 1e4
        return sure * (places < self.until)[:, None]


def periodic(back: int, length: int) -> Tensor:
    return torch.arange(length) % back


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


def llama() -> nn.Module:
    config = LlamaConfig(vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    return LlamaForCausalLM(config).eval()


def gemma() -> nn.Module:
    """With logits pressed below 0.5, far from what its head gives alone."""
    config = Gemma2Config(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.5,
        initializer_range=0.5,
    )
    return Gemma2ForCausalLM(config).eval()


def own(positional="rope", train_length: int = 16) -> LabModel:
    config = LabConfig(vocab_size=V, width=32, layers=2, heads=2, positional=positional, train_length=train_length)
    return LabModel(config).eval()


def headed(make) -> pytest.param:
    return pytest.param(make, id=make.__name__)


WITH_A_BODY = pytest.mark.parametrize("make", [headed(llama), headed(gemma), headed(own)])


# Which windows


@given(half=st.integers(1, 40), more=st.integers(0, 200))
def test_every_target_is_scored_once_from_the_far_half_of_a_window_inside_the_document(half, more):
    length, longest = 2 * half, 2 * (half + more)
    windows = equal_token(length, longest)
    targets = [w.start + p + 1 for w in windows for p in range(w.first, w.length)]
    assert targets == list(range(longest // 2 + 1, longest + 1))
    assert all(w.length == length and length // 2 <= w.first < length for w in windows)
    assert all(w.start >= 0 and w.start + w.length <= longest for w in windows)


def test_windows_counted_by_hand():
    # Targets 5 6 7 8. Read 2–5 to predict 5 and 6 from places 2 and 3; then 4–7 to predict 7 and 8.
    assert equal_token(4, 8) == [Window(2, 4, 2), Window(4, 4, 2)]
    # 6 does not divide 8: the last window overlaps the one before it and scores only what is left.
    assert equal_token(6, 8) == [Window(1, 6, 3), Window(2, 6, 5)]
    assert equal_token(8, 8) == [Window(0, 8, 4)]
    assert equal_token(2, 4) == [Window(1, 2, 1), Window(2, 2, 1)]


# Losses


def test_a_clueless_model_loses_log_v_at_every_token():
    losses = score(Known(), drawn(3, 20), drawn(3, 20, seed=1))
    assert losses.shape == (3, 20) and losses.dtype == torch.float32
    torch.testing.assert_close(losses, torch.full((3, 20), math.log(V)), rtol=1e-6, atol=0)


def test_a_copier_loses_nothing_where_there_is_something_to_copy():
    ids = periodic(7, 41).repeat(2, 1)
    losses = score(Copier(7), ids[:, :-1], ids[:, 1:])
    assert (losses[:, 6:] == 0).all()
    # Places 0 … 5 have no token seven back; the copier takes the first one and is surely wrong.
    assert (losses[:, :6] > 100).all()


def test_a_target_is_the_token_after_its_place():
    """A copier of the very token it reads is right where tokens repeat, and wrong where they do not."""
    ids = torch.tensor([[4, 4, 9, 9, 9, 1]])
    right = score(Copier(1), ids[:, :-1], ids[:, 1:]) == 0
    assert right.tolist() == [[True, False, True, True, False]]


def test_first_leaves_out_the_places_before_it():
    ids, targets = drawn(2, 12), drawn(2, 12, seed=1)
    for model in (own(), Copier(3)):
        whole = score(model, ids, targets)
        torch.testing.assert_close(score(model, ids, targets, 5), whole[:, 5:], rtol=1e-6, atol=1e-6)
        assert score(model, ids, targets, 11).shape == (2, 1)


@WITH_A_BODY
def test_losses_are_those_of_the_models_own_full_logits(make):
    model, ids, targets = make(), drawn(2, 24), drawn(2, 24, seed=1)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    wanted = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(score(model, ids, targets), wanted, rtol=1e-6, atol=1e-6)


def test_the_gemma_of_these_tests_feels_its_soft_cap():
    """Else a head that forgets the cap would pass the tests above and below."""
    model, ids = gemma(), drawn(2, 24)
    hidden = model.model(input_ids=ids).last_hidden_state
    capped, bare = model(input_ids=ids).logits, model.lm_head(hidden)
    assert capped.abs().max() <= 0.5 < 2 < bare.abs().max()


@WITH_A_BODY
def test_chunks_change_nothing(make, monkeypatch):
    model, ids, targets = make(), drawn(3, 25), drawn(3, 25, seed=1)
    whole = score(model, ids, targets, 2)
    for most in (1, 3 * V, 3 * V * 7):  # one place at a time; also; seven, which do not divide 23
        monkeypatch.setattr(eval.score, "LOGITS", most)
        torch.testing.assert_close(score(model, ids, targets, 2), whole, rtol=0, atol=1e-6)


class Largest(TorchDispatchMode):
    """The most numbers in any tensor that has a dimension of V."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            # Two dimensions are the head's matrix, which has as many numbers as it has.
            if isinstance(one, Tensor) and one.ndim == 3 and V in one.shape:
                self.numbers = max(self.numbers, one.numel())
        return made


@WITH_A_BODY
def test_no_tensor_of_logits_is_larger_than_the_bound(make, monkeypatch):
    model, ids = make(), drawn(2, 64)
    monkeypatch.setattr(eval.score, "LOGITS", 2 * V * 8)
    with Largest() as largest:
        score(model, ids, ids)
    assert largest.numbers == 2 * V * 8


@WITH_A_BODY
def test_the_body_of_a_model_runs_once_for_all_chunks(make, monkeypatch):
    model, seen = make(), []
    layer = model.model.layers[0]
    layer.register_forward_hook(lambda *_: seen.append(1))
    monkeypatch.setattr(eval.score, "LOGITS", 1)
    score(model, drawn(1, 9), drawn(1, 9))
    assert len(seen) == 1


@WITH_A_BODY
def test_scoring_leaves_a_model_as_it_was(make):
    model, ids = make(), drawn(1, 8)
    before = model(input_ids=ids).logits
    score(model, ids, ids)
    assert "forward" not in vars(model.model)
    assert torch.equal(model(input_ids=ids).logits, before)


def test_a_forward_that_someone_laid_over_the_body_stays_there():
    """accelerate moves inputs between devices by a `forward` on the very module: big models are loaded so."""
    model, ids, calls = own(), drawn(1, 8), []
    inner = model.model.forward

    def laid_over(*args, **kwargs):
        calls.append(1)
        return inner(*args, **kwargs)

    model.model.forward = laid_over
    score(model, ids, ids)
    score(model, ids, ids)
    assert len(calls) == 2


def test_no_gradient_is_kept():
    assert not score(own(), drawn(1, 8), drawn(1, 8)).requires_grad


def test_losses_are_made_in_fp32_whatever_the_model_is():
    model, ids, targets = own(), drawn(2, 24), drawn(2, 24, seed=1)
    half = model.to(torch.bfloat16)
    with torch.no_grad():
        logits = half(input_ids=ids).logits
    assert logits.dtype == torch.bfloat16
    wanted = F.cross_entropy(logits.double().transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(score(half, ids, targets).double(), wanted, rtol=1e-6, atol=1e-6)


class Broken(Known):
    def __init__(self, value: float):
        super().__init__()
        self.value = value

    def logits(self, ids):
        logits = super().logits(ids)
        logits[1, 5] = self.value
        return logits


@pytest.mark.parametrize("first", [0, 3])
def test_a_loss_that_is_not_finite_is_told_with_its_place(first):
    with pytest.raises(EvalError) as caught:
        score(Broken(math.nan), drawn(2, 8), drawn(2, 8), first)
    assert str(caught.value) == (
        "the loss at place 5 of window 1 (8 tokens) is nan: the model's logits are not finite there"
    )


def test_a_broken_place_that_is_not_scored_does_no_harm():
    assert score(Broken(math.nan), drawn(2, 8), drawn(2, 8), 6).isfinite().all()


# The measurement


def documents(longest: int, count: int = 3, back: int | None = None) -> list[tuple[str, Tensor]]:
    """One token more than the longest length, as `measure` asks."""
    made = [drawn(longest + 1, seed=n) if back is None else periodic(back, longest + 1) + n for n in range(count)]
    return [(f"document {n}", ids) for n, ids in enumerate(made)]


def points(tmp_path, model, lengths, given=None, folder="losses", **options) -> list[Point]:
    options = {"identity": "a model", "store": Store(tmp_path / folder), **options}
    return list(measure(model, documents(max(lengths)) if given is None else given, lengths, **options))


def of(probe: str, found: list[Point]) -> dict[int, Point]:
    return {point.length: point for point in found if point.probe == probe}


def test_a_clueless_model_has_log_v_at_every_length_and_place(tmp_path):
    found = points(tmp_path, Known(), [4, 8, 32])
    assert [point.length for point in found if point.probe == "perplexity"] == [4, 8, 32]
    assert {point.count for point in of("perplexity", found).values()} == {3 * 16}
    assert {length: point.count for length, point in of("position", found).items()} == {
        1: 3,
        2: 3,
        4: 6,
        8: 12,
        16: 24,
        32: 48,
    }
    assert all(point.value == pytest.approx(math.log(V), rel=1e-6) and not point.note for point in found)


def test_a_model_that_forgets_after_16_tokens_falls_there(tmp_path):
    model = Copier(3, until=16)
    found = points(tmp_path, model, [8, 16, 24, 32], documents(32, back=3))
    values = {length: point.value / math.log(V) for length, point in of("perplexity", found).items()}
    # At 24 the sixteen targets are predicted from places 12 … 23 and 20 … 23: four of them lie below 16.
    assert values == pytest.approx({8: 0, 16: 0, 24: 12 / 16, 32: 1}, abs=1e-6)
    places = {end: point.value / math.log(V) for end, point in of("position", found).items()}
    # Place 2 is the first that has a token to copy; 16 … 31 are forgotten.
    assert places[1] > 1 and places[2] > 1
    assert {end: places[end] for end in (4, 8, 16, 32)} == pytest.approx({4: 0, 8: 0, 16: 0, 32: 1}, abs=1e-6)


def test_the_same_tokens_are_scored_at_every_length(tmp_path):
    """A model that always says 7 pays for exactly the targets that are no 7: as many at every length."""

    class Seven(Known):
        def logits(self, ids):
            return F.one_hot(torch.full_like(ids, 7), V) * 30.0

    given = documents(64)
    wrong = sum(int((ids[33:65] != 7).sum()) for _, ids in given)
    found = of("perplexity", points(tmp_path, Seven(), [2, 6, 8, 20, 64], given))
    for point in found.values():
        assert point.count == 96 and point.value * 96 / 30 == pytest.approx(wrong, rel=1e-4)


def test_a_point_is_the_mean_over_tokens_made_in_float64(tmp_path):
    model, given = own(), documents(32)
    whole = of("perplexity", points(tmp_path, model, [32], given))[32]
    losses = [score(model, ids[None, :-1], ids[None, 1:], 16).double() for _, ids in given]
    assert whole.value == pytest.approx(float(torch.cat(losses).mean()), abs=1e-9)


def test_how_many_tokens_run_together_does_not_matter(tmp_path):
    model, given = own(), documents(32, count=5)
    kinds = [points(tmp_path, model, [8, 12, 32], given, str(size), batch_tokens=size) for size in (1, 70, 10**6)]
    for other in kinds[1:]:
        assert [(p.probe, p.length, p.count) for p in other] == [(p.probe, p.length, p.count) for p in kinds[0]]
        assert [p.value for p in other] == pytest.approx([p.value for p in kinds[0]], abs=1e-6)


def test_a_forward_pass_has_no_more_tokens_than_asked_or_else_one_window(tmp_path):
    class Sized(Known):
        def __init__(self):
            super().__init__()
            self.shapes = set()

        def logits(self, ids):
            self.shapes.add(tuple(ids.shape))
            return super().logits(ids)

    for batch_tokens, shapes in {40: {(8, 4), (4, 4), (2, 16), (1, 16)}, 8: {(2, 4), (1, 16)}}.items():
        model = Sized()
        points(tmp_path, model, [4, 16], documents(16, count=9), str(batch_tokens), batch_tokens=batch_tokens)
        assert model.shapes == shapes


def test_each_length_costs_the_tokens_of_the_longest(tmp_path):
    model = Known()
    points(tmp_path, model, [4, 8, 16, 32], documents(32, count=2))
    assert model.tokens == 4 * 2 * 32


def test_advance_is_told_of_every_token(tmp_path):
    told = []
    points(tmp_path, Known(), [4, 32], documents(32, count=5), advance=told.append, batch_tokens=64)
    assert sum(told) == 2 * 5 * 32


def test_measuring_again_runs_nothing_and_finds_the_same(tmp_path):
    first, second = own(), own()
    second.load_state_dict(first.state_dict())
    once = points(tmp_path, first, [8, 32])
    second.register_forward_pre_hook(lambda *_: pytest.fail("a forward pass for what is known"))
    second.model.register_forward_pre_hook(lambda *_: pytest.fail("a forward pass for what is known"))
    assert points(tmp_path, second, [8, 32]) == once


def test_what_is_half_done_is_gone_on_with(tmp_path):
    given, model = documents(32, count=4), Copier(3)
    whole = points(tmp_path, Copier(3), [8, 32], given, "whole", batch_tokens=32)
    unfinished = measure(model, given, [8, 32], identity="a model", store=Store(tmp_path / "half"), batch_tokens=32)
    next(unfinished)
    unfinished.close()
    done = model.tokens
    assert points(tmp_path, model, [8, 32], given, "half", batch_tokens=32) == whole
    assert (done, model.tokens) == (4 * 32, 2 * 4 * 32)


def test_another_model_another_text_and_other_targets_are_measured_anew(tmp_path):
    model = Known()
    points(tmp_path, model, [8, 16])
    seen = model.tokens
    points(tmp_path, model, [8, 16], identity="another model")
    points(tmp_path, model, [8, 16], [(name, ids.flip(0)) for name, ids in documents(16)])
    assert model.tokens == 3 * seen
    points(tmp_path, model, [8, 16, 32], documents(32))  # the targets of a longest length of 32 are others
    assert model.tokens == 3 * seen + 3 * 3 * 32


def test_a_document_by_another_name_is_the_same_document(tmp_path):
    model = Known()
    points(tmp_path, model, [8])
    seen = model.tokens
    points(tmp_path, model, [8], [(name + " moved", ids) for name, ids in documents(8)])
    assert model.tokens == seen


def test_beyond_its_limit_a_model_has_no_value_but_a_note(tmp_path):
    found = points(tmp_path, own("learned"), [8, 16, 32, 64], limit=16)
    values = of("perplexity", found)
    assert all(math.isfinite(values[length].value) and values[length].count == 96 for length in (8, 16))
    assert [values[n] for n in (32, 64)] == [
        Point("perplexity", n, None, 0, "takes at most 16 tokens") for n in (32, 64)
    ]
    places = of("position", found)
    assert list(places) == [1, 2, 4, 8, 16, 32, 64]
    assert [places[n].count for n in (1, 2, 4, 8, 16)] == [3, 3, 6, 12, 24]
    assert [places[n] for n in (32, 64)] == [Point("position", n, None, 0, "takes at most 16 tokens") for n in (32, 64)]


def test_a_limit_below_every_length_leaves_only_notes(tmp_path):
    model = Known()
    found = points(tmp_path, model, [8, 16], limit=4)
    assert [(point.length, point.value) for point in found] == [(8, None), (16, None)]
    assert model.forwards == 0


def test_positions_below_a_limit_are_those_at_the_start_of_the_document(tmp_path):
    """Only there can they be set beside those of a model that reads the document whole."""
    model, given = own("alibi"), documents(32)
    short = of("position", points(tmp_path, model, [8, 16, 32], given, "a", limit=16))
    whole = of("position", points(tmp_path, model, [8, 16, 32], given, "b"))
    for end in (1, 2, 4, 8, 16):
        assert short[end].value == pytest.approx(whole[end].value, abs=1e-6) and short[end].count == whole[end].count
    assert short[32].value is None and whole[32].value is not None


def test_octaves_are_summed_by_place():
    losses = torch.tensor([1.0, 2, 3, 4, 5, 6])
    assert octaves(losses) == {"1": [1.0, 1], "2": [2.0, 1], "4": [7.0, 2], "8": [11.0, 2]}
    assert octaves(losses[:1]) == {"1": [1.0, 1]}
    assert sum(count for _, count in octaves(torch.ones(32)).values()) == 32


def test_two_processes_measure_what_one_does(tmp_path):
    given, alone = documents(32, count=5), Copier(3)
    wanted = points(tmp_path, alone, [8, 32], given, "one")
    meeting, found, models = threading.Barrier(2, timeout=20), {}, [Copier(3), Copier(3)]

    def process(n: int):
        share = {"mine": slice(n, None, 2), "meet": meeting.wait, "store": Store(tmp_path / "two", n)}
        found[n] = points(tmp_path, models[n], [8, 32], given, **share)

    threads = [threading.Thread(target=process, args=(n,)) for n in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == {0: wanted, 1: wanted}
    assert [model.tokens for model in models] == [3 * 2 * 32, 2 * 2 * 32]
    # And one process alone finds what the two have left.
    assert points(tmp_path, pytest.fail, [8, 32], given, "two") == wanted


# What is kept


def test_a_store_finds_what_it_was_given_also_when_opened_again(tmp_path):
    store = Store(tmp_path / "a/b")
    store.put({"one": {"total": 1.5}, "two": {"total": 2.5}})
    assert store.get("one") == {"total": 1.5} and store.get("three") is None
    again = Store(tmp_path / "a/b")
    assert again.found == {"one": {"total": 1.5}, "two": {"total": 2.5}}


def test_a_line_cut_short_is_left_out_and_the_rest_stays(tmp_path):
    Store(tmp_path).put({"one": {"total": 1}, "two": {"total": 2}})
    file = tmp_path / "0.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    store = Store(tmp_path)
    assert store.found == {"one": {"total": 1}}
    store.put({"two": {"total": 2}})
    assert Store(tmp_path).found == {"one": {"total": 1}, "two": {"total": 2}}


def test_a_line_that_lacks_only_its_end_counts_and_is_not_run_into(tmp_path):
    Store(tmp_path).put({"one": {"total": 1}})
    file = tmp_path / "0.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    store = Store(tmp_path)
    assert store.get("one") == {"total": 1}
    store.put({"two": {"total": 2}})
    assert Store(tmp_path).found == {"one": {"total": 1}, "two": {"total": 2}}


def test_each_process_writes_a_file_of_its_own_and_reads_all(tmp_path):
    first, second = Store(tmp_path, 0), Store(tmp_path, 1)
    first.put({"a": {"n": 1}})
    second.put({"b": {"n": 2}})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.jsonl", "1.jsonl"]
    assert first.get("b") is None
    first.read()
    assert first.found == {"a": {"n": 1}, "b": {"n": 2}}


@given(cut=st.integers(0, 60))
def test_wherever_a_crash_cuts_a_file_whole_lines_stay_and_new_ones_are_whole(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "x.jsonl"
    records = [{"n": n, "text": "a\nb"} for n in range(3)]
    append(path, records)
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    left = [json.loads(line) for line in content[: cut + 1].split(b"\n")[:-1]]
    assert lines(path) == left
    append(path, [{"n": 9}])
    assert lines(path) == [*left, {"n": 9}]


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
    assert lines(tmp_path / "none.jsonl") == []


# Rows, the table and the figure


def row(scheme="rope", length=16, value: float | None = 1.0, **other) -> Row:
    fields = {"run": "r", "trained_as": scheme, "seed": 0, "probe": "perplexity", "metric": "nats", "count": 64}
    return Row(**{**fields, "scheme": scheme, "length": length, "value": value, **other})


def test_rows_are_appended_and_read_back(tmp_path):
    rows = Rows(tmp_path / "rows.jsonl")
    given = [row(), row(length=32, value=None, count=0, note="why"), row("alibi"), row(seed=1), row(probe="position")]
    for n, one in enumerate(given, 1):
        rows.put(one)
        assert read(tmp_path / "rows.jsonl") == given[:n]  # each on disk at once
    assert read(tmp_path / "none.jsonl") == []


def test_a_row_measured_anew_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [row(), row("alibi"), row(length=32)])
    Rows(path).put(row(value=5.0))
    assert read(path) == [row(value=5.0), row("alibi"), row(length=32)]


def test_a_row_that_is_there_already_writes_nothing(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [row(), row("alibi")])
    before = path.stat().st_mtime_ns, path.read_bytes()
    Rows(path).put(row("alibi"))
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_rows_survive_half_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [row(), row("alibi")])
    path.write_bytes(path.read_bytes()[:-30])
    rows = Rows(path)
    assert list(rows.rows.values()) == [row()]
    rows.put(row("alibi"))
    rows.put(row(value=2.0))
    assert read(path) == [row(value=2.0), row("alibi")]


def test_the_table_as_text():
    rows = [
        row("learned", 16, 2.0),
        row("learned", 32, None, count=0, note="takes at most 16 tokens"),
        row("rope", 16, 1.25),
        row("rope", 32, 3.0),
        row("rope", 8, 9.0, probe="position", count=4),  # not of this table
        row("rope-ntk", 32, 1.0625, trained_as="rope"),
    ]
    assert markdown(rows, 16) == (
        "| nats per token | 16 (1×) | 32 (2×) |\n"
        "| --- | ---: | ---: |\n"
        "| learned | 2.000 | – |\n"
        "| rope | 1.250 | 3.000 |\n"
        "| rope → rope-ntk | – | 1.062 |\n"
        "\n"
        "64 scored tokens, the same at every length; 1 seed(s).  \n"
        "– learned: takes at most 16 tokens.  \n"
    )


def test_the_table_shows_the_mean_of_seeds_and_its_extremes():
    rows = [row(value=value, seed=seed) for seed, value in enumerate([1.0, 2.0, 4.5])]
    rows += [row(length=24, value=value, seed=seed) for seed, value in enumerate([1.0, None, 2.0])]
    table = markdown(rows, 16).splitlines()
    assert table[0] == "| nats per token | 16 (1×) | 24 (1.5×) |"
    assert table[2] == "| rope | 2.500 (1.000–4.500) | 1.500 (1.000–2.000) |"
    assert table[4].startswith("64 scored tokens") and table[4].rstrip().endswith("3 seed(s).")


def test_the_table_says_where_encodings_were_not_scored_on_the_same_tokens():
    """Rows of an older measurement may stand beside newer ones; nobody may then read `the same at every length`."""
    notes = markdown([row(length=16, count=64), row(length=32, count=128)], 16)
    assert "the same at every length" not in notes


def test_a_reason_stands_once_however_often_it_holds():
    rows = [row("learned", n, None, count=0, note="takes at most 16 tokens") for n in (32, 64, 128)]
    assert markdown(rows, 16).count("takes at most") == 1


def test_the_figure_is_a_png_that_shows_something(tmp_path):
    rows = [row("learned", 16, 2.0), row("learned", 32, None, count=0, note="x")]
    rows += [row("rope", n, n / 16) for n in (16, 32, 64)]
    rows += [row("rope-ntk", n, 1.0, trained_as="rope") for n in (16, 32, 64)]
    rows += [row("nope", n, None, count=0, note="x") for n in (16, 32)]  # nothing to draw, and no error
    curve(rows, tmp_path / "curve.png", 16)
    content = (tmp_path / "curve.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", content[16:24]) == (1200, 750)
    curve(rows[:1], tmp_path / "less.png", 16)
    assert 20_000 < len(content) < 300_000
    assert len(content) > (tmp_path / "less.png").stat().st_size + 5_000  # the lines and their names are in it
