"""Texts: one first token and no more, every byte counted once, nothing left out in silence; what a model is."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_llm
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_models import llama

from eval import EvalError
from eval.load import begins_with, identity_of, limit_of, load
from eval.texts import bytes_of, document, first_token, long_enough, read

BEGINS, PLAIN = tiny_llm.tokenizer(), tiny_llm.tokenizer(begins=False)
TEXT = "naïve 長い 文脈 😀 the end"


# Tokens and their bytes


@pytest.mark.parametrize("words", [BEGINS, PLAIN])
def test_a_document_begins_as_it_is_told_once(words):
    plain = PLAIN(TEXT)["input_ids"]
    assert document("a", TEXT, words, 0).ids.tolist() == [0, *plain]
    assert document("a", TEXT, words, None).ids.tolist() == plain
    assert document("a", "", words, 0).ids.tolist() == [0] and document("a", "", words, None).ids.tolist() == []
    assert document("a", "", words, None).ids.dtype == torch.int64


def test_an_end_that_a_tokenizer_adds_is_not_part_of_a_text():
    words = tiny_llm.tokenizer()
    from tokenizers import processors

    ends = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    words.backend_tokenizer.post_processor = ends
    assert words("the end")["input_ids"][-1] == 1
    assert document("a", "the end", words, 0).ids.tolist() == document("a", "the end", BEGINS, 0).ids.tolist()


@pytest.mark.parametrize("text", ["<s> the", "the </s>", "the </s> end <s>"])
def test_what_a_text_spells_out_is_text(text):
    made = document("a", text, BEGINS, 0)
    assert not {0, 1} & set(made.ids[1:].tolist()) and made.bytes.sum() == len(text)
    assert PLAIN.decode(made.ids[1:]) == text


@given(st.text(max_size=30))
def test_every_byte_of_a_text_is_counted_once(text):
    made = document("a", text, BEGINS, 0)
    assert len(made.bytes) == len(made.ids) and made.bytes.sum() == len(text.encode("utf-8", "surrogatepass"))
    assert made.bytes[0] == 0 and (made.bytes >= 0).all()


def test_bytes_of_tokens_by_hand():
    spans = [(0, 2), (2, 3), (2, 3), (2, 3), (4, 5)]  # the third character is split over three tokens; one lies between
    assert bytes_of("aé長 b", spans).tolist() == [3, 3, 0, 0, 2]
    assert bytes_of("", []).tolist() == []
    made = document("a", "😀", PLAIN, None)
    assert len(made.ids) == 4 and made.bytes.tolist() == [4, 0, 0, 0]


def test_of_a_tokenizer_without_spans_bytes_are_not_known():
    class Slow:
        is_fast, bos_token_id, eos_token_id = False, 0, 1

        def __call__(self, text, return_offsets_mapping=False, **_):
            assert not return_offsets_mapping
            return {"input_ids": [0, 5, 6, 1]}

    made = document("a", "xy", Slow(), 0)
    assert made.ids.tolist() == [0, 5, 6] and made.bytes is None


# Files


def test_text_files_and_lines_of_json_are_documents(tmp_path):
    (tmp_path / "a.txt").write_text("eins")
    (tmp_path / "b.jsonl").write_text('{"text": "zwei"}\n\n{"text": "drei\\u2028", "x": 1}\n')
    assert list(read([tmp_path / "a.txt", tmp_path / "b.jsonl"], "text")) == [
        ("a.txt", "eins"),
        ("b.jsonl:1", "zwei"),
        ("b.jsonl:3", "drei\u2028"),
    ]


@pytest.mark.parametrize(
    "line, said",
    [
        ('{"text": "cut', "line 2, is not JSON"),
        ('{"body": "x", "id": 1}', "line 2, has no column text; it has body, id: pass --column"),
        ("[1]", "line 2, has no column text; it has no columns at all: pass --column"),
        ('{"text": null}', "line 2, has NoneType and no text in the column text: pass --column"),
    ],
)
def test_a_line_without_a_text_is_told_and_not_passed_over(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x"}) + "\n" + line + "\n")
    with pytest.raises(EvalError) as caught:
        list(read([tmp_path / "a.jsonl"], "text"))
    assert str(caught.value) == f"{tmp_path / 'a.jsonl'}, {said}"


def test_short_documents_are_counted():
    said = []
    texts = [(f"{n}", "the " * n) for n in (0, 1, 50, 9, 60, 70)]
    found = long_enough(texts, BEGINS, 0, 30, 2, said.append)
    assert [one.name for one in found] == ["50", "60"]
    (line,) = said
    assert line.startswith("3 of 5 documents are left out: they have 1 to ") and line.endswith(", and 30 are needed")
    said.clear()
    assert len(long_enough(texts, BEGINS, 0, 1, 99, said.append)) == 6 and not said
    with pytest.raises(EvalError, match="none of 6 documents has the 999 tokens that these lengths need; the longest"):
        long_enough(texts, BEGINS, 0, 999, 2, said.append)
    with pytest.raises(EvalError, match="none of 0 documents has the 9 tokens"):
        long_enough([], BEGINS, 0, 9, 2, said.append)


# The first token


def test_the_first_token_is_the_one_that_the_tokenizer_puts():
    assert first_token(BEGINS) == 0 and first_token(PLAIN) is None
    assert first_token(tiny_llm.tokenizer(begins=False, named=False)) is None


@pytest.mark.parametrize(
    "asked, words, bos, told",
    [
        ("auto", BEGINS, 0, False),
        ("no", BEGINS, None, False),
        ("yes", PLAIN, 0, False),
        ("auto", PLAIN, None, True),
        ("no", PLAIN, None, False),
    ],
)
def test_which_token_windows_begin_with(asked, words, bos, told):
    said, model = [], SimpleNamespace(config=SimpleNamespace(bos_token_id=0))
    assert begins_with(asked, model, words, said.append) == bos
    assert bool(said) == told
    if told:
        assert (
            "names a token that begins a text (0), its tokenizer puts none there" in said[0] and "--bos yes" in said[0]
        )


def test_a_token_that_is_not_there_cannot_be_asked_for():
    words, model = tiny_llm.tokenizer(begins=False, named=False), SimpleNamespace(config=SimpleNamespace())
    with pytest.raises(EvalError, match="this tokenizer has no token that begins a text"):
        begins_with("yes", model, words, print)
    assert begins_with("auto", model, words, pytest.fail) is None


# Models


def test_a_table_of_positions_is_a_limit_and_rotation_is_none(tmp_path):
    from transformers import GPTJConfig, GPTJForCausalLM, OPTConfig, OPTForCausalLM

    assert limit_of(load(str(tiny_llm.gpt2(tmp_path / "gpt2", 48)), "auto", "cpu")[0]) == 48
    assert limit_of(llama()) is None
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    opt = OPTForCausalLM(OPTConfig(ffn_dim=16, max_position_embeddings=24, word_embed_proj_dim=16, **small))
    assert limit_of(opt) == 24
    gptj = GPTJForCausalLM(GPTJConfig(n_embd=16, n_layer=1, n_head=2, n_positions=20, rotary_dim=4, vocab_size=9))
    assert limit_of(gptj) == 20
    for model, longest in ((opt, 24), (gptj, 20)):  # which is as far as it goes, and goes
        assert model(input_ids=torch.zeros(1, longest, dtype=torch.int64)).logits.isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.zeros(1, longest + 1, dtype=torch.int64))


def test_a_model_is_its_weights_its_settings_and_how_it_computes():
    model = llama()
    one = identity_of(model)
    assert identity_of(model) == one
    with torch.no_grad():
        model.lm_head.weight[3, 4] += 1e-3
    assert identity_of(model) != one
    with torch.no_grad():
        model.lm_head.weight[3, 4] -= 1e-3
    others = {one, identity_of(llama(rope_theta=5.0)), identity_of(model.to(torch.bfloat16))}
    assert len(others) == 3


def test_what_is_no_causal_language_model_does_not_load(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvalError, match="empty holds no config.json: give the folder of a model"):
        load(str(tmp_path / "empty"), "auto", "cpu")


def test_a_model_in_half_precision_is_read_in_fp32_on_a_cpu_unless_asked(tmp_path):
    path = str(tiny_llm.llama(tmp_path / "llama"))
    assert load(path, "auto", "cpu")[0].dtype == torch.float32
    assert load(path, "bfloat16", "cpu")[0].dtype == torch.bfloat16


def test_bytes_are_counted_for_long_texts_too():
    text = tiny_llm.text(3000)
    made = document("a", text, BEGINS, 0)
    assert made.bytes.sum() == len(text.encode()) and made.bytes.dtype == np.int64
