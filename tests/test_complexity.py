"""`lab complexity`: counts are those of torch, lines have the slopes they were drawn with, paths are the gradient's."""

import json
import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lab import LabError
from lab.complexity import layers, measure
from lab.complexity.counts import crossing, flops, pairs, words
from lab.complexity.fit import crossover, exponent
from lab.complexity.layers import Mixing, Sizes, names
from lab.complexity.measure import complexity, held, too_large
from lab.complexity.path import between
from lab.complexity.report import first, markdown
from lab.complexity.run import run

SMALL = Sizes(width=16, heads=2, window=5, kernel=3)
ALL = ["attention sdpa", "attention eager", "window", "lstm", "gru", "convolution"]


def refusal(call, *args) -> str:
    with pytest.raises(LabError) as caught:
        call(*args)
    assert caught.value.code == 2
    return str(caught.value)


# counted


@pytest.mark.parametrize("name", ["attention eager", "lstm", "gru", "convolution"])
def test_flops_are_those_that_torch_counts(name):
    """In fp64 on a CPU nothing is one opaque call, and eager makes every score."""
    x = torch.randn(1, 40, 16, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        Mixing(name, SMALL).double()(x)
    assert counter.get_total_flops() == flops(name, 40, SMALL)


def test_pairs_are_those_that_are_seen():
    seen = torch.ones(40, 40).tril()
    assert pairs("attention sdpa", 40, SMALL) == pairs("attention flash2", 40, SMALL) == seen.sum()
    assert pairs("window", 40, SMALL) == seen.triu(-4).sum() and pairs("window", 3, SMALL) == 6
    assert pairs("attention eager", 40, SMALL) == 1600


def test_attention_crosses_where_its_scores_outweigh_what_others_have_more_of_weights():
    """8d² + 2d(n + 1) a token against 18d², 14d² and (4k + 2)d²: n + 1 = 5d, 3d, (2k - 3)d."""
    wanted = {"lstm": 5 * 16 - 1, "gru": 3 * 16 - 1, "convolution": 3 * 16 - 1}
    for other, n in wanted.items():
        assert crossing("attention sdpa", other, SMALL) == pytest.approx(n, rel=1e-6)
    assert crossing("attention eager", "lstm", SMALL) == pytest.approx(10 * 16 / 4, rel=1e-6)
    assert crossing("lstm", "gru", SMALL) is None  # at every length
    assert crossing("window", "lstm", SMALL) is None  # at none


# fitted


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_power_law_has_its_exponent(power):
    found = exponent({n: 3.0 * n**power for n in (64, 128, 256, 512, 1024)})
    assert found.value == pytest.approx(power) and found.high - found.low < 1e-6


def test_what_is_fixed_at_short_lengths_does_not_bend_the_line():
    found = exponent({n: 1e5 + n**2 if n < 512 else n**2 for n in (16, 32, 64, 512, 1024, 2048, 4096)})
    assert found.value == pytest.approx(2)


def test_intervals_hold_the_exponent_as_often_as_they_say():
    draw, held_ = np.random.default_rng(0), 0
    for _ in range(400):
        found = exponent({n: n**1.5 * math.exp(draw.normal(0, 0.1)) for n in (64, 128, 256, 512)})
        held_ += found.low <= 1.5 <= found.high
    assert 0.92 <= held_ / 400 <= 0.98  # 95 %, three times its error of 1.1 either way


def test_too_few_points_have_no_interval_or_no_line():
    assert exponent({64: 1.0}) is None and exponent({}) is None
    found = exponent({64: 1.0, 128: 4.0})
    assert found.value == pytest.approx(2) and found.low is found.high is None


def test_lines_cross_between_the_lengths_around():
    lengths = (64, 128, 256, 512)
    slow, fast = {n: n**2 / 200 for n in lengths}, {n: float(n) for n in lengths}
    assert crossover(slow, fast) == pytest.approx(200)
    assert crossover({n: n / 2 for n in lengths}, fast) == "at none up to 512"
    assert crossover({n: n * 2 for n in lengths}, fast) == "at every length from 64"
    assert crossover({}, fast) == "was not measured"
    assert crossover(slow | {64: 99.0}, fast) == pytest.approx(200)  # the last time counts


# measured


@pytest.mark.parametrize(
    ("name", "tokens", "wanted"),
    [
        ("attention eager", 40, {"path_layers": 1}),
        ("window", 40, {"path_layers": math.ceil(39 / 4)}),  # of 5, itself and 4 before it
        ("window", 41, {"path_layers": 10}),
        ("window", 42, {"path_layers": 11}),
        ("convolution", 27, {"path_layers": 3}),  # log_3 n
        ("convolution", 28, {"path_layers": 4}),
        ("lstm", 40, {"path_layers": 1, "path_steps": 40}),
        ("gru", 40, {"path_layers": 1, "path_steps": 40}),
    ],
)
def test_the_last_token_depends_on_the_first_after_as_many_layers_as_the_paper_says(name, tokens, wanted):
    assert between(name, tokens, SMALL) == {"path_tokens": tokens, **wanted}


@pytest.mark.parametrize("name", ALL)
def test_no_layer_sees_what_comes_after(name):
    layer, x = Mixing(name, SMALL), torch.randn(1, 20, 16, requires_grad=True)
    layer(x)[0, 7].sum().backward()
    assert not x.grad[0, 8:].any() and x.grad[0, 7].any()


def test_flash_attention_is_a_layer_of_its_own_where_it_runs(monkeypatch):
    assert names(SMALL) == ALL
    monkeypatch.setattr(layers, "obstacle", lambda name, *_: None if name == "flash2" else "does not run here")
    assert names(SMALL) == [*ALL[:2], "attention flash2", *ALL[2:]]
    assert words("attention flash2") == words("attention sdpa") == ("n²·d", "1", "1")


@pytest.fixture
def no_processes(monkeypatch):
    sizes = {"forward": 1000, "both": 3000}
    monkeypatch.setattr(measure, "PATH_TOKENS", 32)
    monkeypatch.setattr(
        measure, "held", lambda name, lengths, _: {k: {n: b * n for n in lengths} for k, b in sizes.items()}
    )


def test_rows_say_what_was_measured_and_become_table_and_figure(no_processes, tmp_path):
    rows = run("8,16,32", SMALL, 1, tmp_path)
    assert [(row["length"], row["layer"]) for row in rows] == [(n, name) for n in (8, 16, 32) for name in ALL]
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows
    for row in rows:
        assert row["forward_ms"] > 0 and row["both_ms"] > 0 and row["error"] < 1e-5 and row["note"] == ""
        assert row["flops"] == flops(row["layer"], row["length"], SMALL)
        assert row["both_mib"] == 3000 * row["length"] / 2**20
    header, body = first(rows)
    assert len(header) == len(body[0]) == 9 and [line[0] for line in body] == ALL
    assert body[3][1] == "O(n·d²)" and body[3][2] == "1.00" and body[3][5] == "1.00 [1.00, 1.00]"
    assert body[3][6:] == ["O(n)", "O(n)", "1 layer, 32 steps"] and body[2][8] == "8 layers"
    table = (tmp_path / "table.md").read_text()
    assert "attention sdpa takes more FLOPs than lstm from n = 79; more time" in table
    assert "from n = d = 16." in table
    assert (tmp_path / "complexity.png").stat().st_size > 20_000


def test_what_does_not_fit_into_memory_is_a_dash_and_the_reason(no_processes, monkeypatch):
    monkeypatch.setattr(measure, "free_bytes", lambda device: 2**20)
    rows = list(complexity([64, 256], SMALL, 1))
    left = {(row["layer"], row["length"]): row["note"] for row in rows if row["note"]}
    assert left == {("attention eager", 256): "takes about 0.0 GiB, and 0.0 are free"}
    assert all("both_ms" not in row and "both_mib" not in row for row in rows if row["note"])
    said = markdown(rows)
    assert "| attention eager, forward, ms | " in said and " | – |\n" in said
    assert "– attention eager at 256: takes about 0.0 GiB, and 0.0 are free." in said


def test_want_of_memory_in_the_call_is_told_too(no_processes, monkeypatch):
    said = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"

    def forward(self, x):
        raise RuntimeError(said)

    monkeypatch.setattr(Mixing, "forward", forward)
    monkeypatch.setattr(measure, "between", lambda *_: {"path_layers": 1, "path_tokens": 2})
    rows = list(complexity([8], SMALL, 1))
    assert {row["note"] for row in rows} == {said}
    assert "–" in markdown(rows)


def test_eager_alone_is_held_back_for_its_scores(monkeypatch):
    monkeypatch.setattr(measure, "free_bytes", lambda device: 16 * 2**30)
    sizes = Sizes()
    assert too_large("attention eager", 16384, sizes) == "takes about 24.6 GiB, and 16.0 are free"
    assert all(too_large(name, 16384, sizes) is None for name in ALL if name != "attention eager")


@pytest.mark.slow
def test_memory_grows_with_the_length_as_the_scores_do():
    """In processes of their own; eager holds 2 heads × n² scores of 4 bytes several times over."""
    found = held("attention eager", [64, 1024], SMALL)
    assert list(found) == ["forward", "both"] and found["both"][1024] > found["both"][64]
    assert found["both"][1024] > 2 * 2 * 4 * 1024**2


def test_a_call_that_cannot_be_carried_out_is_told_why(tmp_path):
    assert refusal(run, "64", Sizes(width=10, heads=4), 1, tmp_path) == (
        "complexity: width 10 is not a multiple of heads 4: each head takes width / heads channels"
    )
    assert refusal(run, "64,many", SMALL, 1, tmp_path).startswith("complexity: --lengths: 'many' is no length")
