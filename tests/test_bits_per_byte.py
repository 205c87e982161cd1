"""Bits per byte of runs, whatever the tokenizer: the same bytes that `python -m eval` counts."""

import math
from pathlib import Path

import pytest
import tiny_llm
from tiny_runs import logged, tiny

from eval.plan import Document
from eval.texts import document
from lab.data import corpus
from lab.evaluate import evaluate, of_documents, plan_of
from lab.rows import Row
from lab.train import accelerator_for, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trained for two steps on tokens of a byte-level BPE, at texts that also hold letters of several bytes."""
    folder = tmp_path_factory.mktemp("bpe")
    words = tiny_llm.tokenizer(begins=False)
    words.save_pretrained(folder / "words")
    made = tiny(folder, f"data.tokenizer={folder / 'words'}", "train.steps=2", "train.eval_every=2", "train.length=8")
    for n in range(20):
        (folder / f"text/long{n}.txt").write_text(tiny_llm.text(30 + n, n))
    train(made)
    return made


@pytest.fixture(scope="module")
def rows(run) -> list[Row]:
    return list(evaluate(run, accelerator_for(run)))


@pytest.fixture(scope="module")
def scored(run) -> list[Document]:
    """What `python -m eval` makes of the same texts, cut to the tokens that are scored."""
    documents, words = plan_of(run, corpus(run.data)).documents, tiny_llm.tokenizer(begins=False)
    found = [document(one.name, Path(one.name).read_text(), words, None) for one in documents]
    for ours, theirs in zip(documents, found, strict=True):
        assert ours.ids.tolist() == theirs.ids[:33].tolist() and ours.bytes.tolist() == theirs.bytes[:33].tolist()
    return [Document(one.name, one.ids[17:33], one.bytes[17:33]) for one in found]


def test_bits_per_byte_are_nats_over_the_bytes_of_the_scored_tokens(rows, scored):
    total = sum(int(one.bytes.sum()) for one in scored)
    assert total != 3 * 16  # a token is no byte here
    nats = {row.length: row for row in rows if (row.probe, row.metric) == ("perplexity", "nats")}
    bits = {row.length: row for row in rows if (row.probe, row.metric) == ("perplexity", "bits per byte")}
    assert nats.keys() == bits.keys() == {8, 16, 32}
    for length, row in bits.items():
        assert row.count == total and nats[length].count == 3 * 16
        assert row.value == pytest.approx(nats[length].value * 3 * 16 / math.log(2) / total, rel=1e-6)
        assert row.low < row.value < row.high


def test_training_logs_them_beside_the_losses(run):
    last, documents = logged(run)[-1], of_documents(corpus(run.data), [8, 16, 32], 8).documents
    total = sum(int(one.bytes[17:33].sum()) for one in documents)
    for length in (8, 16, 32):
        nats = last[f"held_out_{length}"] * 8 * 16
        assert last[f"held_out_{length}_bits_per_byte"] == pytest.approx(nats / math.log(2) / total, rel=1e-6)
