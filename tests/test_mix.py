"""Tasks in training: how many rows, which, what of them is learned, and the same ones after an interruption."""

import numpy as np
import pytest
import torch
from tiny_runs import equal, logged, tiny

import lab.train
from eval.sample import answered
from eval.tally import tally
from eval.tasks import build
from eval.voice import in_bytes
from lab import LabError
from lab.data import Side
from lab.data.batches import batch, packed
from lab.mix import Mix, drawn
from lab.model import LabModel
from lab.settings import Mixed, Run
from lab.train import train

MIX = ["data.mix=[{task: passkey, share: 0.3}, {task: mqar, share: 0.2, options: {pairs: 3}}]", "train.length=32"]


def side() -> Side:
    ids = np.arange(5000) % 97 + 1
    ids[99::100] = 0
    return Side(ids.astype(np.uint8), np.arange(0, 5001, 100), [f"d{n}" for n in range(50)])


def run_with(*parts: dict, **more) -> Run:
    return Run.model_validate({"data": {"mix": list(parts), **more}, "train": {"length": 40}, "track": "none"})


def call_at(step: int, size: int = 64, pack: bool = False) -> dict:
    ids, offsets = batch(side(), length=40, size=size, seed=0, step=step)
    call = {"input_ids": ids[:, :-1], "shift_labels": ids[:, 1:]}
    return call | packed(side(), ids, offsets) if pack else call


def test_without_tasks_a_batch_stays_as_it_is():
    call = call_at(0)
    assert Mix(run_with(), side()).into(call, 0) is call


@pytest.mark.parametrize("pack", [False, True])
def test_rows_of_a_task_are_its_samples_and_the_others_stay_text(pack):
    mix = Mix(run_with({"task": "passkey", "share": 0.25}, {"task": "mqar", "share": 0.25}), side())
    text, before = call_at(7, pack=pack), call_at(7, pack=pack)
    call = mix.into(text, 7)
    rows = dict(drawn(mix.parts, 64, 0, 7))
    assert 20 < len(rows) < 44 and {part.task for part in rows.values()} == {"passkey", "mqar"}
    for name in text:
        assert (text[name] == before[name]).all()  # what was handed in is left alone
        others = [row for row in range(64) if row not in rows]
        assert (call[name][others] == text[name][others]).all()
    for row, part in rows.items():
        [sample] = build(part.task, {}, length=41, count=1, voice=in_bytes(side().ids), first=7 * 64 + row)
        assert (call["input_ids"][row] == sample.ids[:-1]).all()
        assert (call["shift_labels"][row] == sample.ids[1:]).all()  # every token is learned
        if pack:
            assert (call["segments"][row] == call["segments"][row][0]).all()
            assert (call["position_ids"][row] == np.arange(40)).all()


def test_shares_are_kept():
    parts = [Mixed(task="passkey", share=0.05), Mixed(task="niah", share=0.2)]
    tasks = [part.task for step in range(100) for _, part in drawn(parts, 100, 0, step)]
    # Of 10000 rows, give or take four standard deviations.
    assert abs(tasks.count("passkey") - 500) < 4 * 22 and abs(tasks.count("niah") - 2000) < 4 * 40
    everything = [Mixed(task="passkey", share=1.0)]
    assert len(drawn(everything, 500, 0, 0)) == 500


def test_rows_differ_by_step_and_seed_and_by_nothing_else():
    parts = [Mixed(task="passkey", share=0.5)]
    rows = {(seed, step): [row for row, _ in drawn(parts, 64, seed, step)] for seed in (0, 1) for step in (0, 1)}
    assert len({tuple(r) for r in rows.values()}) == 4
    assert rows[0, 1] == [row for row, _ in drawn(parts, 64, 0, 1)]


def test_a_run_with_tasks_that_crashed_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    whole, crashed, plain = (
        tiny(tmp_path, f"name={name}", *how) for name, how in (("whole", MIX), ("crashed", MIX), ("plain", MIX[1:]))
    )
    train(whole), train(plain)
    real = lab.train.one_step

    def failing(*arguments):
        if any(one == 6 for one in arguments if isinstance(one, int)):
            raise RuntimeError("crash")
        return real(*arguments)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="crash"):
        patch.setattr(lab.train, "one_step", failing)
        train(crashed)
    train(crashed)
    assert equal(crashed, whole) and logged(crashed) == logged(whole)
    assert not equal(plain, whole)


def test_a_run_with_tasks_is_another_run_than_one_without(tmp_path):
    train(tiny(tmp_path, *MIX, "train.steps=1"))
    with pytest.raises(LabError, match=r"data\.mix"):
        train(tiny(tmp_path, MIX[1], "train.steps=1"))


def refusal(tmp_path, mix: str, *more: str) -> list[str]:
    with pytest.raises(LabError) as caught:
        tiny(tmp_path, f"data.mix={mix}", *more)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_a_mix_that_cannot_be_is_told_with_the_settings(tmp_path):
    said = refusal(
        tmp_path,
        "[{task: passkey, share: 0.7}, {task: niah, share: 0.4}, {task: mqar, share: 0.1, options: {keys: 3}}]",
        "train.length=21",
        "eval.lengths=[32]",
    )
    assert said == [
        "data.mix: the shares add up to 1.2; what is left of 1 is text",
        "data.mix[0]: task passkey: 22 tokens are too few: facts of 12 + questions and answers of 11 = 23. "
        "Ask for at least as many",
        "data.mix[1]: task niah: 22 tokens are too few: facts of 12 + questions and answers of 11 = 23. "
        "Ask for at least as many",
        "data.mix[2]: task mqar has no option `keys`; it has pairs, power",
    ]


@pytest.mark.slow
def test_a_small_model_learns_what_it_is_trained_on(tmp_path):
    """Selective copies of three tokens, in minutes; what it reaches on text of its own is measured, not tested."""
    mix = "[{task: selective-copy, share: 1.0, options: {tokens: 3}}]"
    sizes = ["model.width=64", "train.length=16", "train.batch=64", "train.steps=800", "train.lr=5e-3"]
    run = tiny(tmp_path, "name=learns", f"data.mix={mix}", *sizes, "train.save_every=800", "eval.lengths=[16]")
    model = LabModel.from_pretrained(train(run)).eval()
    torch.manual_seed(0)
    samples = build("selective-copy", {"tokens": 3}, length=16, count=100, voice=in_bytes(), seed=1)
    [cell] = tally(answered(model, samples), by=("task",))
    assert cell.accuracy > 0.5  # chance: 1 in 253
