"""`lab bench eval` at sizes of seconds: what it compares is the same; how fast it is depends on the machine."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from eval.cost import Size
from lab import LabError
from lab.bench import evaluation
from lab.bench.evaluation import (
    bytewise,
    claim,
    compared,
    equal,
    estimate,
    eval_speed,
    memory,
    needles,
    prefix,
    read_parts,
    show,
    sliding,
    store,
    text,
)


def test_prefixes_cost_what_a_forward_for_each_says():
    ratio, apart = prefix(longest=256, count=8)
    assert apart["ok"] and 0 < apart["measured"] <= 1e-5
    assert ratio["measured"] > 0 and ratio["least"] == 15 and ratio["seconds"] > 0


def test_the_equal_token_curve_is_that_of_each_length_by_itself():
    ratio, predicted = equal(longest=256, count=3, times=2, stride=32)
    model, ids = bytewise(), text(2 * 256 + 1)
    for length, mean in zip([64, 128, 256], ratio["curve"], strict=True):
        # The far halves of windows half their length apart hold targets 129 … 512.
        ends = range(128 + length // 2, 513, length // 2)
        windows = torch.stack([ids[end - length : end + 1] for end in ends])
        with torch.no_grad():
            logits = model(input_ids=windows[:, :-1]).logits[:, length // 2 :]
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, length // 2 + 1 :].flatten())
        assert mean == pytest.approx(float(nats), abs=1e-5)
    assert ratio["lengths"] == [64, 128, 256] and "3 lengths to 256, 384 targets" in ratio["claim"]
    assert predicted["measured"] == pytest.approx(ratio["measured"] / predicted["predicted"])


@pytest.mark.parametrize("length", [32, 64, 256, 512])
def test_sliding_windows_score_the_targets_of_the_plan_once_each(length):
    ids = torch.arange(2 * 512 + 1)
    jobs = sliding(ids, range(257, 1025), length, 64)
    scored = torch.cat([job.ids[job.first + 1 :] for job in jobs]).tolist()
    assert scored == [*range(257, 1025)]
    assert {job.length for job in jobs} == ({length} if length < 512 else {*range(320, 513, 64)})
    assert all(job.length - job.first <= 64 for job in jobs)


def test_what_sliding_windows_take_is_that_of_one_batch_by_flops(monkeypatch):
    """By hand: 40 windows of 4096, of which 4 make a batch; each batch takes 3 s on the wall and 2 of the processor."""
    size, ids, ran = Size(weights=1, layers=0, width=0, hidden=0, vocabulary=1, bytes=4), torch.arange(50_001), []

    @contextmanager
    def three_seconds(clock):
        yield
        clock.wall, clock.processor = 3.0, 2.0

    monkeypatch.setattr(evaluation.Clock, "__call__", three_seconds)
    monkeypatch.setattr(evaluation, "run", lambda model, jobs: ran.append([int(job.ids[-1]) for job in jobs]))
    jobs = sliding(ids, range(4097, 4097 + 40 * 256), 4096, 256)
    assert len(jobs) == 40 and [estimate(None, size, jobs, turn) for turn in (0, 1)] == [(30.0, 20.0)] * 2
    assert ran == [[13568, 13824, 14080, 14336], [12544, 12800, 13056, 13312]]


@pytest.mark.slow
def test_scoring_in_a_process_of_its_own_holds_more_than_its_losses():
    [row] = memory(tokens=512, vocabulary=1000, layers=1, width=16)
    assert row["ok"] and row["measured"] * 2**30 > 4 * 512
    assert row["loss"] == pytest.approx(np.log(1000), abs=1.5)


def test_a_grid_has_the_hits_of_the_naive_one():
    rows = list(needles(lengths=(192, 256), depths=4, width=64))
    for ratio, cells in zip(rows[::2], rows[1::2], strict=True):
        assert ratio["measured"] > 0 and cells["measured"] == 0 and cells["ok"]
        assert 2 <= cells["hits"] < 8 and cells["nats"] < 1e-3


def test_what_is_read_from_the_store_is_what_was_kept():
    share, again = store(lengths=(32, 64), documents=3, kept=10**5)
    assert 0 < share["measured"] and share["claim"].startswith(f"keeping {3 * 2 * 32} losses")
    assert again["bytes"] == 4 * 2 * 8 * 8192 and again["apart"] < 1e-9 and again["ok"]


def test_a_part_that_there_is_not_is_refused():
    with pytest.raises(LabError) as caught:
        read_parts("grid, prefixes")
    assert str(caught.value) == "bench eval has no part `prefixes`; there are prefix, equal, memory, grid, store"
    assert caught.value.code == 2 and read_parts("grid, store") == ["grid", "store"] and len(read_parts("all")) == 5


def test_a_table_says_where_a_bound_is_missed(monkeypatch, capsys):
    monkeypatch.setitem(evaluation.PARTS, "grid", lambda: iter([claim("fast", 7.5, 8), claim("same", 0, most=0)]))
    rows = list(eval_speed(["grid"]))
    assert [row["ok"] for row in rows] == [False, True] and rows[0]["part"] == "grid"
    show(rows)
    said = capsys.readouterr().out
    assert "NO" in said and "≥ 8" in said and "≤ 0" in said and "yes" in said


def test_a_row_says_whether_its_bound_holds():
    assert claim("a", 3, least=3)["ok"] and not claim("a", 2.9, least=3)["ok"]
    assert claim("a", 1, most=1)["ok"] and not claim("a", 1.1, 0.7, 1)["ok"]


def test_a_ratio_is_of_whole_turns():
    quick, slow = evaluation.Clock(), evaluation.Clock()
    quick.wall, quick.processor, slow.wall, slow.processor = 4, 8, 30, 40
    row = compared("a", quick, slow, turns=2)
    assert (row["measured"], row["processor"], row["seconds"], row["instead_of"]) == (15, 10, 2, 30)
