"""Cost: FLOPs and sizes counted by hand, of models of this lab and of transformers."""

import pytest
import torch
from known_models import Known, V, documents, llama, own, plan
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from eval.cost import Size, cost, rate, seconds
from eval.report import described, duration
from eval.scorer import Budget

LAYER = 4 * 32 * 32 + 3 * 32 * 64 + 2 * 32
"""Of a Llama with width 32: four matrices of attention, three of the MLP, two norms."""


@pytest.mark.parametrize("tied", [False, True])
def test_the_size_of_a_llama_leaves_out_embedding_and_head_tied_or_not(tied):
    size = Size.of(llama(tie_word_embeddings=tied))
    assert size == Size(weights=2 * LAYER + 32, layers=2, width=32, hidden=32, vocabulary=V, bytes=4)


def test_the_width_of_attention_is_that_of_all_query_heads():
    sizes = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    size = Size.of(LlamaForCausalLM(config).bfloat16())
    layer = 32 * 64 + 2 * 32 * 32 + 64 * 32 + 3 * 32 * 64 + 2 * 32  # queries and output of 64, keys and values of 32
    assert size == Size(weights=3 * layer + 32, layers=3, width=64, hidden=32, vocabulary=V, bytes=2)


@pytest.mark.parametrize("positional", ["rope", "learned"])
def test_the_size_of_the_labs_own_model(positional):
    size, model = Size.of(own(positional)), own(positional)
    inner = model.config.hidden
    layer = 4 * 32 * 32 + 3 * 32 * inner + 2 * 32
    table = sum(p.numel() for p in model.scheme.parameters())  # looked up or not, it is small
    assert 2 * layer + 32 <= size.weights <= 2 * layer + 32 + table
    assert (size.layers, size.width, size.hidden, size.vocabulary) == (2, 32, 32, V)


def test_a_table_of_positions_is_looked_up_too():
    size = Size.of(GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=V, n_positions=999)))
    assert size.weights == 4 * 32 * 32 + 2 * 32 * 128 + (4 * 32 + 128 + 32) + 6 * 32  # matrices, biases, norms


def test_a_model_of_which_nothing_is_known_has_its_weights():
    assert Size.of(Known()) == Size(weights=1, layers=0, width=0, hidden=0, vocabulary=1, bytes=4)


def test_flops_counted_by_hand():
    size = Size(weights=1000, layers=3, width=8, hidden=10, vocabulary=50, bytes=4)
    # 5 tokens through 1000 weights; of each layer 5 × 5 scores, half of them, from 8 channels, and back; 2 heads' rows.
    assert size.flops(5, 2) == 2 * 1000 * 5 + 3 * (2 * 8 * 25 + 2 * 8 * 25) / 2 + 2 * 10 * 50 * 2


def test_flops_are_about_what_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    model, ids = llama(attn_implementation="eager"), torch.zeros(1, 64, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=ids)
    above = 2 * 2 * 32 * 64**2  # the scores above the diagonal, which torch counts too
    assert Size.of(model).flops(64, 64) == pytest.approx(counter.get_total_flops() - above, rel=0.01)


def test_a_plan_costs_what_its_forward_passes_cost():
    """Targets 5–8 from windows 0–7, 2–5 and 4–7, all places from the first of them too: counted in test_eval_plan."""
    size = Size(weights=1000, layers=3, width=8, hidden=10, vocabulary=50, bytes=4)
    which = plan([4, 8], documents(9, 9, 9), "equal position")
    runs = [run for one in which.documents for run in which.runs(one)]
    made = cost(size, runs, Budget())
    assert (made.forwards, made.tokens) == (3 * 3, 3 * 16)
    assert made.scored == 3 * (4 + 4 + 8)
    # The long window scores all its places at once, for both.
    assert made.flops == 3 * (size.flops(8, 8) + 2 * size.flops(4, 2))


def test_memory_is_that_of_a_batch_and_of_the_logits_held_at_once():
    size = Size(weights=1000, layers=3, width=8, hidden=10, vocabulary=50, bytes=2)
    which = plan([1024], documents(*[1025] * 9), "equal")
    runs = [run for one in which.documents for run in which.runs(one)]
    small, large, few = (cost(size, runs, b).bytes for b in (Budget(64), Budget(4096), Budget(4096, logits=100)))
    assert small == 1024 * 10 * 15 * 2 + 1024 * 50 * 8  # a window longer than the budget runs alone
    assert large == 4096 * 10 * 15 * 2 + 4096 * 50 * 8 and few == 4096 * 10 * 15 * 2 + 100 * 8


def test_seconds_are_flops_at_the_rate_of_this_machine(monkeypatch):
    size, model = Size.of(llama()), llama()
    which = plan([64, 512], documents(513), "equal")
    runs = which.runs(which.documents[0])
    monkeypatch.setattr("eval.cost.rate", lambda model, size, length, batch: {256: 100.0, 512: 1000.0}[length])
    short, long = (sum(size.flops(r.length, r.length - r.first) for r in runs if r.length == n) for n in (64, 512))
    assert seconds(model, size, runs, Budget()) == pytest.approx(short / 100 + long / 1000)
    assert seconds(model, size, [], Budget()) == 0


def test_a_rate_is_measured():
    assert 1e5 < rate(llama(), Size.of(llama()), 64, 4) < 1e14


def test_a_duration_in_words():
    assert [duration(s) for s in (0.2, 1.4, 89, 91, 5399, 9000)] == ["1 s", "1 s", "89 s", "2 min", "90 min", "2.5 h"]


def test_a_plan_in_words():
    size = Size(weights=1000, layers=3, width=8, hidden=10, vocabulary=50, bytes=4)
    which = plan([4, 8, 16], documents(17), limit=8)
    runs = which.runs(which.documents[0])
    said = described(which, cost(size, runs, Budget(16)), 100.0, "why it is so").splitlines()
    assert said[0] == "equal, position at 4, 8 tokens on 1 documents"
    assert said[1].endswith(" FLOPs, about 2 min, 0 MiB beside the weights (estimates)")
    assert said[2:] == ["why it is so", "not at 16: the model takes at most 8 tokens"]
    said = described(which, cost(size, [], Budget(16)), 0.0, "").splitlines()
    assert said[1:] == ["nothing is left to run", "not at 16: the model takes at most 8 tokens"]
