"""Pseudo-perplexity: its targets and windows by hand, models whose answer is known, and a plain loop over BERT."""

# L tokens of a window · V vocabulary

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from known_models import Known, V, documents, drawn, measured
from transformers import BertConfig, BertForMaskedLM, DistilBertConfig, DistilBertForMaskedLM

import eval.hidden
from eval import EvalError
from eval.cost import Size, cost
from eval.hidden import told
from eval.plan import Document, Plan
from eval.points import points
from eval.protocols import PROTOCOLS, Window
from eval.pseudo import pseudo
from eval.scorer import Budget

MASK = V - 1


class CopiesNext(Known):
    """Is sure that a hidden token is the one after it; where that is hidden too, it is clueless."""

    def logits(self, ids):
        after = F.pad(ids[:, 1:], (0, 1), value=MASK)
        return F.one_hot(after, V) * (after != MASK)[..., None] * 1e4


class CountsHoles(Known):
    """Lets every hidden token cost so many nats as tokens are hidden in its window."""

    def logits(self, ids):
        holes = (ids == MASK).sum(-1)[:, None].double()
        right = (-holes).exp().expand(ids.shape)[..., None]
        return torch.where(F.one_hot(torch.zeros_like(ids), V) == 1, right, (1 - right) / (V - 1)).log()


class Far(Known):
    """Knows a hidden token by the one `reach` before it or after it, whichever the window holds, else nothing."""

    def __init__(self, reach: int):
        super().__init__()
        self.reach = reach

    def logits(self, ids):
        before = F.pad(ids, (self.reach, 0), value=MASK)[:, : ids.shape[1]]
        after = F.pad(ids, (0, self.reach), value=MASK)[:, -ids.shape[1] :]
        told = torch.where(before != MASK, before, after)
        return F.one_hot(told, V) * (told != MASK)[..., None] * 1e4


def plan(lengths: list[int], given: list[Document] | None = None, together=(1,), **how) -> Plan:
    given = texts(max(lengths)) if given is None else given
    return Plan(given, lengths, [pseudo(one) for one in together], mask=MASK, **how)


def texts(length: int, count: int = 3) -> list[Document]:
    """Without the mask."""
    return [Document(f"text {n}", drawn(length, seed=n) % MASK) for n in range(count)]


def constant(length: int, token: int = 0) -> list[Document]:
    return [Document("constant", torch.full((length,), token))]


def bert(**sizes):
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = BertConfig(vocab_size=V, **small | {"max_position_embeddings": 64, "initializer_range": 0.3} | sizes)
    return BertForMaskedLM(config).eval()


def distilbert():
    torch.manual_seed(0)
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 64}
    return DistilBertForMaskedLM(DistilBertConfig(vocab_size=V, **sizes, initializer_range=0.3)).eval()


def by_hand(model, ids: torch.Tensor, first: int, stop: int) -> float:
    """Salazar et al.'s sum as they write it: one token hidden, one forward of transformers, one logarithm."""
    total = 0.0
    for place in range(first, stop):
        shown = ids.clone()
        shown[place] = MASK
        with torch.no_grad():
            logits = model(input_ids=shown[None]).logits[0, place]
        total -= float(logits.double().log_softmax(-1)[ids[place]])
    return total


# windows


def test_windows_counted_by_hand():
    assert pseudo().windows(8, 8, 8, 99) == [Window(0, 8, hidden=range(n, 6, 4)) for n in (2, 3, 4, 5)]
    # The same four tokens, 2 … 5, two to a window of four, each in its middle.
    wanted = [Window(1, 4, hidden=range(n, 3, 4)) for n in (1, 2)] + [
        Window(3, 4, hidden=range(n, 3, 4)) for n in (1, 2)
    ]
    assert pseudo().windows(8, 4, 8, 99) == wanted
    # Two at once, two apart, in both.
    assert [list(w.hidden) for w in pseudo(2).windows(8, 8, 8, 99)] == [[2, 4], [3, 5]]
    assert [list(w.hidden) for w in pseudo(2).windows(8, 4, 8, 99)] == [[1], [2], [1], [2]]


@pytest.mark.parametrize("together", [1, 3, 8, 1000])
@pytest.mark.parametrize("stride", [1, 7, 32, 1000])
def test_the_same_tokens_are_told_once_at_every_length_from_both_sides(together, stride):
    lengths = [2, 6, 10, 16, 30, 62, 64]
    which = plan(lengths, together=(together,), stride=stride)
    document, count = which.documents[0], min(stride, 32)
    first = (64 - count) // 2
    for record in which.records():
        targets, _ = which.targets(record, document)
        assert sorted(targets) == list(range(first, first + count))
        for window in which.windows(record, document):
            assert 0 <= window.start and window.start + window.length <= 64
            places = list(window.hidden)
            assert len(places) <= together
            assert places[0] >= record[1] // 4 and record[1] - 1 - places[-1] >= record[1] // 4
            assert all(b - a == math.ceil(count / together) for a, b in zip(places, places[1:], strict=False))


def test_no_window_is_read_off_another_even_where_sharing_is_allowed():
    which = plan([8, 16], shared=True)
    runs = which.runs(which.documents[0])
    assert sorted({run.length for run in runs}) == [8, 16]
    assert len(runs) == 2 * 8 and all(len(run.pieces) == 1 and len(run.hidden) == 1 for run in runs)


def test_what_it_costs_is_what_is_run():
    which = plan([8, 16], together=(1, 4))
    runs = [run for one in which.documents for run in which.runs(one)]
    size = Size(weights=1000, layers=3, width=8, hidden=10, vocabulary=50, bytes=4, both_ways=True)
    made = cost(size, runs, Budget())
    # Of 3 documents with 8 targets, alone: 8 passes at each length. By fours, two apart: 2 passes at 16, and at 8, of
    # whose windows each holds 4 targets, 2 passes of 2.
    assert (made.forwards, made.scored) == (3 * (8 + 8 + 2 + 4), 3 * 4 * 8)
    assert made.tokens == 3 * (8 * 8 + 8 * 16 + 2 * 16 + 4 * 8)
    assert size.flops(8, 1) == 2 * 1000 * 8 + 4 * 3 * 8 * 64 + 2 * 10 * 50


# models whose answer is known


@pytest.mark.parametrize("together", [1, 4])
def test_a_clueless_model_loses_log_v(tmp_path, together):
    found = measured(tmp_path, Known(), plan([8, 32], together=(together,)))
    sums, counts = found.sums(pseudo(together).name)
    np.testing.assert_allclose(sums / counts, math.log(V), rtol=1e-6)
    assert (counts == 16).all()


def test_a_copier_of_its_right_neighbour_is_sure_where_that_is_what_stands_there(tmp_path):
    found = measured(tmp_path, CopiesNext(), plan([8, 32], constant(32), together=(1, 16)))
    np.testing.assert_allclose(found.sums("pseudo-perplexity")[0], 0.0, atol=1e-6)
    # All sixteen hidden at once: it sees the neighbour of the last alone, and at 8, of the last of each four.
    sums, _ = found.sums("pseudo-perplexity, 16 at once")
    np.testing.assert_allclose(sums[0], [12 * math.log(V), 15 * math.log(V)], rtol=1e-6)


def test_tokens_that_are_hidden_together_do_not_see_one_another(tmp_path):
    found = measured(tmp_path, CountsHoles(), plan([8, 32], constant(32), together=(1, 4)))
    # Sixteen targets, four apart: in a window of 32 four are hidden at once; one of 8 holds four targets, each alone.
    np.testing.assert_allclose(found.sums("pseudo-perplexity")[0], [[16, 16]], rtol=1e-6)
    np.testing.assert_allclose(found.sums("pseudo-perplexity, 4 at once")[0], [[16, 64]], rtol=1e-6)


def test_context_that_a_window_does_not_hold_does_not_help(tmp_path):
    found = measured(tmp_path, Far(10), plan([8, 64], constant(64)))
    np.testing.assert_allclose(found.sums("pseudo-perplexity")[0], [[32 * math.log(V), 0]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("made", [bert, distilbert])
def test_it_is_what_a_plain_loop_over_transformers_makes(tmp_path, made):
    model, which = made(), plan([8, 32])
    sums, _ = measured(tmp_path, model, which).sums("pseudo-perplexity")
    for n, one in enumerate(which.documents):
        assert sums[n, 1] == pytest.approx(by_hand(model, one.ids, 8, 24), rel=1e-5)
        blocks = [by_hand(model, one.ids[start : start + 8], 2, 6) for start in (6, 10, 14, 18)]
        assert sums[n, 0] == pytest.approx(sum(blocks), rel=1e-5)
    assert np.ptp(sums[:, 1]) > 0.1  # it makes a difference what is read


def test_batches_change_no_loss(tmp_path):
    model, which = bert(), plan([8, 16, 32], together=(1, 3))
    one = measured(tmp_path / "one", model, which, tokens=1)
    all_at_once = measured(tmp_path / "all", model, which, tokens=10**6)
    for record in which.records():
        np.testing.assert_allclose(one.losses(record, 1), all_at_once.losses(record, 1), rtol=0, atol=2e-5)


def test_logits_by_chunk_are_the_same():
    model, ids = bert(), torch.stack([one.ids for one in texts(16)])
    rows, places = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([3, 9, 4, 0, 15])
    torch.testing.assert_close(told(model, ids, rows, places, MASK, logits=2 * V), told(model, ids, rows, places, MASK))
    assert (ids != MASK).all()  # what is hidden is hidden from the model alone


def test_what_does_not_fit_is_run_by_less(tmp_path, monkeypatch):
    model, which, sizes = bert(), plan([8, 16]), []

    def hungry(model, ids, *how):
        sizes.append(len(ids))
        if len(ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return told(model, ids, *how)

    monkeypatch.setattr(eval.hidden, "told", hungry)
    found = measured(tmp_path, model, which)
    assert max(sizes) > 2 and sizes[-1] <= 2
    monkeypatch.undo()
    wanted = measured(tmp_path / "other", model, which)
    np.testing.assert_allclose(found.sums("pseudo-perplexity")[0], wanted.sums("pseudo-perplexity")[0], rtol=1e-5)


# store and rows


def test_what_is_kept_is_not_run_again_and_another_mask_is(tmp_path):
    model, which = CopiesNext(), plan([8, 16])
    measured(tmp_path, model, which)
    ran = model.tokens
    measured(tmp_path, model, which)
    assert model.tokens == ran
    measured(tmp_path, model, plan([8, 16, 12], texts(16)))
    assert model.tokens == ran + 3 * 8 * 12  # of the new length alone
    keys = {Plan(which.documents, [8], [pseudo(k)], mask=mask).key("m", which.documents[0], (pseudo(k).name, 8))
            for k in (1, 2) for mask in (MASK, 3)}  # fmt: skip
    assert len(keys) == 4


def test_rows_have_intervals_and_a_length_that_cannot_be_taken_has_none(tmp_path):
    found = list(points(measured(tmp_path, bert(), plan([8, 16, 32], together=(1, 4), limit=16))))
    assert [(p.probe, p.metric, p.length, p.count) for p in found] == [
        (probe, "nats", length, 0 if length == 32 else 48)
        for probe in ("pseudo-perplexity", "pseudo-perplexity, 4 at once")
        for length in (8, 16, 32)
    ]
    assert all(p.low < p.value < p.high for p in found if p.length < 32)
    assert {p.note for p in found if p.length == 32} == {"takes at most 16 tokens"}


# what is refused


def refusal(call) -> str:
    with pytest.raises(EvalError) as caught:
        call()
    return str(caught.value)


def test_refusals():
    given = documents(16)
    assert refusal(lambda: Plan(given, [8], [pseudo()])) == (
        "pseudo-perplexity is of masked language models: give the plan `mask`, the token that hides"
    )
    assert refusal(lambda: Plan(given, [8], [PROTOCOLS["equal"]], mask=MASK)) == (
        "equal asks for the next token, which a masked language model sees: use eval.pseudo"
    )
    assert refusal(lambda: pseudo(0)) == "pseudo-perplexity with 0 tokens hidden at once: 1 or more"
    assert refusal(lambda: plan([8, 32], given)) == (
        "pseudo-perplexity at 32 tokens needs documents of 32 tokens: 1 of 1 are shorter (document 0 has 16, the "
        "longest 16). Take shorter lengths, or leave the short documents out"
    )


def test_a_loss_that_is_no_number_is_named(tmp_path):
    class Broken(Known):
        def logits(self, ids):
            return torch.where((ids == MASK)[..., None] & (ids[:, :1] == 7)[..., None], torch.nan, 0.0).expand(
                -1, -1, V
            )

    ids = torch.zeros(8, dtype=torch.int64)
    ids[0], ids[2] = 7, 5
    assert refusal(lambda: measured(tmp_path, Broken(), plan([8], [Document("a text", ids)]))) == (
        "a text: the loss of token 2 (id 5), hidden at place 2 of a window of 8 tokens, is nan: the model's logits are "
        "not finite there"
    )


def test_a_model_without_logits_is_named(tmp_path):
    class Headless(Known):
        def forward(self, ids):
            return object()

    assert refusal(lambda: measured(tmp_path, Headless(), plan([8]))) == (
        "Headless makes no logits: load a masked language model (AutoModelForMaskedLM)"
    )
