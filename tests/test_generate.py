"""`lab generate`: a run goes on from a prompt; what it writes, when, and what it says where it cannot."""

import sys

import pytest
import torch
from tiny_runs import config, launch, tiny
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lab import LabError, cli
from lab.evaluate import trained_model
from lab.generate import Stream, generate, spec_of
from lab.model import Decoder
from lab.tokenizer import as_bytes, tokenizer_of
from lab.train import train

PROMPT = "the end of a model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    config(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    run = tiny(folder, "train.steps=150", "train.lr=0.01")  # enough for a text that does not repeat one letter
    train(run)
    return run


@pytest.fixture(scope="module")
def learned(folder):
    """A run whose encoding reads 64 tokens and no more."""
    run = tiny(folder, "name=learned", "model.positional=learned", "train.length=64")
    train(run)
    return run


def written(run, prompt: str = PROMPT, **how) -> str:
    parts = []
    generate(run, prompt, parts.append, **{"tokens": 12} | how)
    return "".join(parts)


def refusal(run, prompt: str = PROMPT, **how) -> str:
    with pytest.raises(LabError) as caught:
        written(run, prompt, **how)
    assert caught.value.code == 2
    return str(caught.value)


@torch.no_grad()
def likeliest(run, tokens: int, prompt: str = PROMPT) -> str:
    """Greedy, by full forwards."""
    model, ids = trained_model(run), list(prompt.encode())
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return bytes(ids).decode(errors="replace")


# what is written


def test_at_temperature_0_it_is_the_prompt_and_the_likeliest_bytes(run):
    assert written(run, temperature=0) == written(run, top_k=1) == likeliest(run, 12)
    assert len(written(run, temperature=0, tokens=1).encode()) == len(PROMPT) + 1


def test_a_seed_draws_its_text_and_leaves_other_draws_alone(run):
    torch.manual_seed(5)
    first = written(run, seed=1, tokens=40)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), after)
    assert written(run, seed=1, tokens=40) == first != written(run, seed=2, tokens=40)
    assert first.startswith(PROMPT)


def test_a_high_temperature_and_a_small_top_k_bound_each_other(run):
    wild, tame = (written(run, temperature=100, top_k=k, tokens=60) for k in (None, 2))
    assert len(set(tame[len(PROMPT) :])) < len(set(wild[len(PROMPT) :]))


def test_it_comes_byte_by_byte(run, monkeypatch):
    """Each piece is written before the model is asked for the next."""
    asked, parts, forward = [0], [], Decoder.forward

    def counted(*inputs, **more):
        asked[0] += 1
        return forward(*inputs, **more)

    monkeypatch.setattr(Decoder, "forward", counted)
    generate(run, PROMPT, lambda text: parts.append((text, asked[0])), tokens=6, temperature=0)
    assert parts[0] == (PROMPT, 0)
    assert [count for text, count in parts[1:] if text] == [1, 2, 3, 4, 5, 6]


def test_it_ends_where_the_model_ends_the_text(run, monkeypatch):
    """The end is what the tokenizer says it is: here the third byte that would have come."""
    whole = likeliest(run, 12)
    end = whole[len(PROMPT) + 2]
    ended = as_bytes()
    monkeypatch.setattr("lab.generate.tokenizer_of", lambda name: type(ended)(**vars(ended) | {"eos": ord(end)}))
    assert written(run, temperature=0) == whole[: whole.index(end, len(PROMPT))]


# pieces of text


def pieces(tokenizer, text: str) -> list[str]:
    """What is written of a text whose ids come one by one."""
    parts: list[str] = []
    stream = Stream(tokenizer, parts.append)
    stream.put(torch.zeros(1, 3, dtype=torch.int64))
    for number in tokenizer.encode([text])[0].tolist():
        stream.put(torch.tensor([number]))
    stream.end()
    return parts


def test_no_character_is_written_in_part():
    assert pieces(as_bytes(), "aé€😀b") == ["a", "é", "€", "😀", "b", ""]


def test_what_is_no_character_is_written_as_such_in_the_end():
    parts: list[str] = []
    stream = Stream(as_bytes(), parts.append)
    for token in ([7], [0xE2], [0x82], [0x41], [0xFF], [0x42], [0xC3]):
        stream.put(torch.tensor(token))
    assert parts == ["\ufffdA", "\ufffdB"]
    stream.end()
    assert parts[2:] == ["\ufffd"]


@pytest.fixture
def words(tmp_path) -> str:
    """The folder of a tokenizer of byte pairs, whose tokens may end inside a character."""
    raw = Raw(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    raw.train_from_iterator(["the model of the end and the beginning"] * 3, trainer)
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>").save_pretrained(tmp_path / "words")
    return str(tmp_path / "words")


@pytest.fixture
def stems(tmp_path) -> str:
    """The folder of a tokenizer that writes no blank before a text's first word, so that a word alone has none."""
    raw = Raw(models.WordPiece({"[UNK]": 0, "[SEP]": 1, "the": 2, "end": 3, "##ing": 4, ".": 5}, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    PreTrainedTokenizerFast(tokenizer_object=raw, sep_token="[SEP]").save_pretrained(tmp_path / "stems")
    return str(tmp_path / "stems")


@pytest.mark.parametrize("text", ["the model of the end", "naïve → 😀, and the\nend  "])
def test_byte_pairs_come_whole(words, text):
    tokenizer = tokenizer_of(words)
    parts = pieces(tokenizer, text)
    assert "".join(parts) == text and "\ufffd" not in parts
    assert len([part for part in parts if part]) > len(text) / 4


def test_blanks_between_words_are_kept(stems):
    assert pieces(tokenizer_of(stems), "the ending the end.") == ["the", " end", "ing", " the", " end", ".", ""]


def test_a_tokenizer_of_words_generates_too(folder, words):
    run = tiny(folder, "name=words", f"data.tokenizer={words}", "train.steps=2")
    train(run)
    assert written(run).startswith(PROMPT)


# other encodings


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("rope", "rope"),
        ("rope-ntk factor=auto", {"kind": "rope-ntk", "factor": "auto"}),
        ("self-extend group=4 window=8", {"kind": "self-extend", "group": 4, "window": 8}),
        ("{kind: rope-linear, factor: 2}", {"kind": "rope-linear", "factor": 2}),
        ("[rope, {kind: window, window: 8}]", ["rope", {"kind": "window", "window": 8}]),
    ],
)
def test_an_encoding_is_written_in_a_line(text, spec):
    assert spec_of(text) == spec


def test_another_encoding_writes_what_its_full_forwards_say(run):
    plain = written(run, temperature=0, tokens=40)
    for scheme in ("rope-ntk factor=auto", "[rope, {kind: window, window: 4}]", "nope"):
        assert written(run, temperature=0, tokens=40, scheme=scheme).startswith(PROMPT)
    assert written(run, temperature=0, tokens=40, scheme="rope-linear factor=1") == plain
    assert written(run, temperature=0, tokens=40, scheme="rope-linear factor=40") != plain


def test_an_encoding_that_nothing_has_trained_is_refused(run):
    assert refusal(run, scheme="relative") == (
        "--scheme: relative has weights that this run never trained: table. `lab train` a run of its own with it"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ropee", "--scheme: unknown encoding `ropee`: did you mean rope?"),
        ("rope-ntk", "--scheme: rope-ntk needs `factor` (a number or auto): write {kind: rope-ntk, factor: …}"),
        ("rope-ntk factor", "`factor` is no override: write section.key=value"),
        ("{kind: rope", "--scheme: `{kind: rope` is not readable as YAML"),
        ("", "--scheme: an encoding is a name"),
    ],
)
def test_an_encoding_that_is_none_is_refused(run, text, said):
    assert said in refusal(run, scheme=text)


# what cannot be


def test_an_empty_prompt_is_refused(run):
    assert refusal(run, "") == 'the prompt is empty: write what the text begins with, --prompt "def "'


def test_a_prompt_longer_than_a_learned_table_is_refused(learned):
    assert refusal(learned, "x" * 65) == (
        "the prompt has 65 tokens and learned takes at most 64: shorten it, or put another encoding in with --scheme"
    )


def test_a_table_that_ends_ends_the_text(learned):
    assert len(written(learned, "x" * 60, tokens=100, temperature=0)) == 65  # the last byte is not read


@pytest.fixture
def call(monkeypatch, capsys):
    """`lab generate …` in this process: (exit code, stdout, stderr)."""

    def call(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab", "generate", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capsys.readouterr()

    return call


def test_a_run_that_is_none_or_not_trained_is_told_so(folder, run, call):
    code, out, err = call(folder / "gone", "--prompt", "a")
    assert (code, out) == (2, "") and err.endswith("gone is no run: it has no config.yaml. `lab train` makes one\n")
    (folder / "runs/half").mkdir()
    (folder / "runs/half/config.yaml").write_text((run.path / "config.yaml").read_text())
    code, out, err = call(folder / "runs/half", "--prompt", "a")
    assert (code, out) == (1, "") and "half holds no trained model: run `lab train`" in err


@pytest.mark.parametrize("words", [[], ["--tokens", "0"], ["--temperature", "-1"], ["--top-k", "0"], ["--seed", "-1"]])
def test_a_call_that_cannot_be_carried_out_exits_with_2(run, call, words):
    code, out, err = call(run.path, *(["--prompt", "a", *words] if words else []))
    assert code == 2 and out == "" and "Traceback" not in err


def test_the_command_writes_the_text_and_nothing_else(run):
    done = launch("generate", run.path, "--prompt", PROMPT, "--temperature", "0", "--tokens", "12")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == likeliest(run, 12) + "\n"


def test_the_command_hands_its_options_on(run, call):
    options = ["--tokens", 30, "--temperature", 1.5, "--top-k", 20, "--seed", 3, "--scheme", "rope-linear factor=2"]
    code, out, err = call(run.path, "--prompt", PROMPT, *options)
    wanted = written(run, tokens=30, temperature=1.5, top_k=20, seed=3, scheme="rope-linear factor=2")
    assert (code, out, err) == (0, wanted + "\n", "")
