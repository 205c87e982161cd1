"""What needles cost a model with given factors, as transformers' own LongRoPE has it; and a search on a tiny Llama."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny_llm
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaForCausalLM

from eval.grid import haystacks
from eval.store import Store
from eval.voice import Voice, in_words
from lab import LabError
from lab.adopt import adopted
from lab.extend.longrope_fitness import Effort, Needles, searched, space_of, started
from positional import Shape

L0, TO, SMALL = 64, 512, Effort(budget=4, haystacks=2, needles=2)
LANES = 8  # of the tiny Llama
FACTORS = [1.0, 1.5, 2.5, 4.0, 8.0, 9.0, 11.0, 12.0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tiny_llm.llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=L0)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def voice() -> Voice:
    words = tiny_llm.tokenizer()

    def encode(text: str) -> list[int]:
        return words(text, add_special_tokens=False)["input_ids"]

    return in_words(encode, np.array(encode(tiny_llm.text(400))), (words.bos_token_id,))


def needles(model, voice, folder, effort=SMALL, identity="tiny", to=TO) -> Needles:
    return Needles(model, identity, L0, to, voice, Store(folder), effort)


def ask(model, voice, folder, **given):
    said = []
    settings = {"identity": "tiny", "train_length": L0, "to": TO, "effort": SMALL} | given
    return searched(model, voice, folder=folder, say=said.append, **settings), "\n".join(said)


# The fitness


def test_the_fitness_is_what_needles_cost_with_the_longrope_of_transformers(llama, voice, tmp_path):
    fitness = needles(llama, voice, tmp_path)
    config = copy.deepcopy(llama.config)
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": config.rope_parameters["rope_theta"],
        "original_max_position_embeddings": L0,
        "factor": TO / L0,
        "short_factor": FACTORS,
        "long_factor": FACTORS,
    }
    config.max_position_embeddings = TO
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(llama.state_dict())
    nats = []
    for sample in (one for stack in fitness.stacks for one in stack.samples):
        [(first, past)], ids = sample.answers, torch.from_numpy(sample.ids)
        with torch.no_grad():
            logits = theirs(ids[None], use_cache=False).logits[0]
        nats += F.cross_entropy(logits[first - 1 : past - 1], ids[first:past], reduction="none").tolist()
    assert len(nats) >= 2 * 2 * 5  # digits
    assert fitness(FACTORS) == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert fitness([1.0] * LANES) != pytest.approx(fitness(FACTORS), rel=1e-3)


def test_haystacks_depend_on_the_seed_and_are_none_that_models_are_measured_by(llama, voice, tmp_path):
    def ids(seed: int) -> list[bytes]:
        stacks = needles(llama, voice, tmp_path, replace(SMALL, seed=seed)).stacks
        return [sample.ids.tobytes() for stack in stacks for sample in stack.samples]

    assert ids(0) == ids(0)
    assert not set(ids(0)) & set(ids(1))
    measured = [stack for n in range(20) for stack in haystacks([TO], [0, 1], voice=voice, seed=n)]
    assert not set(ids(0)) & {sample.ids.tobytes() for stack in measured for sample in stack.samples}


def test_needles_lie_at_all_depths_of_haystacks_as_long_as_the_target(llama, voice, tmp_path):
    stacks = needles(llama, voice, tmp_path, Effort(4, haystacks=3, needles=5)).stacks
    assert [[sample.about["depth"] for sample in stack.samples] for stack in stacks] == [[0, 0.25, 0.5, 0.75, 1]] * 3
    assert all(max(len(sample.ids) for sample in stack.samples) == TO for stack in stacks)


def test_what_the_store_knows_is_not_run_again(llama, voice, tmp_path):
    runs = []
    hook = llama.register_forward_pre_hook(lambda *_: runs.append(1))
    try:
        first = needles(llama, voice, tmp_path)(FACTORS)
        once = len(runs)
        assert needles(llama, voice, tmp_path)(FACTORS) == first
        assert len(runs) == once > 0
        needles(llama, voice, tmp_path)(FACTORS[:-1] + [13.0])
        assert len(runs) == 2 * once
        needles(llama, voice, tmp_path, identity="another")(FACTORS)
        assert len(runs) == 3 * once
    finally:
        hook.remove()


def test_the_model_is_left_as_it_was_loaded(llama, voice, tmp_path):
    fitness = needles(llama, voice, tmp_path)
    fitness(FACTORS)
    assert adopted(llama) is None
    fitness.batch_tokens = "none"
    with pytest.raises(TypeError):
        fitness([2.0] * LANES)
    assert adopted(llama) is None


# Where it begins


@pytest.mark.parametrize(
    ("base", "train_length", "size", "critical"),
    [(1e4, 512, 64, 16), (5e5, 8192, 128, 35), (1e4, 64, 16, 3), (1e4, 4096, 96, 34)],
)
def test_the_critical_lane_is_the_first_that_does_not_turn_once_in_training(base, train_length, size, critical):
    space = space_of(Shape(size, 1, 1, 1, train_length), base, 8.0)
    periods = [2 * math.pi * base ** (2 * i / size) for i in range(size // 2)]
    assert space.critical == critical == next(i for i, period in enumerate(periods) if period > train_length)


def test_it_begins_with_the_published_methods_by_their_formulas():
    shape = Shape(64, 1, 1, 1, 512)
    start = started(space_of(shape, 1e4, 8.0), shape, 1e4, 4096)
    assert list(start) == ["linear", "ntk", "yarn", "critical"]
    assert start["linear"] == pytest.approx([8.0] * 32, rel=1e-12)
    assert start["ntk"] == pytest.approx([8 ** (2 * i / 62) for i in range(32)], rel=1e-12)
    share = [min(max((i - 3) / 13, 0), 1) for i in range(32)]  # lanes that turn 32 times and once in 512 tokens
    assert start["yarn"] == pytest.approx([1 / (1 - g + g / 8) for g in share], rel=1e-12)
    assert start["critical"] == pytest.approx([8 ** (i / 16) for i in range(16)] + [8.0] * 16, rel=1e-12)


# A search


def test_a_search_on_a_tiny_llama_gives_the_fittest_encoding_and_goes_on_from_its_file(llama, voice, tmp_path):
    (spec, found), said = ask(llama, voice, tmp_path)
    assert "longrope: 4 lists of factors, each by 2 needles in each of 2 haystacks of 512 tokens: " in said
    assert "tokens run, about " in said
    assert [one.origin for one in found.history] == ["linear", "ntk", "yarn", "critical"]
    assert found.best.cost == min(one.cost for one in found.history)
    assert spec == {
        "kind": "rope-longrope",
        "short": [1.0] * LANES,
        "long": found.best.factors,
        "factor": TO / L0,
        "switch": "target",
    }
    assert needles(llama, voice, tmp_path / "new")(spec["long"]) == pytest.approx(found.best.cost, rel=1e-6)
    (_, longer), said = ask(llama, voice, tmp_path, effort=replace(SMALL, budget=6))
    assert "6 lists of factors, each by 2 needles in each of 2 haystacks of 512 tokens, 4 of them measured" in said
    assert (tmp_path / f"longrope-{TO}.jsonl").exists()
    assert longer.history[:4] == found.history
    assert longer.best.cost <= found.best.cost
    again, said = ask(llama, voice, tmp_path, effort=replace(SMALL, budget=6))
    assert said.endswith(": all are measured")
    assert again[1] == longer


def test_dry_it_tells_its_plan_and_writes_nothing(llama, voice, tmp_path):
    found, said = ask(llama, voice, tmp_path, dry=True)
    assert found is None and "about" in said
    assert not list(tmp_path.iterdir())


def test_heads_that_turn_in_part_have_factors_for_the_lanes_that_turn(voice, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = GPTNeoXConfig(vocab_size=300, max_position_embeddings=L0, rope_parameters=rope, **sizes)
    (spec, _), _ = ask(GPTNeoXForCausalLM(config).eval(), voice, tmp_path, effort=replace(SMALL, haystacks=1))
    assert len(spec["long"]) == len(spec["short"]) == 4  # of heads of 16 channels, 8 of which turn


# What cannot be


def test_a_target_within_the_train_length_is_refused(llama, voice, tmp_path):
    with pytest.raises(LabError, match="longrope: the target is 0.5 times the train length, which is within"):
        ask(llama, voice, tmp_path, train_length=2 * TO)


def test_a_budget_below_the_starting_lists_is_refused(llama, voice, tmp_path):
    with pytest.raises(LabError, match="a budget of 3 evaluations is less than the 4"):
        ask(llama, voice, tmp_path, effort=replace(SMALL, budget=3))
    assert not list(tmp_path.iterdir())


def test_a_model_without_finite_logits_at_the_target_is_told_of(llama, voice, tmp_path):
    broken = copy.deepcopy(llama)
    broken.lm_head.register_forward_hook(lambda module, given, out: out * (math.nan if adopted(broken) else 1))
    assert not math.isfinite(needles(broken, voice, tmp_path / "fitness")(FACTORS))
    with pytest.raises(LabError, match="none of 4 lists of factors costs a finite number of nats"):
        ask(broken, voice, tmp_path)
