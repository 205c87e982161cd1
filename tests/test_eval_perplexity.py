"""Perplexity: the same losses whatever is shared, batched, interrupted or done before; a limit, and what is broken."""

import copy
import multiprocessing
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from known_models import (
    Copier,
    Known,
    V,
    documents,
    drawn,
    dynamic,
    dynamic_by_layer,
    llama,
    measured,
    own,
    periodic,
    plan,
)

import eval.scorer
from eval import EvalError
from eval.perplexity import missing
from eval.plan import Document, Plan
from eval.protocols import PROTOCOLS
from eval.scorer import Budget
from eval.shared import may_share
from eval.stateless import forgetful
from eval.store import Store


def value(found, protocol: str) -> np.ndarray:
    """(lengths,) the number that a protocol reports, in nats."""
    sums, counts = found.sums(protocol)
    return sums.sum(0) / counts.sum(0)


# Sharing


def test_a_causal_model_may_share_and_gives_the_same_numbers(tmp_path):
    model, which = llama(), plan([4, 8, 16, 32], protocols="equal position suffix")
    shared, why = may_share(model, which)
    assert shared and why.startswith("short windows are read off long ones: on document 0 they differ by ")
    apart, read_off = (measured(tmp_path / str(s), model, replace(which, shared=s)) for s in (False, True))
    for record in which.records():
        for n in range(3):
            assert read_off.losses(record, n) == pytest.approx(apart.losses(record, n), abs=1e-5)
    assert which.tokens(which.documents[0]) > replace(which, shared=True).tokens(which.documents[0])


def test_a_model_that_follows_the_length_may_not_share():
    shared, why = may_share(dynamic(), plan([8, 16, 32]))
    assert not shared and why.startswith("each length is run by itself: on document 0, later tokens change earlier")
    assert may_share(dynamic(), plan([8, 16]))[0]  # up to the length of training nothing changes


def test_one_length_is_not_tried():
    assert may_share(Known(), plan([8], protocols="equal")) == (False, "there is one length, and nothing to share")


def test_sharing_is_tried_on_a_document_that_is_long_enough():
    """Windows that end with the document would all be the same."""
    assert not may_share(dynamic(), plan([8, 32], documents(5, 60, 4), "hf-stride", stride=8))[0]


@pytest.mark.parametrize("make", [dynamic, llama])
def test_what_ran_before_does_not_matter(tmp_path, make):
    """transformers' dynamic NTK keeps the base of the longest input so far, down to the length of training."""
    model = forgetful(make())
    one = {n: measured(tmp_path / f"{n}", model, plan([n, 64], documents(65, 65), "equal")) for n in (32, 24, 16)}
    wanted = {n: value(found, "equal")[0] for n, found in one.items()}
    for folder, order in {"up": (16, 24, 32), "down": (32, 24, 16)}.items():
        for n in order:
            again = measured(tmp_path / folder, model, plan([n, 64], documents(65, 65), "equal"))
            assert value(again, "equal")[0] == pytest.approx(wanted[n], abs=1e-6)


@pytest.mark.parametrize("make", [dynamic, dynamic_by_layer])
def test_long_then_short_is_short(make):
    plain, mended, ids = make(), forgetful(make()), drawn(1, 64)
    mended.load_state_dict(plain.state_dict())
    with torch.no_grad():
        short = plain(input_ids=ids[:, :24]).logits
        plain(input_ids=ids), mended(input_ids=ids)
        assert (plain(input_ids=ids[:, :24]).logits - short).abs().max() > 1e-3  # else this test tests nothing
        assert torch.equal(mended(input_ids=ids[:, :24]).logits, short)


# What makes no difference


@pytest.fixture(scope="module")
def everything() -> Plan:
    given = documents(70, 70, 81, 33, 45)
    return plan([4, 10, 16], given, " ".join(PROTOCOLS), stride=4, shared=True)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return llama()


@pytest.fixture(scope="module")
def wanted(everything, model, tmp_path_factory) -> list[np.ndarray]:
    return losses(measured(tmp_path_factory.mktemp("wanted"), model, everything))


def losses(found) -> list[np.ndarray]:
    return [found.losses(record, n) for record in found.plan.records() for n in range(len(found.plan.documents))]


def same(one: list[np.ndarray], other: list[np.ndarray], within: float = 1e-5) -> bool:
    return all(np.abs(a - b).max() <= within for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("budget", [Budget(1), Budget(37), Budget(10**6), Budget(logits=V), Budget(64, V * 7, 5)])
def test_how_much_runs_at_once_does_not_matter(tmp_path, everything, model, wanted, budget):
    assert same(losses(measured(tmp_path, model, everything, budget=budget)), wanted)


def test_the_order_of_documents_and_lengths_does_not_matter(tmp_path, everything, model, wanted):
    turned = replace(everything, documents=everything.documents[::-1], lengths=everything.lengths[::-1])
    for name in PROTOCOLS:
        one, other = measured(tmp_path, model, turned), measured(tmp_path, model, everything)
        assert np.allclose(one.sums(name)[0][::-1], other.sums(name)[0], atol=1e-3, equal_nan=True)


def test_memory_that_runs_out_does_not_matter(tmp_path, everything, model, wanted, monkeypatch):
    real, failed = eval.scorer.score, []

    def score(model, ids, *args, **how):
        if len(ids) > 2 and len(failed) < 50:
            failed.append(len(ids))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(model, ids, *args, **how)

    monkeypatch.setattr(eval.scorer, "score", score)
    assert same(losses(measured(tmp_path, model, everything)), wanted) and failed


def test_two_processes_measure_what_one_does(tmp_path, everything, wanted, model):
    meeting, found = threading.Barrier(2, timeout=60), {}

    def process(n: int):
        share = {"mine": slice(n, None, 2), "meet": meeting.wait, "store": Store(tmp_path, n)}
        found[n] = losses(measured(tmp_path, copy.deepcopy(model), everything, **share))

    threads = [threading.Thread(target=process, args=(n,)) for n in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert same(found[0], wanted) and same(found[1], wanted)
    # And one process alone finds what the two have left.
    assert same(losses(measured(tmp_path, pytest.fail, everything)), wanted)


# What is kept


def test_measuring_again_runs_nothing_and_finds_the_same(tmp_path, everything, model, wanted):
    measured(tmp_path, model, everything)
    assert same(losses(measured(tmp_path, pytest.fail, everything)), wanted)
    assert missing(everything, Store(tmp_path), "a model") == []


def test_only_what_is_missing_is_run(tmp_path):
    model, given = Known(), documents(17, 17)
    measured(tmp_path, model, plan([8, 16], given, "equal"))
    assert model.tokens == 2 * 2 * 16
    measured(tmp_path, model, plan([4, 8, 16], documents(17, 17, 17), "equal"))
    assert model.tokens == 2 * 2 * 16 + 2 * 16 + 3 * 16  # a length more of two documents, a document more of three


def test_another_model_another_text_and_other_targets_are_measured_anew(tmp_path):
    model, which = Known(), plan([8, 16], protocols="equal")
    once = 3 * 2 * 16
    for times, (identity, other) in enumerate(
        [
            ("a", which),
            ("b", which),
            ("a", replace(which, documents=[Document(d.name, d.ids.flip(0)) for d in which.documents])),
        ],
        1,
    ):
        measured(tmp_path, model, other, identity=identity)
        assert model.tokens == times * once
    measured(tmp_path, model, plan([8, 16, 32], protocols="equal"), identity="a")  # other targets
    assert model.tokens == 3 * once + 3 * 3 * 32


def test_damaged_losses_are_measured_again_and_never_used(tmp_path):
    which = plan([8], protocols="equal")
    measured(tmp_path, Known(), which)
    content = bytearray((tmp_path / "0.f32").read_bytes())
    content[3] ^= 64
    (tmp_path / "0.f32").write_bytes(content)
    model = Known()
    found = measured(tmp_path, model, which)
    assert model.tokens == 8 and value(found, "equal") == pytest.approx([np.log(V)])
    (tmp_path / "0.f32").write_bytes(b"")
    with pytest.raises(EvalError, match="losses of document 0 are missing or damaged"):
        replace(found, store=Store(tmp_path)).sums()


def test_advance_is_told_of_every_token(tmp_path):
    for tokens, lengths in [(64, [4, 32]), (10**6, [4, 8, 32])]:  # the second finds half of it
        told, which = [], plan(lengths, documents(33, 33, 33), shared=True)
        measured(tmp_path, Known(), which, tokens=tokens, advance=told.append)
        assert sum(told) == sum(map(which.tokens, which.documents))


def until_killed(folder, which):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measured(folder, llama(), which, tokens=60)


def test_kill_9_in_the_middle_of_scoring_costs_no_more_than_what_was_in_hand(tmp_path, model):
    which = plan([4, 10, 16], documents(*[40] * 120), "equal position hf-stride", stride=4)
    process = multiprocessing.get_context("fork").Process(target=until_killed, args=(tmp_path / "killed", which))
    process.start()
    while not (index := tmp_path / "killed/0.jsonl").exists() or index.read_bytes().count(b"\n") < 50:
        assert process.is_alive()
    process.kill()
    process.join()
    left = missing(which, Store(tmp_path / "killed"), "a model")
    assert 0 < len(left) < 120, "it was done before it was killed"
    told = []
    found = measured(tmp_path / "killed", model, which, tokens=60, advance=told.append)
    assert sum(told) == sum(map(which.tokens, which.documents))
    whole = measured(tmp_path / "whole", model, which, tokens=60)
    assert all(np.array_equal(a, b) for a, b in zip(losses(found), losses(whole), strict=True))


# A limit, and what is broken


def test_beyond_its_limit_a_model_is_not_run(tmp_path):
    which = plan([8, 16, 32, 64], limit=16, shared=True)
    found = measured(tmp_path, own("learned"), which)  # raises beyond 16
    sums, counts = found.sums("equal")
    assert np.isfinite(sums[:, :2]).all() and np.isnan(sums[:, 2:]).all()
    assert counts.tolist() == [[32, 32, 0, 0]] * 3
    model = Known()
    assert np.isnan(measured(tmp_path, model, replace(which, limit=4)).sums("equal")[0]).all() and not model.shapes


def test_a_loss_that_is_no_number_stops_the_measurement_and_is_not_kept(tmp_path):
    class Nan(Known):
        def logits(self, ids):
            return torch.where((ids == 33)[..., None], torch.nan, super().logits(ids))

    given = documents(17, 17, 17)
    for one in given:
        one.ids[one.ids == 33] = 0
    given[1].ids[12] = 33
    which = plan([4, 16], given, "equal")
    with pytest.raises(EvalError, match=r"document 1: the loss of token 13 \(id \d+\) is nan, at place 12 of a window"):
        measured(tmp_path, Nan(), which, tokens=1)
    assert [one.name for one, _ in missing(which, Store(tmp_path), "a model")] == ["document 1", "document 2"]


def test_the_copier_of_these_tests_copies(tmp_path):
    ids = periodic(7, 41)[None]
    logits = Copier(7)(ids[:, :-1]).logits
    assert F.cross_entropy(logits[0, 6:], ids[0, 7:]) == 0
