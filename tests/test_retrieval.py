"""Retrieval: samples read token by token; models that know the answer, that guess, or that forget after N tokens."""

import math
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from eval import EvalError
from eval.layout import bury, contains, lay_out
from eval.retrieval import nothing
from eval.sample import Sample, answered
from eval.tally import tally
from eval.tasks import TASKS, build, seed_of
from eval.voice import grass, in_bytes, in_words

BYTES = in_bytes()
LETTERS = set(b" abcdefghijklmnopqrstuvwxyz")


def words(text: str) -> list[int]:
    """A tokenizer as most are: a space goes with the word after it, signs stand alone, long words come in pieces."""
    found = re.findall(r" ?\w+|\W", text)
    return [number(word[at : at + 3]) for word in found for at in range(0, len(word), 3)]


def unword(ids) -> str:
    return "".join(piece.to_bytes(3, "big").decode().strip("\0") for piece in np.asarray(ids).tolist())


def number(piece: str) -> int:
    return int.from_bytes(piece.encode(), "big")


WORDS = in_words(words, np.arange(10**8, 10**8 + 5000), start=(7,))
VOICES = {"bytes": BYTES, "text": in_bytes(np.arange(4000) % 199 + 1), "words": WORDS}


def one(name: str, length: int = 160, voice=BYTES, **options) -> Sample:
    [sample] = build(name, options, length=length, count=1, voice=voice)
    return sample


def text(ids) -> str:
    return bytes(np.asarray(ids, np.uint8)).decode("latin-1")


def answers(sample: Sample) -> list[str]:
    return [text(sample.ids[a:z]) for a, z in sample.answers]


# Models with known answers


class Known(nn.Module):
    """Nothing is known of it but `.logits`."""

    def __init__(self):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits(ids))

    def logits(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, 256)


class Finder(Known):
    """Says what followed the last `width` tokens the first time that they stood, at most `reach` tokens back."""

    def __init__(self, width: int, reach: int = 10**9):
        super().__init__()
        self.width, self.reach = width, reach

    def logits(self, ids):
        logits = super().logits(ids)
        for row, line in enumerate(ids.tolist()):
            for at in range(self.width, len(line)):
                asked = line[at - self.width + 1 : at + 1]
                for place in range(max(self.width - 1, at - self.reach), at):
                    if line[place - self.width + 1 : place + 1] == asked:
                        logits[row, at, line[place + 1]] = 100
                        break
        return logits


def share(model: nn.Module, name: str, length: int = 120, count: int = 6, **options) -> float:
    [cell] = tally(answered(model, build(name, options, length=length, count=count, voice=BYTES)), by=("task",))
    return cell.accuracy


# Samples, token by token


def test_a_passkey_is_read_byte_by_byte():
    sample = one("passkey", 40, depth=0.5)
    said = text(sample.ids)
    # 40 = 12 + 6 + 5 + 17 of haystack, of which round(8.5) = 8 come first.
    assert said[8:14] == "<PASS:" and said[19] == ">" and said[29:35] == "<PASS:"
    assert set(sample.ids[:8].tolist()) | set(sample.ids[20:29].tolist()) <= LETTERS
    assert sample.answers == ((35, 40),) and said[14:19] == said[35:40] and said[14] != "0" and said[14:19].isdigit()
    assert sample.about == {"task": "passkey", "length": 40, "depth": 0.5}
    assert sample.each == ({"depth": 0.5, "distance": 35 - 8},)


def test_facts_are_buried_where_asked_by_hand():
    voice = in_bytes(np.full(100, ord(".")))
    random = np.random.default_rng(0)
    ids, starts, spans = lay_out(voice, random, 20, [(1.0, "last"), (0.0, "A"), (0.5, "B"), (0.5, "C")], [("?", "yes")])
    assert text(ids) == "A....BC.....last?yes"
    assert starts == [12, 0, 5, 6] and spans == [(17, 20)]


@given(
    room=st.integers(0, 300),
    depths=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=6),
    start=st.lists(st.integers(1, 9), max_size=2),
)
def test_a_fact_lies_within_a_token_of_its_depth_and_in_one_piece(room, depths, start):
    voice = in_bytes(np.full(400, ord(".")), start=tuple(start))
    facts = [(depth, f"<{n}>") for n, depth in enumerate(depths)]
    length = room + 3 * len(facts) + len(start)
    ids, starts = bury(voice, np.random.default_rng(0), length, facts, 0)
    assert len(ids) == length and ids[: len(start)].tolist() == start
    for n, (depth, at) in enumerate(zip(depths, starts, strict=True)):
        assert text(ids[at : at + 3]) == f"<{n}>"
        assert abs((ids[:at] == ord(".")).sum() - depth * room) <= 0.5


def test_a_needle_has_its_key_in_fact_and_question():
    sample = one("niah", depth=0.25)
    [value], said = answers(sample), text(sample.ids)
    key = said[-10:-6]
    assert said[-11:] == f"<{key}:{value}" and f"<{key}:{value}>" in said[:-11] and key.isupper()
    assert said.index(f"<{key}:") == round(0.25 * (160 - 12 - 11))


def test_of_many_keys_one_is_asked_for():
    sample = one("niah-multi-key", keys=5, depth=1)
    said = text(sample.ids)
    facts = [said[at + 1 : at + 11] for at in range(150) if said[at] == "<" and said[at + 11 : at + 12] == ">"]
    assert len({fact[:4] for fact in facts}) == len({fact[5:] for fact in facts}) == 5
    assert said[-10:] == facts[-1]  # depth 1: it is the last


def test_the_values_of_one_key_are_answers_in_the_order_of_appearance():
    sample = one("niah-multi-value", values=3)
    said, found = text(sample.ids), answers(sample)
    key = said[sample.answers[0][0] - 5 : sample.answers[0][0] - 1]
    assert said.endswith(f"<{key}:{found[0]},{found[1]},{found[2]}")
    places = [said.index(f"<{key}:{value}>") for value in found]
    assert places == sorted(places) and said.count(f"<{key}:") == 4
    assert [one["distance"] for one in sample.each] == [
        a - place for (a, _), place in zip(sample.answers, places, strict=True)
    ]


def test_many_keys_are_asked_for_one_after_the_other():
    samples = build("niah-multi-query", {"queries": 3}, length=160, count=20, voice=BYTES)
    orders = set()
    for sample in samples:
        said, found = text(sample.ids), answers(sample)
        begun = sample.answers[0][0] - 6
        asked = [said[a - 5 : a - 1] for a, _ in sample.answers]
        assert said[begun:] == "><".join(f"{k}:{v}" for k, v in zip(asked, found, strict=True)).join(["<", ""])
        places = [said[:begun].index(f"<{k}:{v}>") for k, v in zip(asked, found, strict=True)]
        orders.add(tuple(np.argsort(places)))
    assert len(orders) > 3  # else the order of asking would give the answers away


def test_controls_have_nothing_to_find():
    for name in ("passkey-no-needle", "niah-no-needle"):
        sample = one(name)
        [(first, past)] = sample.answers
        assert past == 160 and set(sample.ids[: first - 6].tolist()) <= LETTERS
    wrong = one("niah-wrong-key", keys=2)
    [foil], said = answers(wrong), text(wrong.ids)
    assert said[:149].count("<") == 2 and f":{foil}>" in said[:149] and said[149:155] not in said[:149]


def test_a_number_that_stands_in_the_haystack_is_no_control():
    random, voice = np.random.default_rng(0), in_bytes(np.full(200, ord("x")))
    first = voice.some_values(np.random.default_rng(0), 9)
    haystack = np.frombuffer(("xx" + "xx".join(first[:8]) + "xx").encode(), np.uint8)
    said = nothing(in_bytes(haystack), random, len(haystack) + 11, "<PASS:")
    assert text(said.ids)[-5:] == first[8]
    everything = np.frombuffer("xx".join(first).encode(), np.uint8)
    with pytest.raises(EvalError) as caught:
        nothing(in_bytes(everything), np.random.default_rng(0), len(everything) + 11, "<PASS:")
    assert str(caught.value) == f"the haystack holds each of {', '.join(first)}: it must not be made of numbers"


def test_words_are_encoded_once_and_lie_in_the_sample_as_they_were_encoded():
    for n in range(20):
        [sample] = build("niah", {}, length=200, count=1, voice=WORDS, first=n)
        [(first, past)] = sample.answers
        assert len(sample.ids) == past == 200 and sample.ids[0] == 7
        value = unword(sample.ids[first:past])
        assert value[0] == " " and value[1:].isdigit()
        said = sample.ids < 10**8  # all but the haystack
        fact, question = unword(sample.ids[1:first][said[1:first]]).split(".", 1)
        key = fact.removeprefix(" The number of the ").removesuffix(f" is{value}")
        assert question == f" What is the number of the {key}? The number of the {key} is"
        wanted = words(f" The number of the {key} is{value}.")
        place = int(np.flatnonzero(said)[1])  # the first is the start
        assert sample.ids[place : place + len(wanted)].tolist() == wanted


def test_the_passkey_in_words_is_the_papers():
    sample = one("passkey", 100, WORDS, depth=0)
    [(first, past)] = sample.answers
    key = unword(sample.ids[first:past])
    fact = words(f" The pass key is{key}. Remember it.{key} is the pass key.")
    assert sample.ids[1 : 1 + len(fact)].tolist() == fact
    asked = words(f" What is the pass key? The pass key is{key}")
    assert sample.ids[-len(asked) :].tolist() == asked


def test_grass_is_one_line_again_and_again():
    ids = grass(words, 100)
    line = words(" The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.")
    assert len(ids) == 100 and ids.tolist() == (line * 4)[:100]


def test_a_tokenizer_that_joins_question_and_answer_is_refused():
    def joining(said: str) -> list[int]:
        return [number(said[at : at + 2]) for at in range(0, len(said), 2)]

    voice = in_words(joining, np.arange(10**8, 10**8 + 500))
    assert voice.dialogue([("ab", "123")])[1] == [(1, 3)]
    with pytest.raises(EvalError) as caught:
        voice.dialogue([("abc", "12")])
    assert str(caught.value) == "the tokenizer joins the end of 'abc' to what follows: end it otherwise"


# What holds of every task


@pytest.mark.parametrize("voice", VOICES.values(), ids=VOICES)
@pytest.mark.parametrize("name", TASKS)
def test_samples_have_exactly_so_many_tokens_and_answers_inside(name, voice):
    for length in (255, 300):
        for sample in build(name, {}, length=length, count=5, voice=voice):
            assert sample.ids.shape == (length,) and sample.ids.dtype == np.int64
            assert sample.about["task"] == name and sample.about["length"] == length
            assert sample.answers[-1][1] <= length and sample.answers[0][0] >= 1
            ends = [place for span in sample.answers for place in span]
            assert ends == sorted(ends) and all(a < z for a, z in sample.answers)
            assert len(sample.each) in (0, len(sample.answers))


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_is_a_function_of_its_number_alone(name):
    whole = build(name, {}, length=150, count=6, voice=BYTES, seed=3)
    for n, sample in enumerate(whole):
        [alone] = build(name, {}, length=150, count=1, voice=BYTES, seed=3, first=n)
        assert (alone.ids == sample.ids).all() and alone.answers == sample.answers and alone.group == sample.group == n
    assert len({sample.ids.tobytes() for sample in whole}) == 6
    assert build(name, {}, length=150, count=1, voice=BYTES, seed=4)[0].ids.tobytes() != whole[0].ids.tobytes()


def test_an_option_at_its_default_changes_nothing():
    assert (one("niah-multi-key").ids == one("niah-multi-key", keys=4).ids).all()


def test_seeds_are_the_same_on_every_machine():
    assert seed_of("niah", {"keys": 1, "depth": None}, 128, 0, 0) == seed_of(
        "niah", {"depth": None, "keys": 1}, 128, 0, 0
    )
    assert seed_of("mix", 0, 0) == 270358653238045733776498925246866379062


@pytest.mark.parametrize(
    ("name", "options", "length", "said"),
    [
        (
            "passkey",
            {},
            22,
            "task passkey: 22 tokens are too few: facts of 12 + questions and answers of 11 = 23. "
            "Ask for at least as many",
        ),
        (
            "niah-multi-key",
            {"keys": 3},
            46,
            "task niah-multi-key: 46 tokens are too few: facts of 36 + questions and answers of 11 = 47. "
            "Ask for at least as many",
        ),
        (
            "passkey",
            {"depth": 1.5},
            60,
            "task passkey: depth 1.5 is no share of the haystack: from 0, the beginning, to 1, the end",
        ),
        ("niah-multi-value", {"values": 0}, 60, "task niah-multi-value: values 0 is no number of things: 1 or more"),
        ("niah", {"keys": 2}, 60, "task niah has no option `keys`; it has depth"),
        ("passkey-no-needle", {"depth": 0}, 60, "task passkey-no-needle has no option `depth`; it has none"),
        ("needle", {}, 60, f"no task `needle`; there are {', '.join(TASKS)}"),
    ],
)
def test_what_cannot_be_is_refused_at_once(name, options, length, said):
    with pytest.raises(EvalError) as caught:
        build(name, options, length=length, count=10**9, voice=BYTES)
    assert str(caught.value) == said


def test_the_least_length_is_the_one_that_the_refusal_names():
    assert len(one("passkey", 23).ids) == 23
    assert len(one("niah-multi-key", 47, keys=3).ids) == 47
    started = in_bytes(start=(1, 2))
    with pytest.raises(EvalError, match=r"answers of 11 \+ a start of 2 = 25\."):
        one("passkey", 24, started)
    assert one("passkey", 25, started).ids[:2].tolist() == [1, 2]


def test_a_haystack_that_is_too_short_is_refused():
    with pytest.raises(EvalError) as caught:
        one("passkey", 200, in_bytes(np.full(100, ord("."))))
    assert str(caught.value) == ("task passkey: the text for haystacks has 100 tokens, and 177 are needed: add text")


def test_more_keys_and_values_than_there_are_are_refused():
    random = np.random.default_rng(0)
    with pytest.raises(EvalError, match=r"^2179 different keys were asked for, and there are 2178$"):
        WORDS.some_keys(random, 2179)
    with pytest.raises(EvalError, match=r"^90001 different values were asked for, and 5 digits make 90000$"):
        BYTES.some_values(random, 90001)
    assert len(set(WORDS.some_keys(random, 2178))) == 2178
    assert set(BYTES.some_values(random, 90000)) == {str(n) for n in range(10000, 100000)}


# What models with known answers get


def test_a_model_that_looks_up_the_key_is_always_right():
    for name in ("passkey", "niah", "niah-multi-key", "niah-multi-query"):
        assert share(Finder(5), name) == 1, name


def test_a_model_that_looks_up_the_key_finds_nothing_in_the_controls():
    for name in ("passkey-no-needle", "niah-no-needle", "niah-wrong-key"):
        assert share(Finder(5), name) == 0, name


class Parrot(Known):
    """Says the first number in the text, whatever is asked."""

    def logits(self, ids):
        logits = super().logits(ids)
        for row, line in enumerate(ids.tolist()):
            at = text(line).index(":") + 1
            for n in range(5):  # the answer is the last five tokens, of which the last is not read
                logits[row, len(line) - 5 + n, line[at + n]] = 100
        return logits


def test_a_model_that_says_any_number_passes_the_passkey_and_is_caught_by_the_wrong_key():
    for name in ("passkey", "niah", "niah-wrong-key"):
        assert share(Parrot(), name) == 1, name
    assert share(Parrot(), "niah-multi-key", keys=6, depth=1) == 0


def test_a_clueless_model_is_right_by_chance_alone():
    [cell] = tally(answered(Known(), build("passkey", {}, length=60, count=50, voice=BYTES)), by=("task",))
    assert cell.accuracy == 0 and cell.count == 50
    assert cell.loss == pytest.approx(math.log(256), rel=1e-6)


def test_a_model_that_guesses_digits_is_right_once_in_ten_at_each():
    class Digits(Known):
        def logits(self, ids):
            logits = torch.full((*ids.shape, 256), -100.0)
            logits[..., ord("0") : ord("9") + 1] = torch.rand(*ids.shape, 10)
            return logits

    found = list(answered(Digits(), build("niah-no-needle", {}, length=60, count=400, voice=BYTES)))
    right = np.array([one.right for one in found])
    # 2000 digits, of which one in ten is right, give or take 4 standard errors of 0.7 %.
    assert abs(right[:, 1:].mean() - 0.1) < 4 * math.sqrt(0.09 / 1600)


def test_a_model_that_forgets_after_n_tokens_falls_exactly_there():
    """Needle and question begin with the same six tokens; from the answer back to the needle's first it is `distance`,
    so from the question's last back to the needle's sixth it is six less."""
    for depth in (0, 0.2, 0.45, 0.7, 1):
        sample = one("niah", 120, depth=depth)
        back = sample.each[0]["distance"] - 6
        [enough] = answered(Finder(5, back), [sample])
        [short] = answered(Finder(5, back - 1), [sample])
        assert enough.exact and not any(short.right), depth


def test_answers_are_counted_by_cell_with_their_groups():
    samples = [s for depth in (0.0, 1.0) for s in build("niah", {"depth": depth}, length=100, count=3, voice=BYTES)]
    near, far = tally(answered(Finder(5, 40), samples))[::-1]
    assert near.about == {"task": "niah", "length": 100, "depth": 1.0} and far.about["depth"] == 0.0
    assert near.exact == (True,) * 3 and far.exact == (False,) * 3
    assert near.groups == far.groups == (0, 1, 2) and near.tokens == (5, 5, 5)
    assert near.accuracy == 1 and far.accuracy == 0 and far.loss > 1


def test_what_an_answer_varies_is_its_own_where_a_sample_has_many():
    sample = one("niah-multi-query", queries=2)
    found = list(answered(Known(), [sample]))
    assert [one.about["distance"] for one in found] == [one["distance"] for one in sample.each]
    assert len(tally(found, by=("task", "distance"))) == 2


def test_contains_finds_a_part_in_one_piece_only():
    ids = np.array([1, 2, 3, 4])
    assert contains(ids, np.array([2, 3])) and contains(ids, ids) and contains(ids, np.array([4]))
    assert not contains(ids, np.array([2, 4])) and not contains(ids, np.arange(5))


# With tokenizers as pretrained models have them


def bpe(pre) -> Callable[[str], list[int]]:
    """A byte-pair tokenizer of its own making, trained on the sentences of the tasks."""
    from tokenizers import Tokenizer, models, trainers

    made = Tokenizer(models.BPE(unk_token="?"))
    made.pre_tokenizer = pre
    said = [
        WORDS.fact,
        WORDS.question,
        *WORDS.passkey,
        WORDS.resolve,
        WORDS.trace,
        *(" ".join(part) for part in WORDS.keys),
    ]
    said += [str(n * 7919 % 90000 + 10000) for n in range(500)] + ["?,.:{}\n 0123456789"]
    made.train_from_iterator(said, trainers.BpeTrainer(vocab_size=600, special_tokens=["?"]))
    return lambda text: made.encode(text, add_special_tokens=False).ids


def like_gpt() -> Callable[[str], list[int]]:
    from tokenizers import pre_tokenizers

    return bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))


def like_llama() -> Callable[[str], list[int]]:
    """A space is part of the word after it, and one is put before every text."""
    from tokenizers import pre_tokenizers

    return bpe(pre_tokenizers.Metaspace())


@pytest.mark.parametrize("make", [like_gpt, like_llama])
def test_tasks_are_said_with_tokenizers_of_merged_letters(make):
    encode = make()
    voice = in_words(encode, np.arange(1000, 2000), start=(600,))
    for name in ("passkey", "niah-multi-value", "niah-multi-query", "variable-tracking", "variable-tracking-all"):
        for sample in build(name, {}, length=600, count=20, voice=voice):
            assert len(sample.ids) == 600 and sample.ids[0] == 600
    for sample in build("passkey", {"depth": 1}, length=100, count=50, voice=voice):
        [(first, past)] = sample.answers
        answer = sample.ids[first:past]
        # The number is the same tokens in the fact and after the question: to copy them is to be right.
        assert contains(sample.ids[: first - 1], answer)
