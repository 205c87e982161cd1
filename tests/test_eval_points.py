"""Points: every number by hand from losses that are known, a note where there is none; what context is used for."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_models import ByPlace, Copier, Known, V, documents, drawn, llama, measured, own, plan, to_the_end

from eval.context import GRAM, back, copyable, key_tokens
from eval.plan import Document
from eval.points import Point, points
from eval.protocols import PROTOCOLS
from eval.report import tables
from eval.stats import curve, paired


def of(found: list[Point], probe: str, metric: str = "nats") -> dict[int, Point]:
    return {point.length: point for point in found if (point.probe, point.metric) == (probe, metric)}


def test_a_clueless_model_has_log_v_everywhere_and_gains_nothing(tmp_path):
    found = list(points(measured(tmp_path, Known(), plan([4, 8, 32]))))
    assert {n: p.count for n, p in of(found, "perplexity").items()} == {4: 48, 8: 48, 32: 48}
    assert {n: p.count for n, p in of(found, "position").items()} == {1: 3, 2: 3, 4: 6, 8: 12, 16: 24, 32: 48}
    for probe in ("perplexity", "position"):
        assert all(p.value == pytest.approx(math.log(V)) and not p.note for p in of(found, probe).values())
        assert all(p.low == pytest.approx(p.value) == p.high for p in of(found, probe).values())
    assert {n: p.value for n, p in of(found, "gain").items()} == {8: 0.0}


def test_intervals_are_those_of_the_sums(tmp_path):
    which = plan([8, 16, 32], documents(*[33] * 7))
    losses = measured(tmp_path, llama(), which)
    found, made = list(points(losses)), curve(*losses.sums())
    for at, point in enumerate(of(found, "perplexity").values()):
        assert (point.value, point.low, point.high) == (made.value[at], made.low[at], made.high[at])
        assert point.low < point.value < point.high
    sums, counts = losses.sums()
    gain = paired(sums[:, :1], sums[:, 1:2], counts[:, 1:2])
    assert of(found, "gain")[16].value == pytest.approx(gain.value[0])
    assert of(found, "gain")[16].low == pytest.approx(gain.low[0])
    assert list(of(found, "gain")) == [16, 32]


def test_one_document_has_values_and_no_interval(tmp_path):
    found = list(points(measured(tmp_path, llama(), plan([8, 16], documents(17)))))
    assert found and all(point.value is not None and point.low is point.high is None for point in found if point.count)


def test_places_are_means_of_octaves(tmp_path):
    losses = torch.arange(1, 25).float() / 4
    given = [Document("a", torch.arange(25) % V)]
    found = of(list(points(measured(tmp_path, ByPlace(losses), plan([8, 24], given)))), "position")
    bounds = {1: (0, 1), 2: (1, 2), 4: (2, 4), 8: (4, 8), 16: (8, 16), 32: (16, 24)}
    assert {n: (p.value, p.count) for n, p in found.items()} == {
        end: (pytest.approx(float(losses[a:z].mean()), abs=1e-5), z - a) for end, (a, z) in bounds.items()
    }


def test_beyond_its_limit_a_model_has_no_value_but_a_note(tmp_path):
    found = list(points(measured(tmp_path, own("learned"), plan([8, 16, 32, 64], limit=16))))
    values = of(found, "perplexity")
    assert all(math.isfinite(values[length].value) and values[length].count == 96 for length in (8, 16))
    for probe in ("perplexity", "position"):
        for n in (32, 64):
            assert of(found, probe)[n] == Point(probe, "nats", n, None, None, None, 0, "takes at most 16 tokens")
    assert {n: p.count for n, p in of(found, "position").items() if p.count} == {1: 3, 2: 3, 4: 6, 8: 12, 16: 24}


def test_a_limit_below_every_length_leaves_only_notes(tmp_path):
    given = [Document(d.name, d.ids, np.ones(17)) for d in documents(17, 17)]
    found = list(points(measured(tmp_path, Known(), plan([8, 16], given, "equal position suffix", limit=4))))
    assert {p.probe for p in found} == {"perplexity", "suffix", "position"} and {8, 16} <= {p.length for p in found}
    assert all(p.value is None and p.count == 0 and p.note == "takes at most 4 tokens" for p in found)


def test_positions_below_a_limit_are_those_at_the_start_of_the_document(tmp_path):
    """Only there can they be set beside those of a model that reads the document whole."""
    model, which = own("alibi"), plan([8, 16, 32])
    short = of(list(points(measured(tmp_path / "a", model, replace(which, limit=16)))), "position")
    whole = of(list(points(measured(tmp_path / "b", model, which))), "position")
    for end in (1, 2, 4, 8, 16):
        assert short[end].value == pytest.approx(whole[end].value, abs=1e-6) and short[end].count == whole[end].count
    assert short[32].value is None and whole[32].value is not None


def test_bits_per_byte_are_of_the_bytes_of_scored_tokens(tmp_path):
    """Of 33 tokens the last 16 are scored; the others have other sizes, which must not count."""
    sizes = [np.array([9] * 17 + [1 + n % 4] * 16) for n in range(3)]
    given = [Document(d.name, d.ids, size) for d, size in zip(documents(33, 33, 33), sizes, strict=True)]
    found = of(list(points(measured(tmp_path, Known(), plan([8, 32], given)))), "perplexity", "bits per byte")
    total = 16 * (1 + 2 + 3)
    assert {n: p.count for n, p in found.items()} == {8: total, 32: total}
    assert all(p.value == pytest.approx(48 * math.log2(V) / total, rel=1e-6) for p in found.values())


def test_bits_per_byte_of_long_documents_are_of_bytes_to_their_end(tmp_path):
    """Of 33 and of 43 tokens all behind the first 17 are scored: 16 of one byte, and 16 of one and 10 of four."""
    sizes = [np.array([9] * 17 + [1] * 16), np.array([9] * 17 + [1] * 16 + [4] * 10)]
    given = [Document(d.name, d.ids, size) for d, size in zip(documents(33, 43), sizes, strict=True)]
    found = list(points(measured(tmp_path, Known(), to_the_end(plan([8, 32], given)))))
    bits = of(found, "perplexity", "bits per byte")
    assert {n: p.count for n, p in of(found, "perplexity").items()} == {8: 42, 32: 42}
    assert {n: p.count for n, p in bits.items()} == {8: 72, 32: 72}
    assert all(p.value == pytest.approx(42 * math.log2(V) / 72, rel=1e-6) for p in bits.values())
    assert {n: p.count for n, p in of(found, "position").items()} == {1: 2, 2: 2, 4: 4, 8: 8, 16: 16, 32: 32}


def test_where_bytes_are_not_known_there_are_no_bits_per_byte(tmp_path):
    known, unknown, _ = documents(17, 17, 17)
    given = [Document("known", known.ids, np.ones(17)), unknown]
    assert not of(list(points(measured(tmp_path, Known(), plan([8, 16], given)))), "perplexity", "bits per byte")


def test_every_protocol_is_reported_under_its_true_name_and_without_equal_there_is_no_perplexity(tmp_path):
    given = documents(40, 50)
    found = list(points(measured(tmp_path, llama(), plan([8, 16], given, " ".join(PROTOCOLS), stride=8))))
    assert {point.probe for point in found} == {*PROTOCOLS, "perplexity", "gain", "copyable"} - {"equal"}
    found = list(points(measured(tmp_path, llama(), plan([8, 16], given, "hf-stride position", stride=8))))
    assert {point.probe for point in found} == {"hf-stride", "position"}
    assert {p.count for p in of(found, "hf-stride").values()} == {39 + 49 - (40 // 8 - 1 + 50 // 8), 39 + 49}


def test_points_are_json_and_a_table(tmp_path):
    found = list(points(measured(tmp_path, own("learned"), plan([8, 16, 32], limit=16))))
    assert json.loads(json.dumps([asdict(point) for point in found])) == [asdict(point) for point in found]
    text = tables(found)
    lines = text.splitlines()
    assert lines[0].split() == ["tokens", "of", "context", "8", "16", "32"]
    (line,) = (line for line in lines if line.startswith("perplexity (nats)"))
    value = of(found, "perplexity")[8]
    assert line.split()[2:4] == [f"{value.value:.3f}", f"±{max(value.value - value.low, value.high - value.value):.3f}"]
    assert line.rstrip().endswith("–") and "– takes at most 16 tokens" in lines and "± is a 95 % interval" in text


# What context is used for


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4))
def test_how_far_back_the_tokens_before_a_token_stood_last(ids, gram):
    found = back(np.array(ids, np.int64), gram)
    for n in range(len(ids)):
        before = [d for d in range(1, n - gram + 1) if ids[n - gram : n] == ids[n - gram - d : n - d]]
        assert found[n] == min(before, default=0)


@pytest.mark.parametrize("longest, windows", [(256, 4), (128, 6)])
def test_copyable_tokens_are_in_sight_here_and_out_of_sight_at_half(longest, windows):
    """A text that repeats itself after 40 tokens: at 64 it can be copied from, not at 32, and long before 128.

    Its targets are 129 … 256, or 65 … 256 where 128 is the longest length."""
    ids = torch.cat([drawn(40, seed=5)] * 10)[:257]
    lengths = [n for n in (16, 32, 64, 128, 256) if n <= longest]
    which = to_the_end(plan(lengths, [Document("again", ids)], "equal"))
    for bos in (None, int(ids[0])):
        counts = {}
        found = copyable(measured_without(which, bos))
        for length, (*_, count) in found.items():
            counts[length] = int(count[0])
            wanted = 0
            for window in which.windows(("equal", length), which.documents[0]):
                for place in range(window.first, window.length):
                    target, seen = window.start + place + 1, place + 1 - (bos is not None)
                    grams = ids[target - GRAM : target]
                    before = range(1, target - GRAM + 1)
                    near = [d for d in before if torch.equal(grams, ids[target - GRAM - d : target - d])]
                    wanted += bool(near) and near[0] > length // 2 and near[0] + GRAM <= seen
            assert count[0] == wanted
        # In each window of 64: 48 to 64 tokens before; where the first of them is no text, 49.
        assert counts == {n: windows * (17 if bos is None else 16) if n == 64 else 0 for n in lengths[1:]}


def measured_without(which, bos):
    """Losses that are never looked at."""

    class Nothing:
        plan = replace(which, bos=bos)

        def losses(self, record, document):
            return np.zeros(self.plan.count(record, self.plan.documents[document]), np.float32)

        def targets(self, record, document):
            from eval.perplexity import Measured

            return Measured(self.plan, None, "").targets(record, document)

    return Nothing()


def test_a_copier_gains_all_there_is_on_tokens_that_come_into_sight(tmp_path):
    ids = torch.cat([drawn(40, seed=5)] * 4)[:129]

    class Reads(Copier):
        """Copies from 40 back where its window reaches so far."""

        def logits(self, ids):
            sure = super().logits(ids)
            sure[:, : self.back - 1] = 0
            return sure

    found = list(points(measured(tmp_path, Reads(40), plan([32, 64, 128], [Document("again", ids)], "equal"))))
    assert of(found, "copyable")[64].value == pytest.approx(0, abs=1e-6)
    assert of(found, "copyable", "gain")[64].value == pytest.approx(math.log(V), rel=1e-5)
    assert of(found, "copyable")[64].count > 20
    none = of(found, "copyable")[128]
    assert (none.value, none.count, none.note) == (None, 0, "no scored token could be copied from so far")


def test_key_tokens_are_those_that_context_helps_and_that_are_then_known():
    short, long = np.array([5.0, 5.0, 3.9, 1.0]), np.array([1.0, 2.5, 1.95, 0.1])
    assert key_tokens(short, long).tolist() == [True, False, False, False]
