"""lm-eval as an extra: a tokenizer whose ids are bytes, and, where it is installed, its numbers beside our own."""

import json
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import tiny
from transformers import AutoTokenizer

import lab.lmeval
from eval.score import score
from lab import LabError
from lab.evaluate import trained_model
from lab.lmeval import ask, rows_of
from lab.rows import Row, read
from lab.tokenizer import bytes_for_transformers
from lab.train import train

installed = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed: it is an extra")

BYTES = bytes_for_transformers()

# The tokenizer


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_are_the_bytes_of_a_text_and_give_it_back(text):
    ids = BYTES(text)["input_ids"]
    assert ids == list(text.encode()) and BYTES.decode(ids) == text


def test_every_byte_has_an_id_and_letters_that_stand_for_bytes_stand_for_themselves(tmp_path):
    text = "".join(map(chr, range(0x180))) + "  don't\r\n\t <|end|> "
    assert BYTES(text)["input_ids"] == list(text.encode())
    assert len(BYTES) == BYTES.vocab_size == 256 and BYTES.eos_token_id == BYTES.pad_token_id == 0
    BYTES.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(text)["input_ids"] == list(text.encode()) and again.eos_token_id == 0


# Rows


def test_results_become_rows_with_intervals_from_standard_errors(monkeypatch):
    found = {
        "length": 64,
        "results": {
            "one": {
                "alias": "one",
                "acc,none": 0.5,
                "acc_stderr,none": 0.1,
                "f1,strict": 0.25,
                "f1_stderr,strict": "-",
            }
        },
        "versions": {"one": 2.0},
        "n-samples": {"one": {"original": 90, "effective": 26}},
    }
    blank = Row("r", "rope", "rope", 0, "", "", 0, None, 0)
    monkeypatch.setattr(lab.lmeval, "version", lambda name: "0.0")
    acc, f1 = rows_of(found, blank)
    assert acc == Row(
        "r",
        "rope",
        "rope",
        0,
        "lm-eval/one",
        "acc",
        64,
        0.5,
        26,
        "lm-eval 0.0, version 2.0 of the task",
        pytest.approx(0.304),
        pytest.approx(0.696),
    )
    assert (f1.metric, f1.value, f1.low, f1.high) == ("f1, strict", 0.25, None, None)


def test_without_it_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(lab.lmeval, "find_spec", lambda name: None)
    with pytest.raises(LabError) as caught:
        ask(str(tmp_path), ["arc_easy"])
    assert str(caught.value) == 'lm-eval is not installed: pip install -e ".[lm-eval]"' and caught.value.code == 2


# With lm-eval itself


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lmeval")
    run = tiny(folder, "train.length=64", "train.steps=2")
    train(run)
    return run


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A task of one's own: which of three endings is likeliest, each two words long."""
    folder = tmp_path_factory.mktemp("tasks")
    draw = torch.Generator().manual_seed(0)
    words = "the of and a model reads on past its length where positions end".split()

    def some(count):
        return " ".join(words[n] for n in torch.randint(len(words), (count,), generator=draw))

    docs = [{"text": some(6), "ends": [f" {some(2)}" for _ in range(3)], "right": n % 3} for n in range(12)]
    (folder / "letters.json").write_text("\n".join(map(json.dumps, docs)))
    (folder / "letters.yaml").write_text(
        f"task: letters\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / 'letters.json'}}}}}\n"
        "test_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{text}}"\ndoc_to_target: "{{right}}"\ndoc_to_choice: "{{ends}}"\n'
        "metric_list: [{metric: acc}]\nmetadata: {version: 3}\n"
    )
    return folder, docs


def likeliest(model, doc) -> int:
    """The ending that costs the fewest nats, by our own losses."""
    costs = []
    for end in doc["ends"]:
        ids = torch.tensor([list((doc["text"] + end).encode())])
        costs.append(float(score(model, ids[:, :-1], ids[:, 1:], len(doc["text"].encode()) - 1).sum()))
    return costs.index(min(costs))


@installed
@pytest.mark.parametrize("scheme", [None, "rope-ntk factor=auto"])
def test_its_accuracy_is_that_of_endings_compared_by_our_own_losses(trained, letters, scheme):
    folder, docs = letters
    [row] = ask(str(trained.path), ["letters"], scheme=scheme, own=[folder])
    # Within the train length an automatic factor is 1, so both are plain RoPE.
    right = sum(likeliest(trained_model(trained), doc) == doc["right"] for doc in docs)
    assert row.value == pytest.approx(right / 12) and row.count == 12 and 0 < right < 12
    reach = 1.96 * (right / 12 * (1 - right / 12) / 11) ** 0.5
    assert row.low == pytest.approx(row.value - reach) and row.high == pytest.approx(row.value + reach)
    assert (row.probe, row.metric, row.length, row.scheme) == ("lm-eval/letters", "acc", 64, scheme or "rope")
    assert row in read(trained.path / "rows.jsonl")


@installed
def test_a_limit_and_a_length_are_kept(trained, letters):
    [row] = ask(str(trained.path), ["letters"], limit=5, length=32, own=[letters[0]])
    assert row.count == 5 and row.length == 32


@installed
@pytest.mark.slow  # lm-eval reads the descriptions of all its tasks first
def test_an_unknown_task_is_one_line(trained):
    with pytest.raises(LabError) as caught:
        ask(str(trained.path), ["lettrs"])
    assert str(caught.value) == "lm-eval knows no task lettrs; `lm-eval ls tasks` lists those that it has"


@installed
@pytest.mark.slow  # lm-eval reads the descriptions of all its tasks first
def test_data_that_cannot_be_had_is_one_line(trained):
    with pytest.raises(LabError, match="^lm-eval arc_easy: .*Hub") as caught:
        ask(str(trained.path), ["arc_easy"])
    assert "\n" not in str(caught.value)
