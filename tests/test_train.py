"""Training: rates by hand, and one result however a run is shared out, interrupted, killed or damaged on its way."""

import errno
import json
import math
import os
import random
import shutil
import signal

import pytest
import torch
from accelerate import Accelerator
from tiny_runs import equal, kill, launch, logged, start, tiny, wait_for_lines, weights

import lab.claim
import lab.subject
import lab.train
from lab import LabError, checkpoint
from lab.config import of_run, read
from lab.data import corpus
from lab.data.batches import batch
from lab.evaluate import evaluate
from lab.model import LabConfig, LabModel
from lab.optim import optimizer, rate
from lab.settings import Run, Train
from lab.train import accelerator_for, train

LONG = ["train.steps=60", "train.save_every=7", "train.keep=2"]
"""Long enough to be interrupted on the way, with most steps between two checkpoints."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One corpus, one cache; each test names a run of its own."""
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def whole(folder) -> Run:
    """A run that nothing has interrupted."""
    run = tiny(folder, "name=whole")
    train(run)
    return run


@pytest.fixture(scope="module")
def long(folder) -> Run:
    run = tiny(folder, *LONG, "name=long")
    train(run)
    return run


@pytest.fixture(scope="module")
def two_said(folder) -> str:
    """The long run, trained by two processes, and what they print."""
    tiny(folder)  # which writes the file, where this is the first test to run
    done = launch("train", folder / "tiny.yaml", *LONG, "name=two", processes=2)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def two(folder, two_said) -> Run:
    return tiny(folder, *LONG, "name=two")


def saved(run: Run) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


def refusal(*args) -> str:
    with pytest.raises(LabError) as caught:
        train(*args)
    return str(caught.value)


class Stopped(Exception):
    pass


def stop_after(run: Run, step: int, monkeypatch) -> None:
    """Train the first `step` steps, then end as a crash does: nothing more is saved or tidied up."""
    with monkeypatch.context() as patched:
        patched.setattr(lab.train, "rate", lambda n, settings: rate(n, settings) if n < step else crash())
        with pytest.raises(Stopped):
            train(run)


def crash():
    raise Stopped


# The optimizer


def test_the_cosine_rate_at_steps_counted_by_hand():
    settings = Train(steps=14, warmup=4, lr=0.8, floor=0.25, schedule="cosine")
    assert [rate(step, settings) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rate(4, settings) == pytest.approx(0.8)
    # Half way between 4 and 14 the cosine is half way between 0.8 and its floor, 0.2.
    assert rate(9, settings) == pytest.approx(0.5)
    # Step 13, the last, is 9/10 of the way.
    assert rate(13, settings) == pytest.approx(0.2 + 0.6 * (1 + math.cos(0.9 * math.pi)) / 2)


def test_the_stable_rate_at_steps_counted_by_hand():
    settings = Train(steps=20, warmup=2, lr=1.0, floor=0.1, decay=0.25, schedule="stable")
    assert [rate(step, settings) for step in (0, 1)] == pytest.approx([0.5, 1.0])
    assert [rate(step, settings) for step in range(2, 15)] == [1.0] * 13
    # The last five steps go down in five equal parts, and the last of them reaches the floor.
    assert [rate(step, settings) for step in range(15, 20)] == pytest.approx([0.82, 0.64, 0.46, 0.28, 0.1])


@pytest.mark.parametrize("schedule", ["cosine", "stable"])
def test_the_rate_never_leaves_its_bounds(schedule):
    for warmup, steps in [(0, 1), (0, 10), (5, 5), (50, 10), (3, 100)]:
        settings = Train(steps=steps, warmup=warmup, schedule=schedule, lr=2.0, floor=0.1, decay=1.0)
        rates = [rate(step, settings) for step in range(steps)]
        assert all(0 < one <= 2.0 for one in rates)
        assert all(later <= earlier for earlier, later in zip(rates[warmup:], rates[warmup + 1 :], strict=False))


@pytest.mark.parametrize("positional", ["rope", "relative", "learned"])
def test_only_the_matrices_of_the_layers_decay(positional):
    model = LabModel(LabConfig(width=32, layers=2, heads=2, positional=positional, train_length=16, qk_norm=True))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, free = optimizer(model, Train(weight_decay=0.3, betas=(0.8, 0.9))).param_groups
    assert sorted(names[id(p)] for p in decayed["params"]) == sorted(
        f"model.layers.{n}.{matrix}.weight"
        for n in range(2)
        for matrix in ("attention.qkv", "attention.out", "mlp.gate", "mlp.up", "mlp.down")
    )
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.3, 0.0)
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    assert decayed["betas"] == free["betas"] == (0.8, 0.9)


# A run and what it leaves


def test_a_run_leaves_a_model_its_settings_its_data_and_a_log(whole):
    assert {path.name for path in whole.path.iterdir()} == {
        "model",
        "checkpoints",
        "config.yaml",
        "data.json",
        "train.jsonl",
    }
    assert read(whole.path / "config.yaml") == whole
    assert [line["step"] for line in logged(whole)] == list(range(1, 13))
    assert [line["tokens"] for line in logged(whole)] == [64 * step for step in range(1, 13)]
    assert [line["lr"] for line in logged(whole)] == [rate(step, whole.train) for step in range(12)]


def test_the_loss_falls(long):
    losses = [line["loss"] for line in logged(long)]
    assert losses[0] > math.log(256) > 4 > sum(losses[-5:]) / 5


def test_the_logged_loss_is_that_of_the_batch_before_its_update(whole):
    text = corpus(whole.data)
    ids, _ = batch(text.train, length=16, size=4, seed=0, step=0)
    first = lab.subject.model_for(whole, text)
    ids = torch.from_numpy(ids)
    loss = first(ids[:, :-1], shift_labels=ids[:, 1:]).loss.item()
    assert logged(whole)[0]["loss"] == pytest.approx(loss, rel=1e-6)


def test_the_record_of_the_data_has_its_hash_and_versions(whole):
    data = json.loads((whole.path / "data.json").read_text())
    assert data == corpus(whole.data).meta
    assert len(data["sha256"]) == 64 and data["versions"]
    assert data["train"]["documents"] + data["held_out"]["documents"] == 36


def test_every_line_of_log_every_and_the_last_step_are_logged(folder):
    run = tiny(folder, "name=sparse", "train.log_every=5")
    train(run)
    assert [line["step"] for line in logged(run)] == [5, 10, 12]


def test_only_the_newest_checkpoints_are_kept(whole):
    assert saved(whole) == ["step-0000008", "step-0000012"]


def test_held_out_losses_are_logged_at_one_two_and_four_lengths_and_change_nothing(folder, whole):
    run = tiny(folder, "name=held-out", "train.eval_every=6")
    train(run)
    names = ["held_out_16", "held_out_32", "held_out_64"]
    assert [line["step"] for line in logged(run) if names[0] in line] == [6, 12]
    assert all(3 < logged(run)[-1][name] < 7 for name in names)
    assert equal(run, whole)


def test_the_model_opens_as_any_other(whole):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(whole.path / "model")
    assert type(model) is LabModel and model.config.train_length == 16 and model.config.eos_token_id == 0


def test_training_twice_gives_the_same_weights_and_another_seed_others(folder, whole):
    again, other = tiny(folder, "name=again"), tiny(folder, "name=other", "seed=1")
    train(again), train(other)
    assert equal(again, whole) and logged(again) == logged(whole)
    assert not equal(other, whole)


def test_encodings_start_from_the_same_weights_and_see_the_same_batches(folder):
    text = corpus(tiny(folder).data)
    starts = [
        lab.subject.model_for(tiny(folder, f"model.positional={kind}"), text).state_dict()
        for kind in ("rope", "learned", "relative", "nope")
    ]
    for name, value in starts[-1].items():
        assert all(torch.equal(other[name], value) for other in starts)


def test_a_finished_run_returns_at_once(whole, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")}
    monkeypatch.setattr(lab.subject, "corpus", lambda _: pytest.fail("read the corpus"))
    assert train(whole) == whole.path / "model"
    assert {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")} == before


# Shared out


def close(a: Run, b: Run, tolerance: float) -> None:
    one, other = weights(a), weights(b)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}")


def test_parts_run_in_turn_are_the_batch_run_at_once(folder, whole):
    run = tiny(folder, "name=parts", "train.accumulate=2")
    train(run)
    close(run, whole, 1e-5)
    for part, at_once in zip(logged(run), logged(whole), strict=True):
        assert part == pytest.approx(at_once, rel=1e-4)


def test_two_processes_train_what_one_does(folder, long, two):
    close(two, long, 1e-5)
    for double, single in zip(logged(two), logged(long), strict=True):
        assert double == pytest.approx(single, rel=1e-4)


def test_two_processes_answer_once(two, two_said):
    assert two_said == f"{two.path / 'model'}\n"


@pytest.mark.parametrize("size, parts, said", [(6, 4, "a multiple of 4"), (3, 2, "a multiple of 2"), (1, 2, "of 2")])
def test_a_batch_that_cannot_be_shared_out_is_told_by_what(folder, size, parts, said):
    run = tiny(folder, f"name=share-{size}-{parts}", f"train.batch={size}", f"train.accumulate={parts}")
    message = refusal(run)
    assert message.startswith(f"train.batch {size} cannot be shared by 1 processes × {parts} accumulated parts")
    assert message.endswith(said)
    assert not run.path.exists()


def test_a_batch_that_two_processes_cannot_share_is_told_the_number(folder, monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    message = refusal(tiny(folder, "name=share-two", "train.batch=6", "train.accumulate=2"))
    assert "2 processes × 2 accumulated parts: make it a multiple of 4" in message


# Interrupted


@pytest.mark.parametrize("step", [3, 4, 9])
def test_a_run_that_crashed_goes_on_to_the_same_weights(folder, whole, monkeypatch, step):
    run = tiny(folder, f"name=crash-{step}")
    stop_after(run, step, monkeypatch)
    assert not (run.path / "model").exists()
    train(run)
    assert equal(run, whole)
    assert logged(run) == logged(whole)  # no step twice, none missing


def test_a_run_goes_on_from_its_checkpoint_and_not_from_the_start(folder, monkeypatch):
    run, steps = tiny(folder, "name=goes-on"), []
    stop_after(run, 10, monkeypatch)
    monkeypatch.setattr(lab.train, "rate", lambda n, settings: steps.append(n) or rate(n, settings))
    train(run)
    assert steps == [8, 9, 10, 11]


@pytest.mark.parametrize("kind", ["learned", "relative"])
def test_what_an_encoding_learns_is_in_the_checkpoint(folder, monkeypatch, kind):
    alone, run = (tiny(folder, f"name={kind}-{how}", f"model.positional={kind}") for how in ("alone", "crashed"))
    train(alone)
    stop_after(run, 6, monkeypatch)
    train(run)
    assert equal(run, alone)


def test_half_a_line_in_the_log_is_written_again(folder, whole, monkeypatch):
    run = tiny(folder, "name=half-a-line")
    stop_after(run, 6, monkeypatch)
    log = run.path / "train.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    train(run)
    assert logged(run) == logged(whole)


def killed(run: Run, folder, processes: int) -> int:
    """Start a run and kill it -9 at a step drawn by chance; returns what step that was."""
    step = random.randrange(8, 50)
    process = start("train", folder / "tiny.yaml", *LONG, f"name={run.name}", processes=processes)
    wait_for_lines(process, run.path / "train.jsonl", step)
    kill(process)
    return step


def test_a_run_killed_at_any_step_goes_on_to_the_same_weights(folder, long):
    run = tiny(folder, *LONG, "name=killed")
    step = killed(run, folder, 1)
    assert not (run.path / "model").exists(), "it was done before it was killed: make it longer"
    train(run)
    assert equal(run, long), f"killed at step {step}"
    assert logged(run) == logged(long)
    assert not list(run.path.rglob("*.tmp"))


@pytest.mark.slow
def test_two_processes_killed_at_any_step_go_on_to_the_same_weights(folder, two):
    run = tiny(folder, *LONG, "name=two-killed")
    step = killed(run, folder, 2)
    assert not (run.path / "model").exists(), "it was done before it was killed: make it longer"
    done = launch("train", folder / "tiny.yaml", *LONG, "name=two-killed", processes=2)
    assert done.returncode == 0, done.stderr
    assert equal(run, two), f"killed at step {step}"
    assert logged(run) == logged(two)


def test_a_run_told_to_end_saves_says_where_it_stands_and_goes_on(folder, long):
    run = tiny(folder, *LONG, "name=ended")
    process = start("train", folder / "tiny.yaml", *LONG, "name=ended")
    wait_for_lines(process, run.path / "train.jsonl", 10)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    at = logged(run)[-1]["step"]
    assert process.returncode == 1 and 10 <= at < 60
    assert said.strip().endswith(f"lab: ended: stopped at step {at} of 60, saved; the same command goes on from there")
    assert "Traceback" not in said
    assert saved(run)[-1] == f"step-{at:07d}"
    train(run)
    assert equal(run, long) and logged(run) == logged(long)


def test_a_signal_in_the_last_step_does_not_fail_a_run_that_is_done(folder, whole, monkeypatch):
    run = tiny(folder, "name=last-step")

    def rate_and_signal(step, settings):
        if step == 11:
            signal.raise_signal(signal.SIGTERM)
        return rate(step, settings)

    monkeypatch.setattr(lab.train, "rate", rate_and_signal)
    train(run)
    assert equal(run, whole)


def test_the_handlers_of_signals_are_given_back(folder, monkeypatch):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stop_after(tiny(folder, "name=handlers"), 2, monkeypatch)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# Damaged


DAMAGES = {
    "truncated": lambda path: os.truncate(path / "model.safetensors", 1000),
    "changed": lambda path: (path / "optimizer.bin").write_bytes((path / "optimizer.bin").read_bytes()[:-1] + b"?"),
    "missing": lambda path: (path / "model.safetensors").unlink(),
    "state.json": lambda path: os.truncate(path / "state.json", 20),
    "unmarked": lambda path: (path / "state.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(folder, whole, monkeypatch, capsys, damage):
    run = tiny(folder, f"name=damaged-{damage}")
    stop_after(run, 10, monkeypatch)
    assert saved(run) == ["step-0000004", "step-0000008"]
    newest = run.path / "checkpoints/step-0000008"
    DAMAGES[damage](newest)
    train(run)
    said = capsys.readouterr().err
    word = {"changed": "truncated", "unmarked": "state.json"}.get(damage, damage)
    assert f"checkpoint {newest} is damaged (" in said and "going back to the one before it" in said and word in said
    assert equal(run, whole) and logged(run) == logged(whole)


def test_where_every_checkpoint_is_damaged_training_starts_anew(folder, whole, monkeypatch, capsys):
    run = tiny(folder, "name=all-damaged")
    stop_after(run, 10, monkeypatch)
    for path in (run.path / "checkpoints").iterdir():
        DAMAGES["truncated"](path)
    train(run)
    assert capsys.readouterr().err.count("is damaged") == 2
    assert equal(run, whole)


def test_a_checkpoint_that_was_being_written_is_no_checkpoint_not_even_a_damaged_one(
    folder, whole, monkeypatch, capsys
):
    run = tiny(folder, "name=half-written")
    stop_after(run, 9, monkeypatch)
    half = run.path / "checkpoints/step-0000012.tmp"
    shutil.copytree(run.path / "checkpoints/step-0000008", half)
    DAMAGES["truncated"](half)
    train(run)
    assert "damaged" not in capsys.readouterr().err
    assert equal(run, whole) and saved(run) == ["step-0000008", "step-0000012"]


def explode(step: int):
    """A rate that blows the weights up with the update of this step, counted from 1."""
    return lambda n, settings: 1e38 if n == step - 1 else rate(n, settings)


def test_a_loss_that_is_not_finite_stops_with_step_documents_and_the_good_checkpoint(folder, whole, monkeypatch):
    run, text = tiny(folder, "name=exploded"), corpus(whole.data)
    with monkeypatch.context() as patched:
        patched.setattr(lab.train, "rate", explode(6))
        message = refusal(run)
    assert message.startswith("exploded: step 7 has loss nan")
    assert f"the checkpoint of step 4 in {run.path / 'checkpoints'} stands" in message
    _, offsets = batch(text.train, length=16, size=4, seed=0, step=6)
    documents = text.train.at(offsets, 16)
    assert 1 <= len(documents) <= 8 and f"Its batch came from {', '.join(documents)}.\n" in message
    assert saved(run) == ["step-0000004"]
    train(run)  # with the rate mended, step 4 really is good
    assert equal(run, whole) and logged(run) == logged(whole)


def test_a_loss_that_is_not_finite_from_the_start_says_that_nothing_is_saved(folder, monkeypatch):
    run = tiny(folder, "name=exploded-at-once")
    monkeypatch.setattr(lab.train, "rate", explode(1))
    assert "step 2 has loss nan" in (message := refusal(run)) and "nothing is saved yet" in message


def test_weights_are_not_touched_by_a_gradient_that_is_not_finite(folder, monkeypatch):
    """The loss may be finite where its gradient is not; the update with it would spoil every weight."""
    run, updates = tiny(folder, "name=gradient"), []
    real = Accelerator.clip_grad_norm_

    def infinite(self, *args):
        return real(self, *args) * (math.inf if len(updates) == 5 else 1)

    monkeypatch.setattr(Accelerator, "clip_grad_norm_", infinite)
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args, **named: (updates.append(1), step(*args, **named))[1])
    assert "step 6 has loss" in (message := refusal(run)) and "gradient norm inf" in message
    assert len(updates) == 5


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_checkpoint_before_and_says_what_to_do(folder, whole, monkeypatch):
    run, real, calls = tiny(folder, "name=full-disk"), Accelerator.save_state, []

    def second_fails(self, where, **named):
        real(self, where, **named)  # what is half-written must go
        calls.append(where)
        if len(calls) == 2:
            full_disk()

    with monkeypatch.context() as patched:
        patched.setattr(Accelerator, "save_state", second_fails)
        message = refusal(run)
    assert message.startswith(f"no space left for {run.path / 'checkpoints/step-0000008'}: ")
    assert "MiB free" in message and "run the same command again" in message
    assert saved(run) == ["step-0000004"] and checkpoint.damage(run.path / "checkpoints/step-0000004") is None
    train(run)
    assert equal(run, whole)


def test_a_disk_full_at_the_very_end_costs_no_training(folder, whole, monkeypatch):
    run = tiny(folder, "name=full-at-the-end")
    with monkeypatch.context() as patched:
        patched.setattr(LabModel, "save_pretrained", full_disk)
        assert refusal(run).startswith(f"no space left for {run.path / 'model'}: ")
    assert not list(run.path.rglob("*.tmp")) and not (run.path / "model").exists()
    monkeypatch.setattr(lab.train, "one_step", lambda *_: pytest.fail("trained again"))
    train(run)
    assert equal(run, whole)


def test_another_error_while_saving_is_not_taken_for_a_full_disk(folder, monkeypatch):
    def broken(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Accelerator, "save_state", broken)
    with pytest.raises(OSError, match="Input/output error"):
        train(tiny(folder, "name=broken-disk"))


# A folder that is taken


def test_a_folder_of_other_settings_is_refused_with_each_that_differs(folder, whole):
    message = refusal(tiny(folder, "name=whole", "model.width=64", "train.lr=0.01", "seed=4", "model.positional=alibi"))
    assert message == (
        f"{whole.path} holds a run with other settings:\n"
        "  model.positional: 'rope' there, 'alibi' asked for\n"
        "  model.width: 32 there, 64 asked for\n"
        "  seed: 0 there, 4 asked for\n"
        "  train.lr: 0.003 there, 0.01 asked for\n"
        f"Choose another name (name=whole-2), or delete {whole.path} to train it anew"
    )


def test_a_refused_run_changes_nothing_in_the_folder(folder, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")}
    refusal(tiny(folder, "name=whole", "train.steps=24"))
    assert {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")} == before


def test_an_option_of_the_encoding_is_a_setting_like_any_other(folder, monkeypatch):
    run = tiny(folder, "name=options", "model.positional={kind: rope-ntk, factor: 2}")
    stop_after(run, 1, monkeypatch)
    message = refusal(tiny(folder, "name=options", "model.positional={kind: rope-ntk, factor: 4}"))
    assert "model.positional.factor: 2 there, 4 asked for" in message


def test_what_leaves_the_weights_alone_may_change_on_the_way(folder, whole, monkeypatch):
    run = tiny(folder, "name=free")
    stop_after(run, 6, monkeypatch)
    free = ["train.log_every=4", "train.eval_every=6", "train.save_every=3", "train.keep=1"]
    free += [
        "eval.documents=2",
        "eval.lengths=[1x]",
        "compare.seeds=[5]",
        "project=other",
        f"data.cache={folder}/other",
    ]
    train(tiny(folder, "name=free", *free))
    assert equal(run, whole)
    assert [line["step"] for line in logged(run)] == [1, 2, 3, 4, 8, 12]


def test_the_tracker_may_change_on_the_way(folder):
    lasting = lab.claim.lasting
    assert lasting(tiny(folder, "track=wandb")) == lasting(tiny(folder)) != lasting(tiny(folder, "seed=1"))


# An encoding of the user's own


OWN = '''"""Doubled: tokens made louder, the further back the quieter."""

import torch

from positional import Scheme


class Mine(Scheme):
    """slope: how fast."""

    def __init__(self, shape, *, slope: float = 0.01):
        super().__init__(shape)
        self.gain = torch.nn.Parameter(torch.ones(shape.width))
        self.slope = slope

    def embed(self, x, pos):
        return x * self.gain * (1 - self.slope * pos.of_queries[..., None])
'''


@pytest.fixture
def mine(folder, tmp_path) -> Run:
    """A trained run with an encoding from a file of the user's own."""
    (tmp_path / "mine.py").write_text(OWN)
    run = tiny(folder, f"folder={tmp_path}", f"model.positional={{kind: {tmp_path}/mine.py, slope: 0.02}}")
    train(run)
    return run


def test_a_file_of_the_users_own_is_copied_into_the_run(mine):
    assert (mine.path / "mine.py").read_text() == OWN


def test_a_file_of_the_users_own_is_loaded_again_to_measure(mine):
    rows = list(evaluate(mine, accelerator_for(mine)))
    assert {row.scheme for row in rows} == {"mine"} and all(math.isfinite(row.value) for row in rows if not row.note)
    model = LabModel.from_pretrained(mine.path / "model", trust_remote_code=True)
    assert model.scheme.slope == 0.02 and not torch.equal(model.scheme.gain, torch.ones(32))


def test_a_run_is_measured_with_the_source_it_was_trained_with(mine, tmp_path):
    """The researcher goes on editing the file, or moves it; what was trained stays what it was."""
    before = [row.value for row in evaluate(mine, accelerator_for(mine))]
    shutil.rmtree(mine.path / "losses")
    (tmp_path / "mine.py").write_text(OWN.replace("1 - ", "1 + "))
    assert [row.value for row in evaluate(mine, accelerator_for(mine))] == before


def test_a_run_is_measured_where_the_users_file_is_gone(mine, tmp_path):
    (tmp_path / "mine.py").unlink()
    assert list(evaluate(mine, accelerator_for(mine)))


def test_the_command_too_measures_a_run_where_the_users_file_is_gone(mine, tmp_path):
    (tmp_path / "mine.py").unlink()
    run = of_run(mine.path)  # what `lab eval` reads, and checks, first
    assert {row.scheme for row in evaluate(run, accelerator_for(run))} == {"mine"}


def test_an_edited_file_that_is_swapped_in_is_measured_anew(folder, whole, tmp_path):
    """Losses are found again by the name of a file; its content decides them."""
    (tmp_path / "louder.py").write_text(OWN.replace("self.gain = ", "gain = ").replace("* self.gain", ""))
    run = tiny(folder, "name=whole", f"eval.swap=[{tmp_path}/louder.py]")

    def measured() -> dict:
        rows = evaluate(run, accelerator_for(run))
        return {row.what: row.value for row in rows if (row.scheme, row.metric) == ("louder", "nats")}

    first = measured()
    text = (tmp_path / "louder.py").read_text()
    (tmp_path / "louder.py").write_text(text.replace("1 - ", "2 - "))
    second = measured()
    assert first.keys() == second.keys()
    assert all(first[what] != second[what] for what in first if first[what] is not None)


# Encodings that draw where tokens sit


DRAWN = {
    "random-positions": "[{kind: random-positions, longest: 64}, rope]",
    "pose": "[{kind: pose, longest: 64}, rope]",
}


@pytest.fixture(scope="module")
def drawn(folder) -> dict[str, Run]:
    """Runs that nothing has interrupted."""
    runs = {kind: tiny(folder, f"name=drawn-{kind}", f"model.positional={spec}") for kind, spec in DRAWN.items()}
    for run in runs.values():
        train(run)
    return runs


@pytest.mark.parametrize("kind", DRAWN)
def test_a_run_that_draws_positions_goes_on_to_the_same_weights(folder, drawn, whole, monkeypatch, kind):
    run = tiny(folder, f"name=drawn-crash-{kind}", f"model.positional={DRAWN[kind]}")
    stop_after(run, 6, monkeypatch)
    train(run)
    assert equal(run, drawn[kind]) and logged(run) == logged(drawn[kind])
    assert not equal(run, whole)  # which is rope alone


@pytest.mark.parametrize("kind", DRAWN)
def test_neither_evaluation_on_the_way_nor_parts_change_what_is_drawn(folder, drawn, kind):
    measured, parts = (
        tiny(folder, f"name=drawn-{name}-{kind}", f"model.positional={DRAWN[kind]}", change)
        for name, change in (("measured", "train.eval_every=2"), ("parts", "train.accumulate=2"))
    )
    train(measured), train(parts)
    assert equal(measured, drawn[kind])
    close(parts, drawn[kind], 1e-5)


def test_processes_draw_apart_and_another_seed_draws_others(folder, monkeypatch):
    seeds = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    for number, seed in ((0, 0), (1, 0), (0, 1)):
        monkeypatch.setattr(Accelerator, "process_index", number)
        run = tiny(folder, f"name=seeds-{number}-{seed}", f"seed={seed}", "train.steps=3")
        train(run)
    assert len(set(seeds) - {0, 1}) == 9  # 3 steps each; the others are of first weights
