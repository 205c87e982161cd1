"""The cost of models of the lab whose layers mix tokens by something else than attention: counted by hand."""

import pytest
from known_models import V, documents, plan

from eval.cost import Size, cost
from eval.scorer import Budget
from lab.complexity.counts import flops
from lab.complexity.layers import Sizes
from lab.cost import size_of
from lab.model import LabConfig, LabModel

LSTM, GRU = {"kind": "lstm", "size": 8}, {"kind": "gru", "size": 8}
CONVOLUTION = {"kind": "convolution", "kernel": 3, "size": 8}
REST = 3 * 32 * 96 + 2 * 32
"""Of a layer of width 32 beside what mixes tokens: three matrices of the MLP, two norms."""
HEAD = 2 * 32 * V


def model_of(*mixers, positional="nope") -> LabModel:
    sizes = {"vocab_size": V, "width": 32, "heads": 2, "hidden": 96, "layers": len(mixers)}
    return LabModel(LabConfig(**sizes, mixer=list(mixers), positional=positional))


def test_each_layer_counts_as_what_it_does():
    size = size_of(model_of(LSTM, GRU, CONVOLUTION, "attention", {"kind": "window", "window": 4}))
    lstm = 4 * (8 * 32 + 8 * 8 + 2 * 8) + 8 * 32  # four gates of token, state and two biases; the way back
    gru = 3 * (8 * 32 + 8 * 8 + 2 * 8) + 8 * 32
    convolution = 2 * 8 * (3 * 32 + 1) + 8 * 32  # values and gates of three tokens and a bias; the way back
    weights = lstm + gru + convolution + 2 * 4 * 32 * 32 + 5 * REST + 32
    assert size == Size(weights, 2, 32, 32, V, 4, windows=(4,), mixed=4 * 32)
    # Of 10 tokens 10²/2 scores in one layer, and 10 · 4 - 4²/2 in the other, each 2 · 32 and as much for the values.
    assert size.flops(10, 1) == 2 * weights * 10 + 4 * 32 * (50 + 32) + HEAD
    assert size.flops(3, 1) == 2 * weights * 3 + 4 * 32 * 2 * 4.5 + HEAD  # fewer than the window sees


@pytest.mark.parametrize(("kind", "biases"), [("lstm", 8 * 32), ("gru", 6 * 32), ("convolution", 2 * 32)])
def test_without_attention_flops_are_those_that_lab_complexity_counts(kind, biases):
    """As many for each token, however long the text."""
    size = size_of(model_of({"kind": kind, "size": 32}))
    rest = 2 * 70 * (biases + REST + 32) + HEAD
    assert size.flops(70, 1) == flops(kind, 70, Sizes(32, 2, 4, 3)) + rest


def test_a_window_of_an_encoding_counts_as_one_of_a_mixer():
    window = {"kind": "window", "window": 4}
    by_mixer, by_encoding = size_of(model_of(window, window)), size_of(model_of("attention", positional=window))
    assert by_mixer.windows == (4, 4) and by_encoding.windows == (4,)
    assert size_of(model_of(window | {"sinks": 2})).windows == (6,)
    assert size_of(model_of("attention", positional=["rope", window | {"sinks": 2}])).windows == ()


def test_a_window_that_looks_both_ways_sees_twice_as_many():
    size = Size(weights=0, layers=2, width=8, hidden=10, vocabulary=50, bytes=4, both_ways=True, windows=(3,))
    # All pairs of 5 tokens, and twice what a window that looks back counts: 5 · 3 - 3²/2.
    assert size.flops(5, 0) == 4 * 8 * (25 + 21)


def test_memory_is_that_of_the_layer_that_makes_most_of_a_token():
    wide = {"kind": "gru", "size": 100}
    sizes = [size_of(model_of(*mixers)) for mixers in (["attention"], [LSTM], [CONVOLUTION], [LSTM, wide])]
    # Queries, keys, values, output; gates, what comes of them and the output; a convolution copies its input, too.
    assert [size.mixed for size in sizes] == [4 * 32, (4 + 1) * 8 + 32, (2 + 1) * 8 + 2 * 32, (3 + 1) * 100 + 32]
    runs = [run for one in documents(65) for run in plan([64], [one], "equal").runs(one)]
    made = [cost(size, runs, Budget(64)).bytes for size in sizes]
    assert made == [64 * (11 * 32 + size.mixed) * 4 + 64 * V * 8 for size in sizes]
