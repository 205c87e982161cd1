"""Masked language modelling as a run: which tokens are hidden, one result however it is interrupted, rows, refusals."""

# B sequences · T tokens

import math

import numpy as np
import pytest
import torch
import yaml
from test_train import stop_after
from tiny_runs import config, equal, logged
from transformers import AutoModelForMaskedLM, BertTokenizerFast

from lab import LabError
from lab.compare import parts_of
from lab.config import of_run, read
from lab.data import corpus, long_documents
from lab.evaluate import evaluate
from lab.generate import generate
from lab.masked.masking import Words, masked
from lab.masked.settings import Mask, MaskedRun
from lab.settings import Run
from lab.train import accelerator_for, train

BYTES = Words(257, 256, 0)
EVAL = {"lengths": ["1x", "2x", "4x"], "documents": 3, "batch_tokens": 128, "targets": 8, "together": [1, 4]}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The tiny configuration, of a masked language model."""
    written = config(tmp_path_factory.mktemp("masking"))
    settings = yaml.safe_load(written.read_text()) | {"mask": {}, "eval": EVAL}
    settings["train"] |= {"eval_every": 6}
    settings["data"] |= {"packing": "documents"}
    written.write_text(yaml.safe_dump(settings))
    return written


@pytest.fixture(scope="module")
def trained(path) -> MaskedRun:
    run = read(path, ["name=whole"])
    train(run)
    return run


def call(rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Bytes, of which one in twenty ends a document."""
    draw = np.random.default_rng(seed)
    ids = np.where(draw.random((rows, length)) < 0.05, 0, draw.integers(1, 256, (rows, length)))
    return {"input_ids": ids, "shift_labels": np.roll(ids, -1, 1), "segments": np.cumsum(ids == 0, 1)}


def refusal(action) -> str:
    with pytest.raises(LabError) as caught:
        action()
    return str(caught.value)


# what is hidden


def test_of_each_row_fifteen_in_a_hundred_tokens_are_told_and_no_end_token():
    given = call(400, 200)
    made = masked(given, BYTES, Mask(), seed=1, step=7)
    told, ids = made["shift_labels"] != -100, given["input_ids"]
    assert (told.sum(1) == np.rint(0.15 * (ids != 0).sum(1))).all()
    assert (made["shift_labels"][told] == ids[told]).all() and not told[ids == 0].any()
    assert (made["input_ids"][~told] == ids[~told]).all()
    assert (given["input_ids"] == call(400, 200)["input_ids"]).all() and made["segments"] is given["segments"]


def test_of_those_eight_in_ten_are_hidden_one_is_another_and_one_stays():
    given = call(4000, 200)
    made = masked(given, BYTES, Mask(), seed=1, step=7)
    told = made["shift_labels"] != -100
    shown, was = made["input_ids"][told], given["input_ids"][told]
    shares = [(shown == 256).mean(), ((shown != 256) & (shown != was)).mean(), (shown == was).mean()]
    # A random token is the old one once in 255 times. Four standard deviations of a share of 114,000.
    for found, wanted in zip(shares, (0.8, 0.1 * 254 / 255, 0.1 * 256 / 255), strict=True):
        assert abs(found - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / len(was))
    others = shown[(shown != 256) & (shown != was)]
    assert set(others) == set(range(1, 256))  # neither the mask nor the end is drawn


def test_every_place_is_as_likely():
    ids = np.ones((20_000, 10), np.int64)
    told = masked({"input_ids": ids, "shift_labels": ids}, BYTES, Mask(share=0.2), seed=0, step=0)["shift_labels"] > 0
    assert (told.sum(1) == 2).all()
    assert (abs(told.mean(0) - 0.2) < 4 * math.sqrt(0.16 / 20_000)).all()


def test_it_hangs_on_seed_and_step_alone():
    one = masked(call(4, 50), BYTES, Mask(), seed=1, step=7)
    again = masked(call(4, 50), BYTES, Mask(), seed=1, step=7)
    assert all((one[name] == again[name]).all() for name in one)
    for other in ({"seed": 2, "step": 7}, {"seed": 1, "step": 8}):
        assert (masked(call(4, 50), BYTES, Mask(), **other)["shift_labels"] != one["shift_labels"]).any()


@pytest.mark.parametrize(("length", "told"), [(2, 1), (3, 1), (12, 2)])
def test_a_short_row_has_one_target_at_least(length, told):
    ids = np.full((5, length), 9)
    made = masked({"input_ids": ids, "shift_labels": ids}, BYTES, Mask(), seed=0, step=0)
    assert ((made["shift_labels"] == 9).sum(1) == told).all()


def test_a_tokenizer_s_own_mask_is_taken_and_never_drawn(tmp_path, path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789."]
    words += [f"##{letter}" for letter in words[5:]]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    run = read(path, [f"data.tokenizer={tmp_path}"])
    found = Words.of(run, corpus(run.data))
    assert found == Words(len(words), 4, 3)
    ids = np.full((300, 100), 10)
    made = masked({"input_ids": ids, "shift_labels": ids}, found, Mask(hidden=0.0, random=1.0), seed=0, step=0)
    assert set(made["input_ids"][made["shift_labels"] == 10]) == set(range(len(words))) - {3, 4}


# training


def test_it_trains_and_its_model_loads_anywhere(trained):
    lines = logged(trained)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1].keys() >= {"held_out_16", "held_out_32", "held_out_64"}
    model = AutoModelForMaskedLM.from_pretrained(trained.path / "model")
    assert (model.config.vocab_size, model.config.mask_token_id) == (257, 256)


def test_the_logged_loss_is_that_of_hidden_tokens_of_the_first_batch(trained):
    text, subject = corpus(trained.data), trained.subject
    model = subject.model(trained, text, accelerator_for(trained))
    arrays, _ = subject.batches(trained, text, 1)(0)
    given = {name: torch.from_numpy(x) for name, x in arrays.items() if name != "shift_labels"}
    targets = torch.from_numpy(arrays["shift_labels"])
    with torch.no_grad():
        logs = model(**given).logits.double().log_softmax(-1)
    told = targets != -100
    wanted = -logs[told].gather(1, targets[told][:, None]).mean()
    assert logged(trained)[0]["loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert "segments" in arrays  # packed documents are kept apart


def test_a_run_that_is_killed_goes_on_to_the_same_weights(path, trained, monkeypatch):
    run = read(path, ["name=killed"])
    stop_after(run, 7, monkeypatch)
    assert not (run.path / "model").exists()
    train(run)
    assert equal(run, trained)
    assert logged(run) == logged(trained)


def test_accumulated_parts_give_the_same_loss(path, trained):
    run = read(path, ["name=parts", "train.accumulate=2", "train.steps=2"])
    train(run)
    assert logged(run)[0]["loss"] == pytest.approx(logged(trained)[0]["loss"], rel=1e-5)


# evaluation


def test_rows_of_pseudo_perplexity_at_every_length(trained):
    said = []
    run = of_run(trained.path, ["eval.swap=[alibi, learned]"])
    assert isinstance(run, MaskedRun)
    rows = list(evaluate(run, accelerator_for(run), say=said.append))
    assert {row.scheme for row in rows} == {"rope", "alibi", "learned"}
    own = [row for row in rows if row.scheme == "rope"]
    assert [(row.probe, row.metric, row.length, row.count) for row in own] == [
        (probe, "nats", length, 24)
        for probe in ("pseudo-perplexity", "pseudo-perplexity, 4 at once")
        for length in (16, 32, 64)
    ]
    assert all(row.low < row.value < row.high for row in own)
    assert {row.note for row in rows if row.scheme == "learned"} == {"needs training: table"}
    # Alone: 8 passes at each length. By fours, two apart: at 32 and 64 two, at 16 two as well, one window holding all.
    assert f"{3 * (3 * 8 + 3 * 2)} forward passes" in said[0]
    assert "each length is run by itself: every token that is read changes every loss" in said[0]
    again = list(evaluate(run, accelerator_for(run), say=said.append))
    assert again == rows and "nothing is left to run" in said[-1]


def test_a_row_is_what_hiding_each_token_by_hand_gives(trained):
    run = of_run(trained.path, ["eval.together=[1]", "eval.lengths=[4x]"])
    [row] = [row for row in evaluate(run, accelerator_for(run)) if row.scheme == "rope"]
    model = AutoModelForMaskedLM.from_pretrained(trained.path / "model").eval()
    total, found = 0.0, long_documents(corpus(run.data).held_out, length=64, count=3)
    for _, ids, _ in found:
        for place in range(28, 36):  # the middle eight of 64
            shown = torch.from_numpy(ids.copy())
            shown[place] = 256
            with torch.no_grad():
                total -= float(model(shown[None]).logits[0, place].double().log_softmax(-1)[ids[place]])
    assert row.value == pytest.approx(total / 24, rel=1e-5)


def test_a_comparison_is_of_masked_runs(path):
    runs = parts_of(read(path, ["compare.runs=[{train: rope, swap: [alibi]}, {train: alibi}]"]))
    assert [(name, run.encoding, run.mask.share, run.eval.swap) for name, run in runs] == [
        ("rope", "rope", 0.15, ["alibi"]),
        ("alibi", "alibi", 0.15, []),
    ]


# what is refused


def test_settings_that_do_not_fit_are_told_at_once(path):
    over = ["model.positional=logn", "eval.swap=[alibi, fox]", "eval.lengths=[1x, 7]", "mask.random=0.5"]
    said = refusal(lambda: read(path, [*over, "eval.tasks=[{task: passkey}]"]))
    assert [line.strip() for line in said.splitlines()[1:]] == [
        "mask: hidden 0.8 and random 0.5 are shares of the same tokens: 1 at most",
        "eval.tasks: unknown key; known here: lengths, documents, targets, together, batch_tokens, swap",
        "eval.lengths[1]: 7 is odd (7): half of each window is context, half is scored",
        "model.positional: logn cannot be a masked language model's, where a token also sees those after it: it takes "
        "a query to see as many tokens as lie up to it",
        "eval.swap[1]: fox cannot be a masked language model's, where a token also sees those after it: a token's gate "
        "says how much is forgotten of what came before it",
    ]
    assert "algorithmic problems ask for what comes next, which a masked language model does not tell" in refusal(
        lambda: read(path, ["data.source=algorithmic", "data.task=copy"])
    )


def test_mixers_that_read_from_first_to_last_are_told_by_key(path):
    runs = "compare.runs=[{train: rope, mixer: gru}, {train: rope, mixer: {kind: window, window: 4}}]"
    said = refusal(lambda: read(path, ["model.mixer=[attention, lstm]", runs]))
    both = "reads from first to last, and a masked language model both ways: write attention or window"
    assert [line.strip() for line in said.splitlines()[1:]] == [
        f"model.mixer: lstm {both}",
        f"compare.runs[0].mixer: gru {both}",
    ]
    assert "model.mixer: unknown mixer `lstn`: did you mean lstm?" in refusal(lambda: read(path, ["model.mixer=lstn"]))


def test_a_folder_of_one_kind_of_run_is_not_trained_as_another(path, trained, tmp_path):
    plain = tmp_path / "plain.yaml"
    settings = yaml.safe_load(path.read_text())
    del settings["mask"], settings["eval"]
    plain.write_text(yaml.safe_dump(settings))
    causal = read(plain, ["name=whole"])
    assert isinstance(causal, Run)
    assert refusal(lambda: train(causal)) == (
        f"{trained.path} holds a run of another kind, a new model or a pretrained one: choose another name "
        "(name=whole-2)"
    )
    assert "mask.share: 0.15 there, 0.3 asked for" in refusal(
        lambda: train(read(path, ["name=whole", "mask.share=0.3"]))
    )
    assert refusal(lambda: of_run(trained.path, ["mask.share=0.3"])) == (
        f"mask.share=0.3 changes `model` or `train` or `mask`, which {trained.path} has behind it; only train anew"
    )


def test_it_does_not_write(trained):
    assert refusal(lambda: generate(of_run(trained.path), "a", print, tokens=3)) == (
        f"{trained.path} holds a model of the type context-lab-masked, which `lab eval` measures; this takes "
        "context-lab, a model that tells what comes next"
    )


def test_the_file_in_configs_holds_the_defaults_of_what_is_masked():
    run = read("configs/mlm.yaml")
    assert run.mask == Mask() and run.eval == MaskedRun().eval
