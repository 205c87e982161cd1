"""Parallel text and sequence tasks: what is read, how it is cut into batches, trained on end to end, and refused."""

# N pairs · B rows · S source tokens · T target tokens

import gettext
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

from lab import LabError
from lab.compare import compare, parts_of
from lab.config import of_run, read
from lab.evaluate import evaluate
from lab.rows import read as rows_in
from lab.seq2seq import bpe, parallel, tasks
from lab.seq2seq.evaluate import scored, surprise, trained_model
from lab.seq2seq.pairs import Flat, Parallel, batches, order, padded, pair_corpus
from lab.seq2seq.settings import Pairs, Translation
from lab.seq2seq.tasks import drawn, ids_of, tasks_of, text_of
from lab.seq2seq.translate import translate
from lab.settings import Run
from lab.train import accelerator_for, train
from positional import Shape, build

ROOT = Path(__file__).parents[1]
MODEL = {"width": 16, "hidden": 32, "heads": 2, "encoder": {"layers": 1}, "decoder": {"layers": 1}}


def run_of(folder: Path, data: dict, **more) -> Translation:
    """A run whose settings are these, small and fast, everything below `folder`."""
    settings = {
        "name": "tiny",
        "folder": str(folder / "runs"),
        "track": "none",
        "data": {"cache": str(folder / "cache"), **data},
        "model": MODEL,
        "train": {"length": 12, "batch": 96, "steps": 4, "warmup": 2, "log_every": 1, "save_every": 2},
        "eval": {"problems": 3},
        **more,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings))
    return read(path)


def files(folder: Path, count: int = 60) -> list[str]:
    """Two files of short lines, the second with the words of the first in another language."""
    words = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "red": "rot", "green": "grün"}
    draw = np.random.default_rng(0)
    lines = [draw.choice(list(words), draw.integers(1, 6)).tolist() for _ in range(count)]
    paths = [folder / "text.en", folder / "text.de"]
    paths[0].write_text("".join(" ".join(line) + "\n" for line in lines))
    paths[1].write_text("".join(" ".join(words[word] for word in line) + "\n" for line in lines))
    return [str(path) for path in paths]


def catalogue(path: Path, messages: dict[str, str]) -> None:
    """A .mo file as gettext's manual lays it out: a header, two tables of lengths and offsets, the strings."""
    items = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    sides = [[pair[n].encode() for pair in items] for n in (0, 1)]
    at, tables, text = 28 + 16 * len(items), [], b""
    for side in sides:
        for one in side:
            tables.append(struct.pack("<II", len(one), at + len(text)))
            text += one + b"\0"
    path.parent.mkdir(parents=True)
    header = struct.pack("<7I", 0x950412DE, 0, len(items), 28, 28 + 8 * len(items), 0, 0)
    path.write_bytes(header + b"".join(tables) + text)


# what is read


def test_line_n_translates_line_n(tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    one.write_text("a  house\n\nno\u2028break\nonly here\na house\n")
    other.write_text("ein Haus\nleer\nkein Umbruch\n\nnoch eins\n")
    found = list(parallel.pairs(Pairs(source="text", path=[str(one), str(other)])))
    # Without what is empty on a side, and each source once.
    assert found == [("line 1", "a house", "ein Haus"), ("line 3", "no break", "kein Umbruch")]


def test_files_that_are_not_equally_long_are_refused(tmp_path):
    paths = files(tmp_path)
    with open(paths[1], "a") as file:
        file.write("eins\n")
    with pytest.raises(LabError) as caught:
        list(parallel.pairs(Pairs(source="text", path=paths)))
    assert str(caught.value) == (
        f"data.path: {paths[0]} has 60 lines and {paths[1]} has 61 lines: line n of one has to translate line n of the "
        "other"
    )


def test_files_that_are_missing_empty_or_no_text_are_named(tmp_path):
    path, other = files(tmp_path)
    (tmp_path / "empty").write_text(" \n\n")
    (tmp_path / "latin").write_bytes("grün\n".encode("latin-1"))
    for name, said in (
        ("gone", f"data.path: no file {tmp_path}/gone, seen from {Path.cwd()}"),
        ("empty", f"data.path: {tmp_path}/empty is empty: give a file with a sentence on each line"),
        ("latin", f"data.path: {tmp_path}/latin is not UTF-8 text (from byte 2): convert it"),
        ("", f"data.path: {tmp_path} is a folder: give one file for each language"),
    ):
        with pytest.raises(LabError) as caught:
            pair_corpus(Pairs(source="text", path=[path, str(tmp_path / name)], cache=str(tmp_path / "cache")))
        assert str(caught.value) == said
    assert not (tmp_path / "cache").exists()


def test_messages_of_catalogues_are_pairs(tmp_path):
    messages = {"Open file": "Datei öffnen", "menu\4Quit": "Beenden", "%d file\0%d files": "%d Datei\0%d Dateien"}
    catalogue(tmp_path / "de" / "LC_MESSAGES" / "mine.mo", messages)
    settings = Pairs(source="gettext", path=[str(tmp_path)])
    found = {pair[1:] for pair in parallel.pairs(settings)}
    assert found == {("Open file", "Datei öffnen"), ("Quit", "Beenden"), ("%d file", "%d Datei")}
    back = settings.model_copy(update={"languages": ("de", "en")})
    assert {pair[1:] for pair in parallel.pairs(back)} == {(b, a) for a, b in found}


def test_languages_and_catalogues_that_are_not_there_are_named(tmp_path):
    with pytest.raises(LabError, match=r"messages of programs are English: write \[en, fr\], not \[de, fr\]"):
        list(parallel.pairs(Pairs(source="gettext", path=[str(tmp_path)], languages=("de", "fr"))))
    with pytest.raises(LabError, match=r"no catalogue xx/LC_MESSAGES/\*.mo below"):
        list(parallel.pairs(Pairs(source="gettext", path=[str(tmp_path)], languages=("en", "xx"))))


def test_a_dataset_has_a_column_of_translations_or_one_for_each_language(tmp_path):
    both = [{"en": f"house {n}", "de": f"Haus {n}"} for n in range(3)]
    for name, rows in (("nested", [{"translation": row} for row in both]), ("flat", both)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = [pair[1:] for pair in parallel.pairs(Pairs(source="hub", name=str(tmp_path / name), streaming=True))]
        assert found == [(row["en"], row["de"]) for row in both]
    with pytest.raises(LabError, match="has no en and fr in its column `translation`, nor columns of these names"):
        list(parallel.pairs(Pairs(source="hub", name=str(tmp_path / "flat"), streaming=True, languages=("en", "fr"))))


def test_a_pair_s_side_hangs_on_its_source_alone(tmp_path):
    paths = files(tmp_path)
    found = parallel.sides(Pairs(source="text", path=paths, held_out=0.3))
    fewer = parallel.sides(Pairs(source="text", path=paths, held_out=0.3, pairs=20))
    assert {pair[1] for pair in fewer["held_out"]} <= {pair[1] for pair in found["held_out"]}
    assert not {pair[1] for pair in found["train"]} & {pair[1] for pair in found["held_out"]}


# tokens


def test_one_vocabulary_writes_both_languages():
    tokenizer = bpe.trained(["the house is green", "das Haus ist grün"] * 20, 300)
    assert len(tokenizer) <= 300
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    [ids] = bpe.encoded(tokenizer, ["das house ☃ </s>"])
    assert ids.count(2) == 1 and ids[-1] == 2  # a text that spells the end token does not end there
    assert tokenizer.decode(ids, skip_special_tokens=True) == "das house ☃ </s>"
    assert len(bpe.encoded(tokenizer, ["grün"])[0]) < 1 + len("grün".encode())  # it has learned to merge


def test_a_byte_is_a_token_and_both_ways_of_writing_it_agree():
    assert bpe.encoded(bpe.of_bytes(), ["zebra é"])[0] == ids_of("zebra é".encode()).tolist()
    assert text_of([*ids_of(b"abc").tolist(), 7, 8]) == b"abc"


@pytest.mark.parametrize(
    ("lacks", "why"), [("pad", "to fill up the shorter sources of a batch"), ("eos", "to end a target")]
)
def test_a_tokenizer_without_padding_or_end_is_refused(tmp_path, lacks, why):
    rules = Tokenizer(models.WordLevel({"<unk>": 0, "<x>": 1}, unk_token="<unk>"))
    special = {f"{name}_token": "<x>" for name in ("pad", "eos") if name != lacks}
    PreTrainedTokenizerFast(tokenizer_object=rules, **special).save_pretrained(tmp_path)
    with pytest.raises(LabError) as caught:
        bpe.read(tmp_path)
    assert str(caught.value) == (
        f"data.tokenizer: `{tmp_path}` has no {lacks} token {why}: add one to it, or write `bpe` to train one"
    )


def test_a_tokenizer_that_is_not_there_says_what_else_to_write(tmp_path):
    with pytest.raises(LabError) as caught:
        bpe.read(tmp_path)
    assert str(caught.value).startswith(f"data.tokenizer: no tokenizer `{tmp_path}`: ")
    assert str(caught.value).endswith(". Write `bpe` to train one, `bytes`, or a folder that holds one")


# batches


def side_of(lengths: list[tuple[int, int]]) -> Parallel:
    flats = []
    for column in zip(*lengths, strict=True):
        starts = np.cumsum([0, *column])
        flats.append(Flat(np.arange(3, 3 + starts[-1]), starts))
    return Parallel(*flats)


def test_batches_hold_every_pair_once_of_one_length_and_never_more_tokens():
    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 40, (300, 2)).tolist()
    cut = batches(side_of(lengths), longest=30, tokens=120, seed=0)
    kept = [n for n, pair in enumerate(lengths) if max(pair) <= 30]
    assert sorted(np.concatenate(cut).tolist()) == kept
    for numbers in cut:
        assert len(numbers) * max(max(lengths[n]) for n in numbers) <= 120
    spread = [max(lengths[n][1] for n in b) - min(lengths[n][1] for n in b) for b in cut]
    assert np.mean(spread) < 2
    assert sorted(order(len(cut), 0, 1).tolist()) == list(range(len(cut)))
    assert order(len(cut), 0, 1).tolist() != order(len(cut), 0, 2).tolist()


def test_pairs_that_are_all_too_long_say_how_long_the_shortest_is():
    with pytest.raises(LabError) as caught:
        batches(side_of([(9, 7), (3, 8)]), longest=5, tokens=100, seed=0)
    assert str(caught.value) == (
        "train.length: none of 2 pairs has at most 5 tokens on both sides, the shortest 8: raise it"
    )


def test_rows_are_padded_and_filled_up_with_rows_that_count_nothing():
    rows = [(np.array([5, 2]), np.array([6, 7, 2])), (np.array([5, 6, 2]), np.array([2]))]
    call = padded(rows, pad=0, share=4)
    assert call["input_ids"].tolist() == [[5, 2, 0], [5, 6, 2], [5, 2, 0], [5, 2, 0]]
    assert call["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]]
    assert call["labels"].tolist() == [[6, 7, 2], [2, -100, -100], [-100] * 3, [-100] * 3]


@pytest.mark.parametrize("task", ["copy", "reverse", "sort", "words"])
def test_problems_of_a_step_are_a_function_of_the_step_and_none_is_a_test_problem(tmp_path, task):
    run = run_of(tmp_path, {"task": task, "sizes": [2, 4]}, train={"length": 43})
    text = tasks_of(run)
    rows = drawn(text.train, rows=64, seed=0, step=3)
    again = drawn(text.train, rows=64, seed=0, step=3)
    assert all(
        np.array_equal(a, b) for one, two in zip(rows, again, strict=True) for a, b in zip(one, two, strict=True)
    )
    asked = {problem for size in (2, 3, 4) for problem, _ in tasks.tested(task, size, 10**5)}
    assert not asked & {text_of(source.tolist()) for source, _ in rows}
    for source, target in rows:
        problem, answer = text_of(source.tolist()).decode(), text_of(target.tolist()).decode()
        assert {"copy": problem, "reverse": problem[::-1], "sort": "".join(sorted(problem))}.get(task, answer) == answer


# end to end


def test_a_task_is_trained_on_measured_and_answered(tmp_path):
    run = run_of(tmp_path, {"task": "reverse", "sizes": [1, 4]})
    accelerator = accelerator_for(run)
    folder = train(run, accelerator)
    assert [json.loads(line)["step"] for line in (run.path / "train.jsonl").open()] == [1, 2, 3, 4]
    assert train(run, accelerator) == folder
    rows = list(evaluate(of_run(run.path, ["eval.sizes=[2,11,12]", "eval.swap=[rope]"]), accelerator))
    exact, nats = ([row for row in rows if row.metric == metric] for metric in ("exact", "answer nats"))
    assert len(exact) + len(nats) == len(rows) and {row.probe for row in rows} == {"algorithmic/reverse"}
    asked = [(scheme, size) for scheme in ("sinusoidal", "rope") for size in (2, 11, 12)]
    assert [(row.scheme, row.length, row.count) for row in exact] == [(*one, 3) for one in asked]
    assert [(row.scheme, row.length, row.count) for row in nats] == [(*one, 3 * (one[1] + 1)) for one in asked]
    assert all(0 <= row.value <= 1 for row in exact)
    assert (
        AutoModelForSeq2SeqLM.from_pretrained(folder).config.vocab_size
        == 259
        == len(AutoTokenizer.from_pretrained(folder))
    )
    assert len(translate(of_run(run.path, ["eval.beams=2"]), ["abc", "d"])) == 2


def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    import lab.train

    whole, crashed = (run_of(tmp_path, {"task": "copy", "sizes": [1, 4]}, name=name) for name in ("whole", "crashed"))
    train(whole)
    real = lab.train.rate

    def failing(step, settings):
        if step == 3:
            raise RuntimeError("crash")
        return real(step, settings)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="crash"):
        patch.setattr(lab.train, "rate", failing)
        train(crashed)
    train(crashed)
    one, two = (trained_model(run).state_dict() for run in (whole, crashed))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_nats_of_problems_are_those_of_their_answers_one_by_one(tmp_path):
    """Of a problem alone, no padding beside it: the model's logarithms at each letter of its answer and at its end."""
    run = run_of(tmp_path, {"task": "words", "sizes": [1, 1]})  # answers of many lengths
    train(run)
    model, asked = trained_model(run), list(tasks.tested("words", 1, 4))
    total, tokens = 0.0, 0
    for problem, answer in asked:
        source, target = (torch.from_numpy(ids_of(text))[None] for text in (problem, answer))
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        with torch.no_grad():
            logits = model(source, decoder_input_ids=torch.cat([start, target[:, :-1]], 1)).logits
        total -= float(logits.log_softmax(-1).gather(2, target[..., None]).sum())
        tokens += target.numel()
    value, count = surprise(model, run, 1, 4)
    assert count == tokens == sum(len(answer) + 1 for _, answer in asked)
    assert value == pytest.approx(total / tokens, rel=1e-5)


def test_a_comparison_changes_sizes_on_a_line(tmp_path):
    lines = [{"train": "rope"}, {"model": {"heads": 4}}, {"train": "rope", "model": {"heads": 4, "hidden": 8}}]
    run = run_of(tmp_path, {"task": "copy", "sizes": [1, 2]}, compare={"runs": [*lines, lines[1]]}, eval={"sizes": [2]})
    names = ["rope", "sinusoidal heads=4", "rope heads=4 hidden=8", "sinusoidal heads=4 (2)"]
    assert run.names_of_lines(run.compare.runs) == names
    sizes = [(part.model.heads, part.model.hidden, part.model.encoder.layers) for _, part in parts_of(run)]
    assert sizes == [(2, 32, 1), (4, 32, 1), (4, 8, 1), (4, 32, 1)]
    table = (compare(run) / "table.md").read_text()
    assert "| rope heads=4 hidden=8 |" in table and "nats per token" in table
    fewer = 2 * (2 * 16 + 1) * (32 - 8)  # a matrix in, its bias, a matrix out, on each side
    counts = [int(found.replace(",", "")) for found in re.findall(r"seed 0: ([\d,]+) parameters", table)]
    assert counts[0] == counts[1] == counts[3] == counts[2] + fewer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": 4}, "compare.runs[0].model.head: unknown key, did you mean heads?"),
        ({"heads": 0}, "compare.runs[0].model.heads: must be greater than 0, got 0"),
        ({"heads": 3}, "compare.runs[0].model: width 16 is not a multiple of heads 3: set key_size and value_size"),
        (
            {"encoder": {"positional": "rope"}},
            "compare.runs[0].model.encoder.positional: the encodings of a line stand in its `train`",
        ),
    ],
)
def test_what_a_line_cannot_change_is_said(tmp_path, changes, message):
    lines = [{"train": "rope", "model": changes}]
    assert message in refusal(tmp_path, {"task": "copy", "sizes": [1, 2]}, compare={"runs": lines})


def test_a_comparison_puts_encodings_on_either_side(tmp_path):
    lines = [{"train": "learned"}, {"train": {"encoder": "rope", "decoder": "alibi"}, "swap": ["rope"]}]
    run = run_of(
        tmp_path, {"task": "copy", "sizes": [1, 2]}, compare={"runs": lines}, eval={"sizes": [2, 12], "problems": 2}
    )
    rows = [row for row in rows_in(compare(run) / "rows.jsonl") if row.metric == "exact"]
    found = {(row.trained_as, row.scheme, row.length): row for row in rows}
    assert set(found) == {
        (trained, scheme, size)
        for trained, scheme in (("learned", "learned"), ("rope / alibi", "rope / alibi"), ("rope / alibi", "rope"))
        for size in (2, 12)
    }
    assert found["learned", "learned", 12].note == "longer than trained; takes at most 12 tokens"
    assert found["rope / alibi", "rope", 12].value is not None
    assert "rope / alibi" in (run.path / "compare" / "table.md").read_text()


def test_two_files_are_trained_on_and_cached(tmp_path):
    run = run_of(tmp_path, {"source": "text", "path": files(tmp_path), "vocabulary": 300, "held_out": 0.2})
    train(run)
    text, again = pair_corpus(run.data), pair_corpus(run.data)
    assert text.meta == again.meta and text.meta["train"]["pairs"] + text.meta["held_out"]["pairs"] <= 60
    wanted = text.tokenizer.decode(text.held_out.targets[0], skip_special_tokens=True)
    assert wanted == text.texts[0][1]
    tokenizer = AutoTokenizer.from_pretrained(run.path / "model")
    assert tokenizer.pad_token_id == 0
    assert translate(of_run(run.path), ["one two"])


def test_a_run_is_measured_on_another_text_with_its_own_tokenizer(tmp_path):
    run = run_of(tmp_path, {"source": "text", "path": files(tmp_path), "vocabulary": 300, "held_out": 0.2})
    train(run)
    own = f"data.tokenizer={run.path / 'model'}"
    found = list(evaluate(of_run(run.path, [own, "data.held_out=1"]), accelerator_for(run)))
    assert [row.metric for row in found] == ["nats", "bleu", "chrf"] and found[1].count > 20
    with pytest.raises(LabError, match="measure it with the tokenizer that it was trained with"):
        list(evaluate(of_run(run.path, ["data.tokenizer=bytes"]), accelerator_for(run)))


def test_text_that_is_all_held_out_is_not_trained_on(tmp_path):
    data = {"source": "text", "path": files(tmp_path), "held_out": 1}
    with pytest.raises(LabError, match="at data.held_out 1 there is no text to train `bpe` on: name a tokenizer"):
        train(run_of(tmp_path, data))
    with pytest.raises(LabError, match="at data.held_out 1 there are no pairs to train on: lower it"):
        train(run_of(tmp_path, {**data, "tokenizer": "bytes"}))


def test_real_messages_are_learned_end_to_end(tmp_path):
    """Of the catalogues that Django carries: loss falls, what is held out is never trained on, lines come out."""
    data = {"source": "gettext", "path": "package:django", "pairs": 400, "vocabulary": 400, "held_out": 0.1}
    run = run_of(
        tmp_path, data, train={"length": 40, "batch": 1500, "steps": 30, "warmup": 5, "lr": 0.01, "log_every": 1}
    )
    train(run)
    losses = [json.loads(line)["loss"] for line in (run.path / "train.jsonl").open()]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:3])
    text = pair_corpus(run.data)
    assert text.meta["train"]["pairs"] + text.meta["held_out"]["pairs"] == 400
    assert isinstance(translate(of_run(run.path), [text.texts[0][0]])[0], str)


def test_the_system_s_own_reader_agrees_on_what_a_message_says(tmp_path):
    catalogue(tmp_path / "de" / "LC_MESSAGES" / "mine.mo", {"Open file": "Datei öffnen"})
    translation = gettext.translation("mine", tmp_path, ["de"])
    [(message, said)] = parallel.messages(tmp_path / "de" / "LC_MESSAGES" / "mine.mo")
    assert translation.gettext(message) == said


def test_bleu_and_chrf_are_sacrebleu_s():
    same = scored(["the cat is on the mat today"], ["the cat is on the mat today"])
    assert same == {"bleu": pytest.approx(100.0), "chrf": pytest.approx(100.0)}
    # 6 of 7 words; of 6 pairs all but "on a" and "a mat"; 2 of 5 triples; 1 of 4 fours; lengths alike.
    other = scored(["the cat is on a mat today"], ["the cat is on the mat today"])
    assert other["bleu"] == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25, rel=1e-6)


def test_scores_without_sacrebleu_say_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(LabError, match=r"pip install 'context-extension-lab\[translation\]'"):
        scored(["a"], ["a"])


# settings


@pytest.mark.parametrize("path", sorted((ROOT / "configs/paper").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_of_the_paper_is_read(path):
    assert isinstance(read(path), Run if path.stem == "mixers" else Translation)


def test_the_documented_defaults_are_the_defaults(tmp_path):
    (tmp_path / "least.yaml").write_text("{data: {task: reverse}, model: {encoder: {}}}")
    least, documented = (
        read(path).model_dump() for path in (tmp_path / "least.yaml", ROOT / "configs/paper/seq2seq.yaml")
    )
    assert {**documented, "name": "run"} == least


def refusal(folder: Path, data: dict, **more) -> str:
    with pytest.raises(LabError) as caught:
        run_of(folder, data, **more)
    return str(caught.value)


def test_settings_that_do_not_fit_are_all_told_at_once(tmp_path):
    said = refusal(
        tmp_path,
        {"task": "reverse", "sizes": [1, 12]},
        model={**MODEL, "encoder": {"layers": 1, "positional": "fox"}},
        eval={"swap": [{"encoder": "logn", "decoder": "rop"}]},
    )
    assert "model.encoder: fox cannot be the encoder's, where a token also sees those after it: a token's gate" in said
    assert "eval.swap[0].encoder: logn cannot be the encoder's" in said
    assert "eval.swap[0].decoder: unknown encoding `rop`: did you mean rope?" in said
    assert "train.length: reverse with 12 letters takes 13 tokens on one side with its end, 12 are given" in said


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"task": []}, "source algorithmic needs one `task`, such as copy, reverse, sort or words"),
        ({"task": "multiply"}, "data.task: no algorithmic task `multiply`"),
        (
            {"source": "text", "path": ["a"]},
            "source text needs two files in `path`, the second a translation line by line",
        ),
        ({"source": "hub"}, "source hub needs `name`"),
        ({"task": ["copy", "sort"]}, "source algorithmic needs one `task`, such as copy, reverse, sort or words"),
        ({"task": "reverse", "sizes": [0, 4]}, "data.sizes.0: must be greater than 0, got 0"),
        ({"task": "reverse", "sizes": [4, 1]}, "data.sizes: [4, 1] holds no size: write the smallest first"),
    ],
)
def test_sources_say_what_they_need(tmp_path, data, message):
    said = refusal(tmp_path, data)
    assert message in said and said.count("\n") == 1  # a section that is taken out is not missed


def test_a_section_that_is_missing_is_named_and_no_more(tmp_path):
    (tmp_path / "least.yaml").write_text("{model: {encoder: {}}}")
    with pytest.raises(LabError) as caught:
        read(tmp_path / "least.yaml")
    assert str(caught.value) == f"{tmp_path}/least.yaml: 1 to mend\n  data: is missing, and has no default: write it"


def test_a_side_that_there_is_not_is_told(tmp_path):
    said = refusal(
        tmp_path,
        {"task": "copy", "sizes": [1, 2]},
        compare={"runs": [{"train": {"encodr": "rope", "decoder": "alibi"}}, {"train": {"left": "rope"}}]},
    )
    assert "compare.runs[0].train.encodr: no side has this name; did you mean encoder?" in said
    assert (
        "compare.runs[1].train.left: no side has this name; write kind: for both sides, or encoder: and decoder:"
        in said
    )


def test_every_kind_is_the_encoder_s_or_refused_by_name_with_the_reason(tmp_path, any_spec):
    """Before anything is trained; the decoder takes all of them."""
    why = build(any_spec, Shape(32, 2, 2, 2, 12)).causal_only
    side = {"layers": 2, "positional": any_spec}
    data, model = {"task": "copy", "sizes": [1, 4]}, {**MODEL, "width": 32, "encoder": side, "decoder": side}
    if why is None:
        run_of(tmp_path, data, model=model)
        return
    assert refusal(tmp_path, data, model=model).endswith(
        f": 1 to mend\n  model.encoder: {any_spec['kind']} cannot be the encoder's, where a token also sees those "
        f"after it: {why}. Give it to the decoder alone"
    )


def test_commands_for_the_other_kind_of_run_say_which_to_use(tmp_path):
    from lab.generate import generate

    run = run_of(tmp_path, {"task": "copy", "sizes": [1, 4]})
    with pytest.raises(LabError, match="is an encoder–decoder: `lab translate"):
        generate(run, "a", print, tokens=1)
    with pytest.raises(LabError, match="source 2 is empty: there is nothing to translate"):
        translate(run, ["a", " "])


def test_a_source_beyond_a_learned_table_is_named_by_its_number(tmp_path):
    sides = {side: {"layers": 1, "positional": "learned"} for side in ("encoder", "decoder")}
    run = run_of(tmp_path, {"task": "copy", "sizes": [1, 4]}, model={**MODEL, **sides})
    train(run)
    with pytest.raises(LabError) as caught:
        translate(run, ["a", "b" * 12])
    assert caught.value.code == 2 and str(caught.value) == (
        "source 2 has 13 tokens with its end, and learned in the encoder takes at most 12: shorten it, or train at a "
        "longer length"
    )
    assert len(translate(run, ["a", "b" * 11])) == 2
    with pytest.raises(
        LabError, match="260 beams begin with 260 different tokens, and the vocabulary has 259: ask for"
    ):
        translate(of_run(run.path, ["eval.beams=260"]), ["a"])
    with pytest.raises(LabError, match="eval.beams: must be greater than 0, got 0"):
        of_run(run.path, ["eval.beams=0"])
