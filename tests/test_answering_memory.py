"""Answers where memory runs out: asked with less, by the same steps as losses are made, they are the same answers."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from known_models import Known, V, drawn, dynamic, gemma, llama
from test_grid import BYTES, DEPTHS, own
from test_grid import llama as reading_bytes
from torch import nn

import eval.sample
from eval import EvalError
from eval.asked import Questions, Session
from eval.entries import Asked
from eval.grid import answers_of, grid, haystacks
from eval.sample import Answering, Sample, answered
from eval.score import judge
from eval.scorer import Budget
from eval.store import Store


@dataclass
class Tight:
    """A machine on which only so much of a model fits; keeps what the body was called with and whether that fitted."""

    fits: object  # of rows, new tokens a row, tokens a row in the cache
    calls: list[tuple] = field(default_factory=list)

    def hold(self, model: nn.Module) -> nn.Module:
        model.model.register_forward_pre_hook(self.before, with_kwargs=True)
        return model

    def before(self, body, args, kwargs) -> None:
        if "forward" in vars(body):
            return  # it answers with what is there already: the head is run alone
        given = [*args, *kwargs.values()]
        rows, new = next(x for x in given if isinstance(x, torch.Tensor)).shape
        cache = next((x for x in given if hasattr(x, "get_seq_length")), None)
        call = rows, new, 0 if cache is None else cache.get_seq_length(0)
        fitting = self.fits(*call)
        self.calls.append((*call, fitting))
        if not fitting:
            raise torch.OutOfMemoryError

    @property
    def refused(self) -> list[tuple]:
        return [call[:3] for call in self.calls if not call[3]]


def seeded(make) -> nn.Module:
    torch.manual_seed(0)
    return make()


def samples(model: nn.Module, *lengths: int) -> list[Sample]:
    """Of random tokens with answers near the beginning and the end, some of which the model gives and some not."""
    found = []
    for n, length in enumerate(lengths):
        ids, places = drawn(1, length, seed=n), [20, 21, length // 2, length - 2]
        for at in places[::2]:
            with torch.no_grad():
                ids[0, at] = model(input_ids=ids[:, :at]).logits[0, -1].argmax()
        found.append(Sample(ids[0].numpy(), tuple((at, at + 1) for at in places)))
    return found


def same(found, wanted) -> None:
    assert [one.right for one in found] == [one.right for one in wanted]
    assert [one.nats for one in found] == pytest.approx([one.nats for one in wanted], abs=1e-4)
    assert [(id(one.sample), one.answer) for one in found] == [(id(one.sample), one.answer) for one in wanted]


@pytest.mark.parametrize("make", [llama, gemma])
def test_answers_are_those_of_a_machine_with_room(make):
    asked = samples(seeded(make), 400, 300, 400, 400, 90)
    wanted = list(answered(seeded(make), asked, batch_tokens=1200))
    assert {one.exact for one in wanted} == {True, False} and len(wanted) == 5 * 4
    for most in (800, 400, 130):  # of two rows, of one, of pieces
        machine = Tight(lambda rows, new, _, most=most: rows * new <= most)
        same(list(answered(machine.hold(seeded(make)), asked, batch_tokens=1200)), wanted)
        assert machine.refused


def test_less_is_a_smaller_chunk_then_batch_then_piece_and_never_the_same_call(monkeypatch):
    """The same steps as of losses, see test_eval_score: the places asked for begin at 19, 380 of 399."""
    calls = []

    def counting(model, ids, targets, first, *, logits, piece):
        rows, length = ids.shape
        calls.append((rows, min(logits // (rows * V), piece or length, length - first), piece))
        return judge(model, ids, targets, first, logits=logits, piece=piece)

    monkeypatch.setattr(eval.sample, "judge", counting)
    model = Tight(lambda rows, new, _: rows * new <= 100).hold(llama())
    assert len(list(answered(model, samples(llama(), 400, 400, 400, 400), batch_tokens=1600))) == 16
    steps = [(4, 380, None), (4, 190, None), (4, 95, None), (4, 47, None), (2, 94, None), (2, 47, None)]
    steps += [(1, 94, None), (1, 47, None), (1, 47, 199), (1, 47, 99)]
    # What fits is checked with pieces of half the size, once; three samples more are then asked in the same way.
    assert calls == [*steps, (1, 47, 49), *[(1, 47, 99)] * 3]


def test_a_model_of_unknown_parts_is_asked_less_together():
    class Tighter(Known):
        def forward(self, ids):
            if len(ids) > 2:
                self.shapes.append(tuple(ids.shape))
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
            return super().forward(ids)

    model, ids = Tighter(), drawn(5, 30).numpy()
    found = list(answered(model, [Sample(one, ((10, 12),)) for one in ids]))
    assert model.shapes == [(5, 29), (2, 29), (2, 29), (1, 29)]
    assert [one.nats for one in found] == pytest.approx([2 * np.log(V)] * 5)


def test_what_never_fits_is_an_error_and_not_an_endless_loop():
    machine = Tight(lambda *_: False)
    with pytest.raises(EvalError) as caught:
        list(answered(machine.hold(llama()), samples(llama(), 400)))
    assert str(caught.value) == (
        "a window of 399 tokens does not fit into memory, not even 99 tokens at a time: take shorter lengths or a "
        "smaller model"
    )


def test_an_error_that_is_not_of_memory_is_raised():
    def broken(*_):
        raise IndexError("no such token")

    with pytest.raises(IndexError, match="no such token"):
        list(answered(Tight(broken).hold(llama()), samples(llama(), 400)))


def test_a_model_that_follows_the_length_is_not_asked_piece_by_piece():
    asked = samples(dynamic(), 300)
    with pytest.raises(EvalError, match="does not fit into memory whole, and piece by piece the model loses something"):
        list(answered(Tight(lambda rows, new, _: rows * new <= 130).hold(dynamic()), asked))


# Haystacks


@pytest.mark.parametrize("make", [lambda: own("rope"), lambda: own(["rope", {"kind": "window", "window": 40}])])
def test_a_haystack_is_read_in_pieces_and_asked_of_fewer_copies(make):
    stacks = haystacks([400, 300], DEPTHS, voice=BYTES)
    wanted = list(grid(make(), stacks))
    machine = Tight(lambda rows, new, kept: new <= 120 and (rows == 1 or rows * (kept + new) <= 900))
    same(list(grid(machine.hold(make()), stacks)), wanted)
    shared = 400 - 11
    # Whole, in halves, in quarters; then five copies at once, two, and two and one that are left; the last is read so.
    assert [call[:2] for call in machine.refused] == [(1, shared), (1, shared // 2), (5, 10)]
    first = [call[:2] for call in machine.calls[2:]]
    assert first[:5] == [(1, 97)] * 4 + [(1, 1)] and first[5:9] == [(5, 10), (2, 10), (2, 10), (1, 10)]
    assert [call[:2] for call in machine.calls[11:]] == [*[(1, 97)] * 2, (1, 95), (2, 10), (2, 10), (1, 10)]


def test_a_haystack_with_no_room_for_one_copy_is_an_error():
    machine = Tight(lambda rows, new, kept: not kept)
    with pytest.raises(EvalError) as caught:
        list(grid(machine.hold(reading_bytes()), haystacks([128], DEPTHS, voice=BYTES)))
    assert str(caught.value) == (
        "a window of 128 tokens does not fit into memory: take shorter lengths or a smaller model"
    )
    assert machine.refused == [(5, 10, 117), (2, 10, 117), (1, 10, 117)]


def test_each_question_in_a_forward_of_its_own_takes_the_same_steps():
    [stack] = haystacks([400], DEPTHS, voice=BYTES)
    wanted = answers_of(Answering(reading_bytes(), Budget()), stack, False)
    machine = Tight(lambda rows, new, _: rows * new <= 800)
    same(answers_of(Answering(machine.hold(reading_bytes()), Budget()), stack, False), wanted)
    assert [call[:2] for call in machine.calls] == [(5, 399), (2, 399), (2, 399), (1, 399)]


# Tasks of a session


def test_what_did_not_fit_once_is_not_tried_again(tmp_path):
    tasks = Asked("niah", 9), Asked("grid", 2, 5)

    def points(folder, model):
        made = Session(Questions(tasks, [128, 200], BYTES), Store(folder), "a model")
        made.ask(model, prefix_consistent=True, batch_tokens=1000)
        return list(made.points())

    machine = Tight(lambda rows, new, kept: rows * (new + kept) <= 400)
    found, wanted = points(tmp_path / "tight", machine.hold(own("rope"))), points(tmp_path / "calm", own("rope"))
    for one, other in zip(found, wanted, strict=True):
        assert (one.probe, one.metric, one.length, one.count) == (other.probe, other.metric, other.length, other.count)
        assert one.value == pytest.approx(other.value, abs=1e-4)
    assert machine.refused == [(7, 127, 0)]
