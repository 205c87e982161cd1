"""Tasks of bare tokens, and variable tracking: read token by token, and models that know what is right."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eval import EvalError
from eval.mqar import soonest
from eval.sample import answered
from eval.tally import tally
from eval.tasks import build
from eval.voice import Voice, in_bytes

BYTES = in_bytes()


def spoken(alphabet, start=()) -> Voice:
    """Bytes, with an alphabet small enough to read; `.` is blank and `|` the mark."""
    return Voice(**{**vars(in_bytes(start=start)), "alphabet": np.array(alphabet), "blank": ord("."), "mark": ord("|")})


SMALL = spoken([*b"abcd", *b"1234"])


def one(name: str, length: int, voice=SMALL, first: int = 0, **options):
    [sample] = build(name, options, length=length, count=1, voice=voice, first=first)
    return sample


def text(ids) -> str:
    return bytes(np.asarray(ids, np.uint8)).decode("latin-1")


class Known(nn.Module):
    def __init__(self, say):
        super().__init__()
        self.anchor, self.say = nn.Parameter(torch.zeros(1)), say

    def forward(self, ids: Tensor) -> SimpleNamespace:
        logits = torch.zeros(*ids.shape, 256)
        for row, line in enumerate(ids.tolist()):
            for at in range(len(line)):
                if (token := self.say(line, at)) is not None:
                    logits[row, at, token] = 100
        return SimpleNamespace(logits=logits)


def after_its_first(line: list[int], at: int) -> int:
    """What followed this token when it stood first."""
    return line[line.index(line[at]) + 1] if line.index(line[at]) < at else None


# MQAR


def test_mqar_has_pairs_then_questions_among_blanks():
    for n in range(20):
        sample = one("mqar", 25, first=n, pairs=3)
        said = text(sample.ids)
        pairs = {said[at]: said[at + 1] for at in (0, 2, 4)}
        assert len(pairs) == 3 and set(pairs) <= set("abcd") and set(pairs.values()) <= set("1234")
        asked = said[6:].replace(".", "")
        assert len(asked) == 6 and {asked[at]: asked[at + 1] for at in (0, 2, 4)} == pairs
        assert [said[a:z] for a, z in sample.answers] == [asked[1], asked[3], asked[5]]
        for (a, _), each in zip(sample.answers, sample.each, strict=True):
            assert each["distance"] == a - 1 - said.index(said[a - 1])


def test_mqar_fits_as_tightly_as_it_says():
    assert "." not in text(one("mqar", 12, pairs=3).ids)
    with pytest.raises(EvalError) as caught:
        one("mqar", 11, pairs=3)
    assert str(caught.value) == (
        "task mqar: 11 tokens are too few: pairs of 6 + questions and answers of 6 = 12. Ask for at least as many"
    )
    started = one("mqar", 14, spoken([*b"abcd", *b"1234"], (1, 2)), pairs=3)
    assert started.ids[:2].tolist() == [1, 2] and "." not in text(started.ids)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pairs": 5}, "5 pairs need as many keys, and half the alphabet has 4"),
        ({"pairs": 0}, "pairs 0 is no number of things: 1 or more"),
        ({"power": 0}, "power 0 must be above 0 (questions soon; the paper has 0.01), up to 1 (anywhere)"),
    ],
)
def test_mqar_refuses(options, said):
    with pytest.raises(EvalError) as caught:
        one("mqar", 100, **{"pairs": 2} | options)
    assert str(caught.value) == f"task mqar: {said}"


def test_gaps_are_drawn_as_the_papers():
    """The first of them falls on gap g in proportion to g^(power-1); here against the exact shares."""
    weights = np.arange(1, 17.0) ** (0.01 - 1)
    random = np.random.default_rng(0)
    drawn = np.array([soonest(random, weights, 1)[0] for _ in range(20000)])
    shares, wanted = np.bincount(drawn, minlength=16) / 20000, weights / weights.sum()
    assert (abs(shares - wanted) < 4.5 * np.sqrt(wanted / 20000)).all()
    assert sorted(soonest(random, weights, 16)) == list(range(16))


def test_a_model_that_looks_up_keys_knows_mqar_and_one_that_forgets_falls_where_it_forgets():
    samples = build("mqar", {"pairs": 16, "power": 1.0}, length=200, count=10, voice=BYTES)
    [cell] = tally(answered(Known(after_its_first), samples), by=("task",))
    assert cell.accuracy == 1 and cell.count == 160

    def within(line, at):
        return after_its_first(line, at) if at - line.index(line[at]) <= 60 else None

    for found in answered(Known(within), samples):
        assert found.exact == (found.about["distance"] <= 60)


# Induction


def test_a_segment_comes_again_at_its_distance():
    sample = one("induction", 30, BYTES, size=4, distance=10)
    assert (sample.ids[26:] == sample.ids[16:20]).all()
    assert sample.answers == ((17, 20), (27, 30)) and sample.about["distance"] == 10
    assert [each["occurrence"] for each in sample.each] == ["first", "second"]
    farthest = one("induction", 30, BYTES, size=4)
    assert (farthest.ids[:4] == farthest.ids[26:]).all() and farthest.about["distance"] == 26


def test_the_second_time_costs_nothing_to_who_looks_back_and_log_v_to_who_does_not():
    def back(distance):
        return lambda line, at: line[at + 1 - distance] if at + 1 >= distance else None

    samples = build("induction", {"size": 9, "distance": 40}, length=100, count=5, voice=BYTES)
    first, second = tally(answered(Known(back(40)), samples), by=("occurrence",))
    assert first.about == {"occurrence": "first"} and first.loss > 50  # sure, and wrong
    assert second.accuracy == 1 and second.loss < 1e-6 and second.tokens == (8,) * 5
    first, second = tally(answered(Known(lambda line, at: None), samples), by=("occurrence",))
    assert first.loss == pytest.approx(math.log(256)) and second.loss == pytest.approx(math.log(256))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 4, "distance": 3}, "a segment of 4 tokens comes again at a distance of 4 or more, not of 3"),
        ({"distance": "far"}, "distance 'far' is no number of things: 1 or more"),
        ({"size": 1}, "size 1 is no number of things: 2 or more"),
        ({"size": 8}, "a segment of 8 tokens comes again at a distance of 8 or more, not of 7"),
        (
            {"size": 4, "distance": 12},
            "15 tokens are too few: distance 12 + segment 4 = 16. Ask for at least as many",
        ),
    ],
)
def test_induction_refuses(options, said):
    with pytest.raises(EvalError) as caught:
        one("induction", 15, BYTES, **options)
    assert str(caught.value) == f"task induction: {said}"


# Selective copy


def test_selective_copy_repeats_what_stood_among_blanks_in_order():
    for n in range(10):
        sample = one("selective-copy", 30, first=n, tokens=5)
        before, after = text(sample.ids).split("|")
        assert len(after) == 5 and before.replace(".", "") == after
        assert sample.answers == tuple((at, at + 1) for at in range(25, 30))
        places = [at for at, token in enumerate(before) if token != "."]
        assert [each["distance"] for each in sample.each] == [25 + n - at for n, at in enumerate(places)]


def test_selective_copy_fits_as_tightly_as_it_says():
    said = text(one("selective-copy", 11, tokens=5).ids)
    assert said[:5] == said[6:] and said[5] == "|"
    with pytest.raises(EvalError) as caught:
        one("selective-copy", 10, tokens=5)
    assert str(caught.value) == (
        "task selective-copy: 10 tokens are too few: 5 to copy + a mark + 5 answers = 11. Ask for at least as many"
    )


def test_a_model_that_copies_in_order_is_right():
    def copied(line, at):
        if SMALL.mark not in line[: at + 1]:
            return None
        kept = [token for token in line[: line.index(SMALL.mark)] if token != SMALL.blank]
        return kept[at - line.index(SMALL.mark)]

    samples = build("selective-copy", {"tokens": 7}, length=60, count=4, voice=SMALL)
    assert all(found.exact for found in answered(Known(copied), samples))


# Variable tracking


def chains(said: str) -> dict[str, str]:
    """{key: what it was said to be} of all facts."""
    return {said[at + 1 : at + 5]: said[at + 6 :].split(">")[0] for at in range(len(said)) if said[at] == "<"}


def test_a_chain_leads_from_its_last_key_to_a_number():
    for n in range(10):
        sample = one("variable-tracking", 160, BYTES, n, hops=3, chains=2)
        body, asked = text(sample.ids).split("?")
        facts = chains(body)
        assert len(facts) == 8 and sample.about["hops"] == 3
        key, hops = asked[:4], 0
        while facts[key].isupper():
            assert body.index(f"<{facts[key]}:") < body.index(f"<{key}:")
            key, hops = facts[key], hops + 1
        assert hops == 3 and asked == f"{asked[:4]}:{facts[key]}"
        assert sample.each[0]["distance"] == 155 - body.index(f"<{key}:")


def test_all_keys_of_a_number_are_answers_in_order():
    sample = one("variable-tracking-all", 160, BYTES, hops=2, chains=2)
    body, asked = text(sample.ids).split("?")
    facts, (value, listed) = chains(body), asked.split(":")
    first, second, third = listed.split(",")
    assert facts[first] == value and facts[second] == first and facts[third] == second
    assert [text(sample.ids[a:z]) for a, z in sample.answers] == [first, second, third]


def test_no_hop_is_a_needle():
    body, asked = text(one("variable-tracking", 60, BYTES, hops=0, chains=1).ids).split("?")
    assert chains(body) == {asked[:4]: asked[5:]}


@pytest.mark.parametrize("options", [{"hops": -1}, {"chains": 0}])
def test_variable_tracking_refuses(options):
    [(name, count)] = options.items()
    with pytest.raises(EvalError) as caught:
        one("variable-tracking", 160, BYTES, **options)
    least = 0 if name == "hops" else 1
    assert str(caught.value) == f"task variable-tracking: {name} {count} is no number of things: {least} or more"
