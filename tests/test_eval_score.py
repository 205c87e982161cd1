"""Losses: models of which they are known, chunks and pieces that change nothing, memory that runs out."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from known_models import Copier, Known, V, drawn, dynamic, gemma, llama, own, periodic
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import eval.scorer
from eval import EvalError
from eval.score import score
from eval.scorer import Budget, Job, Scorer


def headed(make) -> pytest.param:
    return pytest.param(make, id=make.__name__)


WITH_A_BODY = pytest.mark.parametrize("make", [headed(llama), headed(gemma), headed(own)])


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
def test_chunks_change_nothing(make):
    model, ids, targets = make(), drawn(3, 25), drawn(3, 25, seed=1)
    whole = score(model, ids, targets, 2)
    for most in (1, 3 * V, 3 * V * 7):  # one place at a time; also; seven, which do not divide 23
        made = score(model, ids, targets, 2, logits=most)
        torch.testing.assert_close(made, whole, rtol=0, atol=1e-6)


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
@pytest.mark.parametrize("piece", [None, 20])
def test_no_tensor_of_logits_is_larger_than_the_bound(make, piece):
    model, ids = make(), drawn(2, 64)
    with Largest() as largest:
        score(model, ids, ids, logits=2 * V * 8, piece=piece)
    assert largest.numbers == 2 * V * 8


@WITH_A_BODY
def test_the_body_of_a_model_runs_once_for_all_chunks(make):
    model, seen = make(), []
    layer = model.model.layers[0]
    layer.register_forward_hook(lambda *_: seen.append(1))
    score(model, drawn(1, 9), drawn(1, 9), logits=1)
    assert len(seen) == 1


@WITH_A_BODY
def test_scoring_leaves_a_model_as_it_was(make):
    model, ids = make(), drawn(1, 8)
    before = model(input_ids=ids).logits
    score(model, ids, ids)
    score(model, ids, ids, piece=3)
    assert "forward" not in vars(model.model) and not model.model._forward_hooks
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
    ids = drawn(2, 8)
    with pytest.raises(EvalError) as caught:
        score(Broken(math.nan), ids, ids, first)
    assert str(caught.value) == (
        "the loss at place 5 of window 1 (8 tokens) is nan: the model's logits are not finite there; the token is "
        f"{int(ids[1, 5])}"
    )


def test_a_broken_place_that_is_not_scored_does_no_harm():
    assert score(Broken(math.nan), drawn(2, 8), drawn(2, 8), 6).isfinite().all()


def test_a_model_without_logits_is_told_what_to_load():
    class Encoder(Known):
        def forward(self, ids):
            return SimpleNamespace(last_hidden_state=ids)

    for model in (Encoder(), llama().model):
        with pytest.raises(EvalError, match=r"makes no logits: load a causal language model \(AutoModelForCausalLM\)"):
            score(model, drawn(1, 4), drawn(1, 4))


# Piece by piece


@WITH_A_BODY
@pytest.mark.parametrize("piece", [1, 7, 12, 24])
def test_a_window_given_piece_by_piece_loses_the_same(make, piece):
    model, ids, targets = make(), drawn(2, 24), drawn(2, 24, seed=1)
    for first in (0, 5, 13, 23):
        whole = score(model, ids, targets, first)
        torch.testing.assert_close(score(model, ids, targets, first, piece=piece), whole, rtol=0, atol=2e-5)


def test_pieces_are_not_for_a_model_of_which_nothing_is_known():
    model = Known()
    score(model, drawn(1, 24), drawn(1, 24), piece=8)
    assert model.shapes == [(1, 24)]


# Batches


def jobs(*lengths: int, first: int = 0) -> list[Job]:
    return [Job(drawn(n + 1, seed=k), first, name=f"text {k}") for k, n in enumerate(lengths)]


def test_windows_of_one_length_share_a_batch_long_first_and_nothing_is_padded():
    model = Known()
    order = [n for n, _ in Scorer(model, Budget(40)).losses(jobs(4, 16, 4, 16, 100, 16, *[4] * 12))]
    assert model.shapes == [(1, 100), (2, 16), (1, 16), (10, 4), (4, 4)]
    assert order[:4] == [4, 1, 3, 5] and sorted(order) == list(range(18))


def test_a_batch_gives_each_window_what_it_would_lose_alone():
    model = llama()
    wanted = [Job(drawn(13, seed=n), first) for n, first in enumerate([0, 3, 11, 7])]
    for n, losses in Scorer(model).losses(wanted):
        ids, first = wanted[n].ids[None], wanted[n].first
        alone = score(model, ids[:, :-1], ids[:, 1:], first)[0]
        torch.testing.assert_close(losses, alone, rtol=0, atol=2e-6)


def test_a_first_token_is_replaced_in_its_own_window_alone():
    model, ids = llama(), drawn(13)
    kept = ids.clone()
    found = dict(Scorer(model).losses([Job(ids), Job(ids, begin=3), Job(ids, 4, begin=5)]))
    assert torch.equal(ids, kept)
    for n, begin in enumerate([int(ids[0]), 3, 5]):
        begun = torch.cat([torch.tensor([begin]), ids[1:]])[None]
        alone = score(model, begun[:, :-1], begun[:, 1:])[0]
        torch.testing.assert_close(found[n], alone[4 * (n == 2) :], rtol=0, atol=2e-6)


def test_a_loss_that_is_not_finite_is_told_with_its_token_and_length():
    class Nan(Known):
        def logits(self, ids):
            return torch.where((ids == 33)[..., None], torch.nan, super().logits(ids))

    ids = drawn(13, seed=3) % 30
    ids[5] = 33
    others = [Job(drawn(13, seed=n) % 30, name="sound") for n in range(3)]
    with pytest.raises(EvalError) as caught:
        list(Scorer(Nan()).losses([*others, Job(ids, 2, name="broken.txt", start=100)]))
    assert str(caught.value) == (
        f"broken.txt: the loss of token 106 (id {int(ids[6])}) is nan, at place 5 of a window of 12 tokens: the "
        "model's logits are not finite there"
    )


# Memory


class Small:
    """Stands for `score` on a machine where only so much fits; keeps what it was asked for."""

    def __init__(self, fits, message="CUDA out of memory. Tried to allocate"):
        self.fits, self.message, self.calls = fits, message, []

    def __call__(self, model, ids, targets, first=0, *, logits, piece=None):
        chunk = max(1, min(logits // (ids.shape[0] * V), piece or ids.shape[1], ids.shape[1] - first))
        self.calls.append((ids.shape[0], chunk, piece))
        if not self.fits(batch=ids.shape[0], chunk=chunk, tokens=ids.shape[0] * (piece or ids.shape[1])):
            raise RuntimeError(self.message)
        return score(model, ids, targets, first, logits=logits, piece=piece)


def small(monkeypatch, fits, **how) -> Small:
    made = Small(fits, **how)
    monkeypatch.setattr(eval.scorer, "score", made)
    return made


def test_what_does_not_fit_is_tried_with_a_smaller_chunk_then_batch_then_piece(monkeypatch):
    model, given = llama(), jobs(512, 512, 512, 512)
    wanted = {n: losses.clone() for n, losses in Scorer(model).losses(given)}
    machine = small(monkeypatch, lambda batch, chunk, tokens: tokens <= 128)
    found = dict(Scorer(model).losses(given))
    steps = [(4, 512, None), (4, 256, None), (4, 128, None), (4, 64, None), (2, 128, None), (2, 64, None)]
    steps += [(1, 128, None), (1, 64, None), (1, 64, 256), (1, 64, 128)]
    assert machine.calls[:10] == steps and len(set(steps)) == len(steps)
    # Once more in halves of the pieces, to see that it makes no difference; then three windows more.
    assert machine.calls[10:] == [(1, 64, 64), *[(1, 64, 128)] * 3]
    for n, losses in wanted.items():
        torch.testing.assert_close(found[n], losses, rtol=0, atol=5e-5)


def test_a_chunk_that_is_the_cause_is_all_that_shrinks(monkeypatch):
    machine = small(monkeypatch, lambda batch, chunk, tokens: batch * chunk <= 300)
    assert len(dict(Scorer(llama()).losses(jobs(512, 512)))) == 2
    assert machine.calls == [(2, 512, None), (2, 256, None), (2, 128, None)]


def test_a_chunk_larger_than_the_window_does_not_count_as_a_step(monkeypatch):
    """2**24 logits are 335 thousand places of these; halving that again and again would run the same call again."""
    machine = small(monkeypatch, lambda **_: False)
    with pytest.raises(EvalError):
        list(Scorer(llama()).losses(jobs(100, 100, first=30)))
    assert machine.calls == [(2, 70, None), (2, 35, None), (1, 70, None), (1, 35, None)]


def test_a_model_of_unknown_parts_is_given_smaller_batches_alone(monkeypatch):
    machine = small(monkeypatch, lambda batch, **_: batch <= 2)
    assert len(dict(Scorer(Known()).losses(jobs(*[256] * 9)))) == 9
    assert [batch for batch, *_ in machine.calls] == [9, 4, 2, 2, 2, 2, 1]


def test_what_never_fits_is_an_error_and_not_an_endless_loop(monkeypatch):
    machine = small(monkeypatch, lambda **_: False, message="DefaultCPUAllocator: can't allocate memory")
    with pytest.raises(EvalError) as caught:
        list(Scorer(llama()).losses(jobs(512)))
    assert str(caught.value) == (
        "a window of 512 tokens does not fit into memory, not even 64 tokens at a time: take shorter lengths or a "
        "smaller model"
    )
    assert len(machine.calls) == len(set(machine.calls))
    with pytest.raises(EvalError, match="a window of 64 tokens does not fit into memory: take shorter"):
        list(Scorer(Known()).losses(jobs(64)))


def test_a_model_that_follows_the_length_is_not_given_piece_by_piece(monkeypatch):
    small(monkeypatch, lambda batch, chunk, tokens: tokens <= 128)
    with pytest.raises(EvalError, match="does not fit into memory whole, and piece by piece the model loses something"):
        list(Scorer(dynamic()).losses(jobs(256)))


def test_an_error_that_is_not_of_memory_is_raised(monkeypatch):
    small(monkeypatch, lambda **_: False, message="index out of range")
    with pytest.raises(RuntimeError, match="index out of range"):
        list(Scorer(llama()).losses(jobs(64)))


def test_shorter_windows_run_whole_after_a_long_one_did_not(monkeypatch):
    machine = small(monkeypatch, lambda batch, chunk, tokens: tokens <= 256)
    assert len(dict(Scorer(llama(), Budget(512)).losses(jobs(512, 200)))) == 2
    assert machine.calls[-1] == (1, 64, None)
