"""Tasks put to a model at many lengths: known answers give known shares; what is answered is not asked again."""

import json
import sys

import numpy as np
import pytest
import torch
from test_grid import own
from test_retrieval import BYTES, Finder
from test_rows import row
from tiny_runs import tiny
from transformers import LlamaConfig, LlamaForCausalLM

import eval.__main__ as program
import eval.asked
from eval import EvalError
from eval.asked import Questions, Session, retention
from eval.context import by_key_tokens
from eval.entries import Asked
from eval.perplexity import Measured
from eval.plan import Document, Plan
from eval.points import Point
from eval.protocols import PROTOCOLS
from eval.report import by_ruler
from eval.store import Store
from eval.voice import in_bytes
from lab.evaluate import evaluate
from lab.rows import read
from lab.table import markdown
from lab.tokenizer import bytes_for_transformers
from lab.train import accelerator_for, train

LENGTHS = [96, 160]
BYTES_OF = bytes_for_transformers()


class Counting(Finder):
    """Also counts the inputs that it was given."""

    inputs = 0

    def forward(self, input_ids, use_cache=None):
        self.inputs += len(input_ids)
        return super().forward(input_ids)


def session(folder, *tasks: Asked, voice=BYTES, identity="a model", limit=None, lengths=LENGTHS) -> Session:
    return Session(Questions(tasks, lengths, voice), Store(folder), identity, limit)


def asked(folder, model, *tasks: Asked, **how) -> Session:
    made = session(folder, *tasks, **how)
    made.ask(model, prefix_consistent=False, batch_tokens=512)
    return made


def shares(found: Session) -> dict[tuple, tuple]:
    return {
        (point.probe, point.metric, point.length): (point.value, point.count)
        for point in found.points()
        if point.metric.startswith("exact")
    }


# Shares and intervals


def test_a_model_that_forgets_after_60_tokens_answers_what_lies_nearer(tmp_path):
    grid, niah = Asked("grid", 3, 3), Asked("niah", 4, options={"depth": 1.0})
    found = shares(asked(tmp_path, Finder(5, 60), grid, niah, Asked("passkey", 4, options={"depth": 0.0})))
    for length in LENGTHS:
        assert found["niah", "exact", length] == (1, 4) and found["passkey", "exact", length] == (0, 4)
        room = length - 11 - 3 * 12
        near = [12 * (3 - n) + room - round(depth * room) <= 60 for n, depth in enumerate((0, 0.5, 1))]
        assert [found["grid", f"exact at depth {d}", length] for d in ("0.00", "0.50", "1.00")] == [
            (float(one), 3) for one in near
        ]
        assert found["grid", "exact", length] == (pytest.approx(sum(near) / 3), 9)


def test_answers_to_one_haystack_are_one_draw(tmp_path):
    """All right in 3 haystacks of 3 needles: Wilson's interval of 3, not of 9; of one depth it is of 3 too."""
    found = {p.metric: p for p in asked(tmp_path, Finder(5), Asked("grid", 3, 3), lengths=[96]).points()}
    wilson = 1 - 1.959964**2 / (3 + 1.959964**2)
    assert found["exact"].low == pytest.approx(wilson, abs=1e-6) and found["exact"].high == 1
    assert found["exact at depth 0.50"].low == pytest.approx(wilson, abs=1e-6)


def test_nats_are_a_mean_over_the_tokens_of_the_answers(tmp_path):
    """A clueless model loses log 256 at each of them."""
    found = {p.metric: p for p in asked(tmp_path, Finder(200), Asked("passkey", 3), lengths=[96]).points()}
    assert found["answer nats"].value == pytest.approx(np.log(256), abs=1e-6)


def test_both_ways_of_a_grid_answer_alike(tmp_path):
    kept = []
    for name, steady in (("fast", True), ("naive", False)):
        one = session(tmp_path / name, Asked("grid", 2, 3))
        one.ask(own("rope"), prefix_consistent=steady)
        kept.append(np.concatenate([x for length in LENGTHS for x in one.kept(Asked("grid", 2, 3), length)]))
    assert kept[0].shape == (2 * 2 * 3, 3) and kept[0] == pytest.approx(kept[1], abs=1e-4)


# What is kept


def test_what_is_answered_is_not_asked_again_and_what_is_not_is(tmp_path):
    tasks = Asked("niah", 5), Asked("grid", 2, 3)
    first = Counting(5)
    whole = shares(asked(tmp_path / "whole", first, *tasks))
    assert first.inputs == 2 * (5 + 2 * 3)
    half = Counting(5)
    asked(tmp_path / "half", half, Asked("niah", 3))
    lines = (tmp_path / "half/0.jsonl").read_text().splitlines()
    (tmp_path / "half/0.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])  # killed in the last answer
    rest = Counting(5)
    assert shares(asked(tmp_path / "half", rest, *tasks)) == whole
    assert rest.inputs == first.inputs - 6 + 1
    again = Counting(5)
    assert shares(asked(tmp_path / "half", again, *tasks)) == whole and again.inputs == 0


@pytest.mark.parametrize(
    "other",
    [
        {"identity": "another"},
        {"voice": in_bytes(start=(7,))},
        {"voice": in_bytes(np.arange(2000) % 90 + 30)},
        {"lengths": [98]},
        {"options": {"depth": 0.5}},
    ],
    ids=["model", "start", "haystack", "length", "options"],
)
def test_another_model_voice_haystack_length_or_option_is_asked_anew(tmp_path, other):
    other = dict(other)
    task = Asked("niah", 2, options=other.pop("options", {}))
    asked(tmp_path, Finder(5), Asked("niah", 2), lengths=[96])
    model = Counting(5)
    asked(tmp_path, model, task, **{"lengths": [96], **other})
    assert model.inputs == 2


def test_two_processes_ask_what_one_does(tmp_path):
    tasks = Asked("niah", 5), Asked("grid", 2, 2)
    one = asked(tmp_path / "one", Finder(5, 60), *tasks)
    for process in range(2):
        part = Session(Questions(tasks, LENGTHS, BYTES), Store(tmp_path / "two", process), "a model")
        part.ask(Finder(5, 60), prefix_consistent=False, mine=slice(process, None, 2))
    assert list(part.points()) == list(one.points())


def test_beyond_its_limit_a_model_is_not_asked(tmp_path):
    model = Counting(5)
    found = asked(tmp_path, model, Asked("niah", 2), limit=100)
    assert model.inputs == 2
    [*_, beyond] = found.points()
    assert beyond == Point("niah", "exact", 160, None, None, None, 0, "takes at most 100 tokens")
    [shown, _] = retention(Asked("niah", 2), [found.hits(Asked("niah", 2))], 96)
    assert shown.length == 160


def test_what_cannot_fit_is_said_before_anything_runs():
    with pytest.raises(EvalError, match="grid of 11 depths: 96 tokens are too few: facts of 132"):
        Questions([Asked("grid")], LENGTHS, BYTES)


class Broken(Finder):
    def logits(self, ids):
        return super().logits(ids) * float("nan")


def test_logits_that_are_no_numbers_are_said_and_not_kept(tmp_path):
    with pytest.raises(EvalError) as caught:
        asked(tmp_path, Broken(5), Asked("niah", 2), lengths=[96])
    assert str(caught.value) == "niah, sample 0 of 96 tokens: the model's logits are not finite at an answer"
    assert not tmp_path.joinpath("0.jsonl").exists()


def test_the_forward_passes_that_are_to_come_are_those_that_come(tmp_path):
    one = session(tmp_path, Asked("niah", 5), Asked("grid", 2, 3))
    naive = one.runs(one.missing(), False)
    assert len(naive) == 2 * (5 + 2 * 3) and sum(run.length for run in naive) == 11 * (95 + 159)
    forked = one.runs(one.missing(), True)
    # A grid's question and answer have 11 tokens, of which 10 are run after the haystack.
    assert sum(run.length for run in forked) == 5 * (95 + 159) + 2 * (85 + 149 + 2 * 3 * 10)
    one.ask(model := Counting(5), prefix_consistent=False)
    assert model.inputs == len(naive) and one.runs(one.missing(), False) == []


# How far


def test_answers_hold_as_far_as_their_share_is_shown_to():
    def hits(share: float, count: int = 200):
        return (np.arange(count) < share * count).astype(float), np.arange(count)

    task = Asked("niah", 200)
    [shown, seen] = retention(task, [{64: hits(1.0), 128: hits(0.95), 256: hits(0.87), 512: hits(0.5)}], 64)
    # 0.87 is above 0.85 and its interval is not.
    assert (shown.metric, shown.value, shown.length, shown.count) == ("L_ret(0.85) niah", 128, 512, 200)
    assert (seen.metric, seen.value) == ("L_ret(0.85) niah, by the means alone", 256)
    [two, _] = retention(task, [{64: hits(1.0), 128: hits(1.0)}, {64: hits(1.0), 128: hits(0.0)}], 64)
    assert two.value == 64 and two.count == 400
    assert not list(retention(task, [{64: hits(1.0)}], 128))
    assert not list(retention(Asked("niah-no-needle"), [{64: hits(1.0)}], 64))


def test_rulers_rule_is_on_the_mean_and_says_whose_threshold_it_is():
    def exact(probe, length, value):
        return Point(probe, "exact", length, value, None, None, 9)

    tasks = [Asked("niah"), Asked("passkey"), Asked("passkey-no-needle")]
    found = [exact("niah", 64, 1.0), exact("passkey", 64, 0.9), exact("niah", 128, 1.0), exact("passkey", 128, 0.72)]
    found += [exact("niah", 256, 1.0), exact("passkey", 256, 0.71), exact("passkey-no-needle", 64, 0.0)]
    assert by_ruler(found, tasks) == (
        "RULER's rule, the longest length whose mean accuracy is above 85.6 %: 128. That threshold is of RULER's 13 "
        "tasks; this is a mean of others (niah, passkey)."
    )
    assert by_ruler(found, tasks[:1]) is None


def test_key_tokens_are_the_references_and_losses_the_models(tmp_path):
    """By hand: of 4 scored tokens the long context takes the reference from 5 to 1 nats at the second and the last."""
    plan = Plan([Document("d", torch.arange(9))], [4, 8], [PROTOCOLS["equal"]])
    store = Store(tmp_path)
    losses = {
        ("ours", 4): [3.0, 1.0, 2.0, 6.0],
        ("ours", 8): [3.0, 0.5, 2.0, 4.0],
        ("theirs", 4): [5.0, 5.0, 2.0, 5.0],
        ("theirs", 8): [4.0, 1.0, 1.0, 1.0],
    }
    store.put({plan.key(who, plan.documents[0], ("equal", n)): np.array(x) for (who, n), x in losses.items()})
    sums, counts = by_key_tokens(Measured(plan, store, "ours"), Measured(plan, store, "theirs"))
    assert sums.tolist() == [[7.0, 4.5]] and counts.tolist() == [[2, 2]]


# python -m eval


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    words = "the of and a model reads on past its length where positions end then far near".split()
    draw = np.random.default_rng(0)
    for n in range(3):
        (folder / f"{n}.txt").write_text(" ".join(draw.choice(words, 200)))
    return folder


def saved(folder, seed: int = 0, **more):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"bos_token_id": None, "eos_token_id": 0}
    config = LlamaConfig(vocab_size=256, **sizes, **special, initializer_range=0.3, max_position_embeddings=256, **more)
    LlamaForCausalLM(config).save_pretrained(folder)
    bytes_for_transformers().save_pretrained(folder)
    return folder


@pytest.fixture
def call(monkeypatch, capsys, texts):
    def run(model, out, *words):
        files = [str(path) for path in sorted(texts.iterdir())]
        common = ["--lengths", "256,512", "--data", *files, "--protocols", "equal", "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", ["eval", str(model), *common, "--out", str(out), *map(str, words)])
        return program.main(), capsys.readouterr()

    return run


TASKS = "--tasks", "passkey,niah,grid", "--count", 2, "--depths", 2


def test_tasks_of_a_pretrained_model_from_plan_to_figures(tmp_path, call, monkeypatch):
    model = saved(tmp_path / "model")
    code, said = call(model, tmp_path / "out", *TASKS, "--dry-run")
    assert code == 0 and "2 × passkey, 2 × niah, 2 × grid at 256, 512 tokens: 20 forward passes" in said.err
    assert not (tmp_path / "out").exists()
    code, said = call(model, tmp_path / "out", *TASKS)
    assert code == 0
    assert "What stands above for the training length is 256 tokens" in said.out
    assert "RULER's rule" in said.out and "grid (exact at depth 1.00)" in said.out
    rows = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    assert {(r["probe"], r["length"]) for r in rows if r["metric"] == "exact"} == {
        (task, length) for task in ("passkey", "niah", "grid") for length in (256, 512)
    }
    assert {"passkey.png", "niah.png", "grid.png", "grid-by-depth.png"} <= {p.name for p in tmp_path.glob("out/*.png")}
    monkeypatch.setattr(eval.asked, "answers", lambda *_: pytest.fail("asked again"))
    code, again = call(model, tmp_path / "out", *TASKS)
    assert code == 0 and again.out == said.out and "all is answered" in again.err


def test_samples_begin_as_windows_do_and_haystacks_hold_no_beginning():
    documents = [
        Document("d", torch.tensor([9, *b"one text."])),
        Document("e", torch.tensor([9, *b" and more of it."])),
    ]
    for bos, begun in ((9, (9,)), (None, ())):
        voice = program.voice_of(documents, BYTES_OF, bos)
        assert voice.start == begun and bytes(voice.encode(" 12Ä")) == " 12Ä".encode()
        assert (9 in voice.haystack) == (bos is None)
    assert bytes(program.voice_of(documents, BYTES_OF, 9).haystack.tolist()) == b"one text. and more of it."


def test_a_model_whose_angles_follow_the_length_is_asked_each_question_by_itself(tmp_path, call):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = saved(tmp_path / "model", rope_parameters=rope)
    _, said = call(model, tmp_path / "out", "--tasks", "grid", "--count", 2, "--depths", 3, "--dry-run")
    assert "2 × grid at 256, 512 tokens: 12 forward passes" in said.err  # 2 haystacks × 3 depths × 2 lengths
    plain = saved(tmp_path / "plain")
    _, said = call(plain, tmp_path / "out", "--tasks", "grid", "--count", 2, "--depths", 3, "--dry-run")
    assert "16 forward passes" in said.err  # with a reading of each haystack, and questions that are short


def test_key_tokens_are_chosen_by_another_model(tmp_path, call):
    ours, theirs = saved(tmp_path / "ours"), saved(tmp_path / "theirs", 1)
    code, said = call(ours, tmp_path / "a", "--reference", tmp_path / "b")
    assert code == 1 and "holds no losses" in said.err
    assert call(theirs, tmp_path / "b")[0] == 0
    code, said = call(ours, tmp_path / "a", "--reference", tmp_path / "b")
    assert code == 0 and "key tokens (nats)" in said.out
    code, said = call(ours, tmp_path / "a", "--reference", tmp_path / "b", "--documents", 2)
    assert code == 0
    code, said = call(ours, tmp_path / "a", "--reference", tmp_path / "b", "--lengths", "128,600")
    assert code == 1 and "has no losses of these tokens at 128 and 600" in said.err
    code, said = call(ours, tmp_path / "a", "--reference", tmp_path / "b", "--whole")
    assert code == 1 and said.err.endswith(
        "measure that model first, with the same --data, --lengths, --documents, --whole and --bos, and the same "
        "tokenizer\n"
    )
    assert call(theirs, tmp_path / "b", "--whole")[0] == 0
    code, said = call(ours, tmp_path / "a", "--reference", tmp_path / "b", "--whole")
    assert code == 0 and "key tokens (nats)" in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tasks", "passky"), "no task 'passky'; there are grid, passkey,"),
        (("--tasks", "grid", "--depths", "1"), "1 depth is no grid: 2 or more"),
    ],
)
def test_a_call_that_cannot_be_carried_out_exits_with_2(tmp_path, call, capsys, words, said):
    with pytest.raises(SystemExit) as end:
        call(tmp_path, tmp_path / "out", *words)
    assert end.value.code == 2 and said in capsys.readouterr().err


def test_a_train_length_that_is_not_measured_is_refused(tmp_path, call):
    code, said = call(saved(tmp_path / "model"), tmp_path / "out", "--train-length", 300)
    assert code == 1 and said.err.splitlines()[-1] == "eval: --train-length 300 is not measured: add it to --lengths"


# Runs of the lab


def test_a_run_is_asked_its_tasks_and_says_how_far_it_reads(tmp_path, monkeypatch):
    tasks = "eval.tasks=[{task: niah, count: 3}, {task: grid, count: 2, depths: 2}]"
    run = tiny(tmp_path, "train.length=64", "train.steps=2", "eval.lengths=[64,128]", "eval.documents=2", tasks)
    train(run)
    said = []
    rows = list(evaluate(run, accelerator_for(run), say=said.append))
    assert read(run.path / "rows.jsonl") == rows
    assert said[1] == "rope: 3 × niah, 2 × grid at 64, 128 tokens: 18 forward passes, " + said[1].rpartition(", ")[2]
    exact = {(r.probe, r.metric, r.length): r.count for r in rows if r.metric.startswith("exact")}
    assert exact == {
        key: count
        for length in (64, 128)
        for key, count in {
            ("niah", "exact", length): 3,
            ("grid", "exact", length): 4,
            ("grid", "exact at depth 0.00", length): 2,
            ("grid", "exact at depth 1.00", length): 2,
        }.items()
    }
    rules = "L_ppl(0.02)", "L_gain", "L_ret(0.85) niah", "L_ret(0.85) grid"
    ends = "", ", by the means alone"
    assert [r.metric for r in rows if r.probe == "reach"] == [rule + end for rule in rules for end in ends]
    monkeypatch.setattr(eval.asked, "answers", lambda *_: pytest.fail("asked again"))
    assert list(evaluate(run, accelerator_for(run))) == rows


def test_the_table_says_how_far_each_reads():
    rows = [
        row(length=512, value=128, probe="reach", metric="L_ppl(0.02)", low=128, high=512),
        row(length=512, value=256, probe="reach", metric="L_ppl(0.02), by the means alone", low=128, high=512),
        row("alibi", 512, 512, probe="reach", metric="L_gain"),
        row("alibi", 512, 512, probe="reach", metric="L_gain, by the means alone"),
        row(length=256, value=64, probe="reach", metric="L_ppl(0.02)"),  # of a shorter measurement
    ]
    assert markdown(rows, 64) == (
        "| reads on to, in tokens | shown | by the means | 95 % interval |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| rope, L_ppl(0.02) | 128 | 256 | 128–512 |\n"
        "| alibi, L_gain | 512 | 512 | – |\n"
        "\n"
        "L_ppl: the longest length at which a token costs at most so many nats more than at the training length.  \n"
        "L_gain: the longest length at which a token costs less than at half of it.  \n"
        "shown: with the bound of its interval, as all shorter ones do; 0: not even the shortest measured.  \n"
    )
