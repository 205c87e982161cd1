"""Packed documents: each of them as if it were alone, in the batch, in the model and in a training run."""

# B batch · T tokens · V vocabulary

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import equal, kill, logged, start, tiny, wait_for_lines
from torch import Tensor

import lab.train
from lab import LabError
from lab.config import read
from lab.data import Side, corpus
from lab.data.batches import batch, packed
from lab.model import LabConfig, LabModel
from lab.settings import Data, Run
from lab.train import train
from positional import SchemeError

V = 50
LENGTHS = 7, 1, 13, 11
"""Of the documents of a packed row."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One corpus, one cache; each test names a run of its own."""
    return tmp_path_factory.mktemp("packing")


@pytest.fixture(scope="module")
def alone(folder) -> Run:
    """A run whose documents are each alone, that nothing has interrupted."""
    return trained(folder, "alone", "data.packing=documents", "train.steps=40")


def trained(folder, name: str, *overrides: str) -> Run:
    run = tiny(folder, f"name={name}", *overrides)
    train(run)
    return run


def side_of(*lengths: int) -> Side:
    """Documents of these lengths; every id is 5, as if all were end tokens."""
    starts = np.cumsum([0, *(n + 1 for n in lengths)])
    return Side(np.full(starts[-1], 5, np.uint8), starts, [f"d{i}" for i in range(len(lengths))])


def model_of(spec, **changes) -> LabModel:
    """With every weight moved, as training would: a learned bias of zero would hide that it was lost."""
    sizes = {"vocab_size": V, "width": 64, "layers": 2, "heads": 4, "train_length": 32}
    torch.manual_seed(0)
    model = LabModel(LabConfig(**sizes, positional=spec, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def row() -> tuple[Tensor, dict[str, Tensor]]:
    """(1, T) ids of documents of `LENGTHS`, and what keeps these apart."""
    ids = torch.randint(V, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(7))
    apart = {
        "segments": torch.cat([torch.full((n,), d) for d, n in enumerate(LENGTHS)])[None],
        "position_ids": torch.cat([torch.arange(n) for n in LENGTHS])[None],
    }
    return ids, apart


def logits(model: LabModel, ids: Tensor, **inputs) -> Tensor:
    with torch.no_grad():
        return model(ids, **inputs).logits


# What a batch says of its documents


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(2, 20),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_documents_are_told_apart_as_by_walking_through_them(lengths, length, size, seed, step):
    side = side_of(*lengths)
    if len(side.ids) <= length:
        return
    ids, offsets = batch(side, length=length, size=size, seed=seed, step=step)
    found = packed(side, ids, offsets)
    owner = [d for d, n in enumerate(lengths) for _ in range(n + 1)]  # the document of every place
    for at, offset in enumerate(offsets.tolist()):
        position = -1
        for n, place in enumerate(range(offset, offset + length)):
            begins = n == 0 or owner[place] != owner[place - 1]
            position = 0 if begins else position + 1
            ends = owner[place + 1] != owner[place]
            assert found["segments"][at, n] == owner[place]
            assert found["position_ids"][at, n] == position
            assert found["shift_labels"][at, n] == (-100 if ends else ids[at, n + 1])
    assert (found["shift_labels"] >= 0).any()  # every batch has something to learn from
    assert {x.shape for x in found.values()} == {(size, length)}
    assert {x.dtype for x in found.values()} == {np.dtype(np.int64)}


def test_a_row_by_hand():
    side = side_of(4, 1, 3)  # places 0-4, 5-6, 7-10, end tokens included
    found = packed(side, np.arange(20, 29)[None], np.array([2]))
    assert found["segments"].tolist() == [[0, 0, 0, 1, 1, 2, 2, 2]]
    assert found["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert found["shift_labels"].tolist() == [[21, 22, -100, 24, -100, 26, 27, 28]]


def test_the_ranks_slices_of_a_batch_are_told_apart_as_the_whole():
    side = side_of(*range(3, 60))
    ids, offsets = batch(side, length=32, size=8, seed=3, step=11)
    whole = packed(side, ids, offsets)
    for rank in (0, 1):
        mine = slice(rank, None, 2)
        for name, x in packed(side, ids[mine], offsets[mine]).items():
            assert (x == whole[name][mine]).all()


def test_an_end_token_inside_a_text_ends_nothing():
    side = side_of(9)
    found = packed(side, *batch(side, length=8, size=1, seed=0, step=0))
    assert (found["segments"] == 0).all() and (found["shift_labels"] == 5).all()


# In the model


def test_a_change_in_one_document_changes_no_bit_of_the_others(any_spec):
    model, (ids, apart) = model_of(any_spec), row()
    before = logits(model, ids, **apart)
    for document in range(len(LENGTHS)):
        inside = apart["segments"] == document
        after = logits(model, torch.where(inside, (ids + 1) % V, ids), **apart)
        assert torch.equal(after[~inside], before[~inside])
        assert (after[inside] != before[inside]).any(-1).all()


def test_no_gradient_crosses_from_one_document_to_another(any_spec):
    model, (ids, apart) = model_of(any_spec), row()
    x = model.model.embed(ids).detach().requires_grad_()
    model.model.embed.forward = lambda _: x
    inside = apart["segments"] == 2
    model(ids, **apart).logits[inside].sum().backward()
    assert (x.grad[~inside] == 0).all() and (x.grad[inside] != 0).any(-1).all()


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_a_packed_row_is_each_document_run_alone(any_spec, backend):
    model, (ids, apart) = model_of(any_spec, attention=backend).double(), row()
    whole = logits(model, ids, **apart)
    for document in range(len(LENGTHS)):
        inside = apart["segments"] == document
        single = logits(model, ids[inside][None])[0]
        torch.testing.assert_close(whole[inside], single, rtol=0, atol=1e-10)


def test_rows_of_a_batch_are_packed_each_in_its_own_way(any_spec):
    model, (ids, apart) = model_of(any_spec).double(), row()
    ids = torch.cat([ids, (ids + 1) % V])
    segments = torch.cat([apart["segments"], torch.zeros_like(apart["segments"])])
    segments[1, 20:] = 1
    places = torch.arange(ids.shape[1])
    position_ids = torch.cat([apart["position_ids"], torch.where(places < 20, places, places - 20)[None]])
    both = logits(model, ids, segments=segments, position_ids=position_ids)
    for one in (0, 1):
        single = logits(model, ids[one, None], segments=segments[one, None], position_ids=position_ids[one, None])
        torch.testing.assert_close(both[one], single[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(both[1, :20], logits(model, ids[1:, :20])[0], rtol=0, atol=1e-10)


def test_one_document_alone_in_a_row_is_no_packing(any_spec):
    model, (ids, _) = model_of(any_spec).double(), row()
    one = {"segments": torch.full_like(ids, 3), "position_ids": torch.arange(ids.shape[1])[None]}
    torch.testing.assert_close(logits(model, ids, **one), logits(model, ids), rtol=0, atol=1e-10)


@pytest.mark.parametrize("position_ids", [True, False])
def test_padding_beside_packed_documents_is_seen_by_none(any_spec, position_ids):
    model, (ids, apart) = model_of(any_spec).double(), row()
    if not position_ids:
        del apart["position_ids"]
    real = torch.ones_like(ids)
    real[:, -5:] = 0
    padded = logits(model, ids, attention_mask=real, **apart)[:, :-5]
    cut = logits(model, ids[:, :-5], **{name: x[:, :-5] for name, x in apart.items()})
    torch.testing.assert_close(padded, cut, rtol=0, atol=1e-10)
    other = torch.where(real == 0, (ids + 1) % V, ids)
    assert torch.equal(logits(model, other, attention_mask=real, **apart)[:, :-5], padded)


def test_without_position_ids_segments_hide_and_positions_go_on():
    model, (ids, apart) = model_of("nope"), row()
    assert torch.equal(logits(model, ids, segments=apart["segments"]), logits(model, ids, **apart))
    model = model_of("learned")
    went_on = logits(model, ids, segments=apart["segments"])
    places = torch.arange(ids.shape[1])[None]
    assert torch.equal(went_on, logits(model, ids, segments=apart["segments"], position_ids=places))
    assert not torch.equal(went_on, logits(model, ids, **apart))


def test_a_document_longer_than_the_encoding_takes_is_refused_though_others_are_short():
    model = model_of("learned")
    ids, places = torch.zeros(1, 40, dtype=torch.int64), torch.arange(40)
    fits = {"segments": (places >= 32).long()[None], "position_ids": (places % 32)[None]}
    assert logits(model, ids, **fits).shape == (1, 40, V)  # more tokens than positions
    with pytest.raises(SchemeError, match="learned takes at most 32 tokens, got 33"):
        logits(model, ids, segments=(places >= 33).long()[None], position_ids=(places % 33)[None])


def test_the_loss_at_a_border_counts_for_nothing():
    """Whatever the first token of the next document is, neither the loss nor its gradient knows of it."""
    model, side = model_of("rope"), side_of(4, 1, 3)
    ids = np.arange(20, 29)[None]
    call = {name: torch.from_numpy(x) for name, x in packed(side, ids, np.array([2])).items()}
    loss = model(torch.from_numpy(ids[:, :-1]), **call).loss
    log_p = logits(model, torch.from_numpy(ids[:, :-1]), segments=call["segments"], position_ids=call["position_ids"])
    scored = {0: 21, 1: 22, 3: 24, 5: 26, 6: 27, 7: 28}
    wanted = -sum(log_p.log_softmax(-1)[0, place, target] for place, target in scored.items()) / len(scored)
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)


# A run


def test_the_default_is_concat_and_another_word_is_told_which_there_are(folder):
    assert Data().packing == "concat"
    with pytest.raises(LabError) as caught:
        tiny(folder, "data.packing=document")
    assert "data.packing: must be 'concat' or 'documents', got 'document'" in str(caught.value)


def test_concat_gives_the_model_stretches_and_nothing_else(folder, monkeypatch):
    seen = calls(folder, "concat-calls", "data.packing=concat", monkeypatch)
    text = corpus(tiny(folder).data)
    for step, call in enumerate(seen):
        ids, _ = batch(text.train, length=16, size=4, seed=0, step=step)
        assert call.keys() == {"input_ids", "shift_labels", "num_items_in_batch"} and call["num_items_in_batch"] == 64
        assert (call["input_ids"].numpy() == ids[:, :-1]).all() and (call["shift_labels"].numpy() == ids[:, 1:]).all()


def test_documents_come_in_the_order_of_concat_and_are_told_apart(folder, monkeypatch):
    seen = calls(folder, "documents-calls", "data.packing=documents", monkeypatch)
    text, borders = corpus(tiny(folder).data), 0
    for step, call in enumerate(seen):
        ids, offsets = batch(text.train, length=16, size=4, seed=0, step=step)
        assert (call["input_ids"].numpy() == ids[:, :-1]).all()
        for name, x in packed(text.train, ids, offsets).items():
            assert (call[name].numpy() == x).all()
        ended = call["input_ids"] == 0  # bytes: the end token is in no text
        assert torch.equal(call["shift_labels"] == -100, ended)
        assert call["num_items_in_batch"] == 64 - int(ended.sum())
        borders += int(ended.sum())
    assert borders


def calls(folder, name: str, packing: str, monkeypatch) -> list[dict]:
    """What each step of a short run calls the model with."""
    seen, forward = [], LabModel.forward

    def watched(self, *args, **call):
        assert not args
        seen.append(call)
        return forward(self, **call)

    monkeypatch.setattr(LabModel, "forward", watched)
    trained(folder, name, packing, "train.steps=12")
    return seen


def test_documents_alone_train_other_weights_from_the_same_first_ones(folder, alone):
    concat = trained(folder, "concat", "train.steps=40")
    assert not equal(alone, concat)
    losses = [[line["loss"] for line in logged(run)] for run in (alone, concat)]
    assert losses[0][-1] < losses[0][0] - 0.5
    assert losses[0] != losses[1]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=0.05)


def test_parts_with_different_numbers_of_targets_are_the_batch_run_at_once(folder, alone):
    parts = trained(folder, "parts", "data.packing=documents", "train.steps=40", "train.accumulate=4")
    for part, whole in zip(logged(parts), logged(alone), strict=True):
        assert part == pytest.approx(whole, rel=1e-4)


@pytest.mark.slow
def test_a_run_killed_at_any_step_goes_on_to_the_same_weights(folder, alone):
    settings = ["name=killed", "data.packing=documents", "train.steps=40"]
    run = tiny(folder, *settings)
    process = start("train", folder / "tiny.yaml", *settings)
    wait_for_lines(process, run.path / "train.jsonl", 10)
    kill(process)
    assert not (run.path / "model").exists(), "it was done before it was killed: make it longer"
    train(run)
    assert equal(run, alone)
    assert logged(run) == logged(alone)


def test_packing_decides_the_weights_of_a_run(folder, alone):
    with pytest.raises(LabError) as caught:
        train(tiny(folder, "name=alone", "data.packing=concat", "train.steps=40"))
    assert "data.packing: 'documents' there, 'concat' asked for" in str(caught.value)


def test_a_run_from_before_there_was_packing_is_one_of_concat(folder):
    run = trained(folder, "before", "train.steps=4")
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("  packing: concat\n", ""))
    assert "packing:" not in path.read_text() and read(path).data.packing == "concat"
    lab.train.claim(run)
    with pytest.raises(LabError, match="data.packing"):
        lab.train.claim(tiny(folder, "name=before", "data.packing=documents", "train.steps=4"))


def test_token_ids_in_the_cache_serve_both(folder):
    assert corpus(tiny(folder).data).meta == corpus(tiny(folder, "data.packing=documents").data).meta
    assert len([path for path in (folder / "cache").iterdir() if not path.name.startswith(".")]) == 1
