"""The depth × length grid: read once a length, it answers as one forward a cell does."""

import time

import numpy as np
import pytest
import torch
from test_retrieval import Finder, text
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from eval import EvalError
from eval.fork import Fork
from eval.grid import grid, haystacks, read
from eval.heatmap import heatmap
from eval.tally import Cell, tally
from eval.voice import in_bytes, in_words
from lab.model import LabConfig, LabModel

DEPTHS = [0, 0.25, 0.5, 0.75, 1]
LENGTHS = [128, 200]
BYTES = in_bytes()


def own(spec) -> LabModel:
    torch.manual_seed(0)
    model = LabModel(LabConfig(width=32, layers=2, heads=2, positional=spec, train_length=64)).eval()
    with torch.no_grad():  # sharp attention, so that far tokens weigh and an error in a cache shows
        for layer in model.model.layers:
            layer.attention.qkv.weight *= 3
    return model


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    ).eval()


def mistral() -> MistralForCausalLM:
    """With a window, which its cache keeps no more than."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=24,
    )
    return MistralForCausalLM(config).eval()


MODELS = {
    "rope": lambda: own("rope"),
    "alibi": lambda: own("alibi"),
    "nope": lambda: own("nope"),
    "rope and window": lambda: own(["rope", {"kind": "window", "window": 40}]),
    "llama": llama,
    "mistral": mistral,
}


def test_a_haystack_holds_the_needles_of_all_depths_and_each_question_has_its_own():
    [stack] = haystacks([128], DEPTHS, voice=BYTES)
    body = text(stack.samples[0].ids[: stack.shared])
    assert stack.shared == 128 - 11 and body.count("<") == 5
    places = []
    for depth, sample in zip(DEPTHS, stack.samples, strict=True):
        assert text(sample.ids[: stack.shared]) == body and len(sample.ids) == 128
        asked = text(sample.ids[stack.shared :])
        [(a, z)] = sample.answers
        assert (a, z) == (123, 128) and f"{asked}>" in body
        places.append(body.index(asked))
        assert sample.about == {"task": "grid", "length": 128, "depth": depth, "distance": a - places[-1]}
        before = body[: places[-1]].count("<") * 12
        assert abs((places[-1] - before) - depth * (117 - 60)) <= 0.5
    assert places == sorted(places) and places[0] == 0 and places[-1] == 117 - 12


def test_haystacks_of_a_length_have_groups_of_their_own():
    stacks = haystacks(LENGTHS, DEPTHS, voice=BYTES, count=2)
    assert [len(stack.samples[0].ids) for stack in stacks] == [128, 128, 200, 200]
    assert [{sample.group for sample in stack.samples} for stack in stacks] == [{0}, {1}, {2}, {3}]
    again = haystacks([200], DEPTHS, voice=BYTES, count=2)
    assert (again[1].samples[3].ids == stacks[3].samples[3].ids).all()
    assert (haystacks([200], DEPTHS, voice=BYTES, seed=1)[0].samples[3].ids != stacks[2].samples[3].ids).any()


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_one_reading_answers_as_a_forward_for_each_cell_does(make):
    model, stacks = make(), haystacks(LENGTHS, DEPTHS, voice=BYTES, count=2)
    fast = list(grid(model, stacks))
    naive = list(grid(model, stacks, prefix_consistent=False))
    assert len(fast) == len(naive) == 4 * 5
    for one, other in zip(fast, naive, strict=True):
        assert one.sample is other.sample and one.answer == other.answer
        assert one.exact == other.exact and one.right == other.right
        assert one.nats == pytest.approx(other.nats, abs=1e-4)
    assert len({round(one.nats, 2) for one in fast}) > 5  # answers of different questions, and not of one


def trained() -> LabModel:
    """A model that knows two of five answers by heart: hits and misses must be the same, and here there are both."""
    model = own("rope")
    [stack] = haystacks([128], DEPTHS, voice=BYTES)
    ids = torch.from_numpy(np.stack([stack.samples[n].ids for n in (0, 2)]))
    adam = torch.optim.Adam(model.train().parameters(), 3e-3)
    for _ in range(100):
        adam.zero_grad()
        model(ids, labels=ids).loss.backward()
        adam.step()
    return model.eval()


def test_hits_and_misses_are_those_of_the_naive_grid():
    model, stacks = trained(), haystacks([128], DEPTHS, voice=BYTES)
    fast = [one.right for one in grid(model, stacks)]
    assert fast == [one.right for one in grid(model, stacks, prefix_consistent=False)]
    assert fast[0] == fast[2] == (True,) * 5 and not all(fast[1])


def test_how_many_questions_run_together_does_not_matter():
    model, stacks = own("rope"), haystacks([128], DEPTHS, voice=BYTES)
    kinds = [[one.nats for one in grid(model, stacks, batch_tokens=size)] for size in (1, 2 * 128, 10**6)]
    assert kinds[0] == pytest.approx(kinds[1], abs=1e-5) and kinds[0] == pytest.approx(kinds[2], abs=1e-5)


@pytest.mark.parametrize("make", [MODELS["rope"], MODELS["rope and window"], llama], ids=["rope", "window", "llama"])
def test_what_follows_a_forked_cache_leaves_nothing_in_it(make):
    model, ids = make(), torch.randint(256, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        name, cache = read(model, ids[:, :50])
        fork, before = Fork(cache, 2, 10), [layer.keys.clone() for layer in cache.layers]
        long = model(ids[:, 50:].expand(2, -1), **{name: fork.again()}).logits
        short = model(ids[:, 50:54].expand(2, -1), **{name: fork.again()}).logits
        again = model(ids[:, 50:].expand(2, -1), **{name: fork.again()}).logits
        whole = model(ids).logits
    assert torch.equal(long, again) and (long - whole[:, 50:]).abs().max() < 1e-4
    assert (short - whole[:, 50:54]).abs().max() < 1e-4
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before, strict=True))


def test_a_haystack_is_read_once():
    model, sizes = own("rope"), []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    list(grid(model, haystacks([128], DEPTHS, voice=BYTES), batch_tokens=2 * 128))
    assert sizes == [(1, 117), (2, 10), (2, 10), (1, 10)]


def test_questions_of_different_sizes_are_answered_the_same_way():
    """Numbers and keys of this tokenizer have one token or more; samples are at most a few tokens short."""

    def encode(said: str) -> list[int]:
        ids = [ord(letter) for letter in said]
        return [token for at, token in enumerate(ids) if not (token == ids[at - 1] and at and said[at].isdigit())]

    voice = in_words(encode, np.arange(33, 200).repeat(5))
    stacks = haystacks([700], DEPTHS, voice=voice)
    sizes = {len(sample.ids) for sample in stacks[0].samples}
    assert max(sizes) == 700 and len(sizes) > 1
    model = own("alibi")
    fast = [one.nats for one in grid(model, stacks)]
    assert fast == pytest.approx([one.nats for one in grid(model, stacks, prefix_consistent=False)], abs=1e-4)


def test_a_model_without_a_cache_is_told_to_go_the_other_way():
    with pytest.raises(EvalError) as caught:
        list(grid(NoCache(5), haystacks([128], DEPTHS, voice=BYTES)))
    assert str(caught.value) == (
        "NoCache returns no cache: ask each question in a forward of its own, prefix_consistent=False"
    )


class NoCache(Finder):
    def forward(self, input_ids, use_cache=None):
        return super().forward(input_ids)


def test_a_model_that_forgets_after_60_tokens_loses_the_needles_that_lie_farther():
    stacks = haystacks([128, 200], DEPTHS, voice=BYTES, count=3)
    cells = tally(grid(Finder(5, 60), stacks, prefix_consistent=False))
    assert all(cell.count == 3 and len(set(cell.groups)) == 3 for cell in cells)
    for cell in cells:
        room = cell.about["length"] - 11 - 5 * 12
        needles_after = 4 - DEPTHS.index(cell.about["depth"])
        back = 12 + needles_after * 12 + room - round(cell.about["depth"] * room)
        assert cell.accuracy == (back <= 60), cell.about


def test_a_grid_that_cannot_fit_is_refused():
    with pytest.raises(EvalError) as caught:
        haystacks([128, 70], DEPTHS, voice=BYTES)
    assert str(caught.value) == (
        "grid of 5 depths: 70 tokens are too few: facts of 60 + questions and answers of 11 = 71. "
        "Ask for at least as many"
    )
    with pytest.raises(EvalError, match=r"^depth 2 is no share of the haystack"):
        haystacks([128], [0, 2], voice=BYTES)


@pytest.mark.slow
def test_eleven_depths_and_six_lengths_take_an_eighth_of_the_naive_time():
    """Processor time, of one thread: other programs that run meanwhile do not count."""
    model = LabModel(LabConfig(positional="rope")).eval()
    stacks = haystacks([256, 512, 1024, 2048, 4096, 8192], [n / 10 for n in range(11)], voice=BYTES)
    list(grid(model, stacks[:2]))
    times = {}
    for prefix_consistent in (True, False):
        begun = time.process_time()
        times[prefix_consistent] = (
            list(grid(model, stacks, prefix_consistent=prefix_consistent)),
            time.process_time() - begun,
        )
    (fast, quick), (naive, slow) = times[True], times[False]
    assert [one.right for one in fast] == [one.right for one in naive]
    assert slow > 8 * quick


# The figure


def cell(length: int, depth: float, right: int, count: int) -> Cell:
    exact = tuple(n < right for n in range(count))
    return Cell({"length": length, "depth": depth}, exact, (1.0,) * count, (5,) * count, tuple(range(count)))


def test_a_heat_map_says_accuracy_and_count_of_every_cell(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    said, real = [], Axes.annotate
    monkeypatch.setattr(
        Axes, "annotate", lambda self, said_, at, **k: said.append((said_, at)) or real(self, said_, at, **k)
    )
    cells = [cell(128, 0.0, 3, 4), cell(256, 0.0, 0, 4), cell(128, 1.0, 4, 4)]
    heatmap(cells, tmp_path / "map.png", train_length=128)
    assert said == [("75\nn=4", (0, 0)), ("0\nn=4", (1, 0)), ("100\nn=4", (0, 1))]
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
