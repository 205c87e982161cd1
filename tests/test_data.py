"""Text -> token ids: what is kept, on which side, in which order, and what the user is told when it cannot be."""

import errno
import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import LabError, data, sources
from lab.data import Side, corpus, long_documents
from lab.data.batches import batch, order, stretches
from lab.settings import Data

ROOT = Path(__file__).parents[1]


@pytest.fixture
def texts(tmp_path):
    """60 files of different lengths."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i:02}.txt").write_text(story(i))
    return folder


def story(i: int) -> str:
    return f"Story {i}: " + " ".join(f"word{i * j % 97}" for j in range(5 + i))


def of(path, **changes) -> Data:
    """Settings that read `path` and cache beside it."""
    one = path if isinstance(path, list) else [path]
    cache = Path(str(one[0])).parent / "cache"
    return Data(**{"source": "text", "path": [str(p) for p in one], "cache": str(cache), "held_out": 0.3} | changes)


def contents(side: Side) -> dict[str, bytes]:
    return {name: side.document(d).tobytes() for d, name in enumerate(side.names)}


def everything(built) -> list[str]:
    return sorted(text.decode() for side in (built.train, built.held_out) for text in contents(side).values())


def side_of(*lengths: int) -> Side:
    """Documents of these lengths; their ids count up, so that an id tells its place."""
    starts = np.cumsum([0, *(n + 1 for n in lengths)])
    return Side(np.arange(starts[-1], dtype=np.uint32), starts, [f"d{i}" for i in range(len(lengths))])


def told(settings: Data) -> str:
    with pytest.raises(LabError) as caught:
        corpus(settings)
    message = str(caught.value)
    assert len(message.splitlines()) <= 4
    return message


def table(path: Path, rows: list[dict]) -> Path:
    """The rows in the format that the suffix says."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    lines = "\n".join(json.dumps(row) for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else lines)
    return path


# What becomes of a text


def test_bytes_round_trip(texts):
    (texts / "odd.md").write_bytes("é\r\n\n漢字 \U0001f600\ttail".encode())
    built = corpus(of(texts))
    both = contents(built.train) | contents(built.held_out)
    assert both == {path.as_posix(): path.read_bytes() for path in texts.iterdir()}
    assert built.meta["vocab_size"] == 256 and built.train.ids.dtype == np.uint8
    assert isinstance(built.train.ids, np.memmap)


def test_every_document_is_followed_by_the_end_token(texts):
    built = corpus(of(texts))
    for side in (built.train, built.held_out):
        assert (side.ids[side.starts[1:] - 1] == built.meta["eos"]).all()
        assert (side.ids == built.meta["eos"]).sum() == len(side.names) == len(side.starts) - 1
        assert side.starts[-1] == len(side.ids)


def test_nul_is_removed_and_empty_and_repeated_documents_are_skipped(texts):
    (texts / "empty.txt").write_text("")
    (texts / "only_nul.txt").write_text("\0\0")
    (texts / "nul.txt").write_text("a\0b")
    (texts / "twice.txt").write_text("ab")
    assert everything(corpus(of(texts))) == sorted([*map(story, range(60)), "ab"])


def test_meta_records_what_the_ids_are(texts):
    meta = corpus(of(texts)).meta
    assert meta["train"]["documents"] + meta["held_out"]["documents"] == 60
    assert meta["train"]["tokens"] == meta["train"]["bytes"] + meta["train"]["documents"]
    assert meta["source"]["files"] == 60 and meta["tokenizer"] == {"name": "bytes"} and meta["eos"] == 0
    assert meta["settings"] == {"documents": None, "held_out": 0.3} and "datasets" in meta["versions"]
    ids = corpus(of(texts)).held_out.ids
    assert meta["held_out"]["sha256"] == hashlib.sha256(ids.tobytes()).hexdigest()


def test_the_same_text_gives_the_same_hash_wherever_it_lies(texts, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = texts.rename(tmp_path / "elsewhere" / "moved")
    first = corpus(of(moved)).meta["sha256"]
    second = corpus(of(moved.rename(texts))).meta["sha256"]
    assert first == second
    (texts / "00.txt").write_text(story(0).swapcase())  # as long as before
    assert corpus(of(texts)).meta["sha256"] != first


# Which side


def test_no_document_is_on_both_sides(texts):
    built = corpus(of(texts))
    train, held_out = contents(built.train), contents(built.held_out)
    assert not set(train.values()) & set(held_out.values())
    assert 8 <= len(held_out) <= 30  # 0.3 of 60


def test_sides_are_stable_when_documents_come_and_go(texts):
    before = set(contents(corpus(of(texts)).held_out).values())
    for i in range(60, 90):
        (texts / f"0{i}.txt").write_text(story(i))
    (texts / "07.txt").unlink()
    after = set(contents(corpus(of(texts)).held_out).values())
    old = {story(i).encode() for i in range(60)} - {story(7).encode()}
    assert after & old == before & old and after - old


def test_a_larger_held_out_part_holds_the_smaller(texts):
    small, large = (set(contents(corpus(of(texts, held_out=h)).held_out).values()) for h in (0.2, 0.6))
    assert small < large


def test_documents_takes_the_first(texts):
    assert everything(corpus(of(texts, documents=20))) == sorted(map(story, range(20)))


def test_nothing_held_out(texts):
    message = told(of(texts, held_out=1e-9))
    assert "none of 60 was held out" in message and "raise data.held_out" in message


# Where text comes from


def test_paths_may_be_files_folders_globs_lists_and_home(texts, monkeypatch):
    (texts / "deep" / "er").mkdir(parents=True)
    (texts / "deep" / "er" / "a.rst").write_text("far down")
    (texts / ".hidden").mkdir()
    (texts / ".hidden" / "b.txt").write_text("never seen")
    (texts / "picture.png").write_bytes(b"\x89\xff")
    monkeypatch.setenv("HOME", str(texts.parent))
    deep = "far down"
    assert everything(corpus(of(texts))) == sorted([*map(story, range(60)), deep])
    assert everything(corpus(of(str(texts / "0*.txt"), held_out=0.5))) == sorted(map(story, range(10)))
    assert everything(corpus(of([texts / "**/*.rst", "~/texts/0*"], held_out=0.5, cache=str(texts / "c")))) == sorted(
        [*map(story, range(10)), deep]
    )
    monkeypatch.chdir(texts)
    relative = Data(source="text", path=["0*", "deep"], held_out=0.5, cache="c")
    assert {"00.txt", "deep/er/a.rst"} <= set(corpus(relative).train.names + corpus(relative).held_out.names)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv", ".jsonl.gz"])
def test_tables_give_one_document_a_row(suffix, tmp_path):
    rows = [{"body": story(i), "n": i} for i in range(30)] + [{"body": None, "n": 30}, {"body": story(0), "n": 31}]
    built = corpus(of(table(tmp_path / f"t{suffix}", rows), column="body"))
    assert everything(built) == sorted(map(story, range(30)))
    by_name = contents(built.train) | contents(built.held_out)
    assert by_name[f"{tmp_path}/t{suffix}:4"].decode() == story(3)
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_a_table_whose_name_looks_like_a_pattern_is_itself(tmp_path):
    table(tmp_path / "a.jsonl", [{"text": "wrong"}])
    rows = [{"text": story(i)} for i in range(20)]
    assert everything(corpus(of(table(tmp_path / "[a].jsonl", rows)))) == sorted(map(story, range(20)))


def test_the_standard_library_without_tests_and_tables(tmp_path):
    names = list(sources.files(Data()))
    assert names == sorted(names) and {"argparse.py", "json/decoder.py"} <= set(names)
    apart = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"}
    assert not [name for name in names if apart & set(name.split("/")[:-1])]
    assert "pydoc_data/topics.py" not in names and not [name for name in names if "_sysconfigdata" in name]


def test_the_standard_library_is_a_corpus_of_long_documents(tmp_path):
    built = corpus(Data(cache=str(tmp_path)))
    assert len(built.train.ids) > 4e6 and len(built.held_out.ids) > 2e5
    assert len(long_documents(built.held_out, length=2048, count=16)) == 16
    assert built.meta["source"]["python"] in sys.version
    assert built.meta["versions"] == {}


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_dataset(streaming, tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    table(tmp_path / "set" / "train.jsonl", [{"body": story(i)} for i in range(40)])
    table(tmp_path / "set" / "validation.jsonl", [{"body": "another split"}])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    hub = {"source": "hub", "name": str(tmp_path / "set"), "column": "body", "cache": str(tmp_path / "cache")}
    built = corpus(Data(**hub, streaming=streaming, held_out=0.3, documents=30))
    assert everything(built) == sorted(map(story, range(30)))
    assert (built.meta["source"]["fingerprint"] is None) == streaming
    again = corpus(Data(**hub, streaming=streaming, held_out=0.3, documents=30))
    assert again.meta == built.meta and len(os.listdir(tmp_path / "cache")) == 1


def test_a_streamed_dataset_is_read_as_far_as_needed_and_once(tmp_path, monkeypatch):
    from datasets import IterableDataset

    read = []

    def rows():
        for i in range(10**6):
            read.append(i)
            yield {"text": story(i)}

    def load(name, config, split, streaming):
        assert (name, config, split, streaming) == ("some/set", "en", "train", True)
        return IterableDataset.from_generator(rows)

    monkeypatch.setattr("datasets.load_dataset", load)
    hub = {"source": "hub", "name": "some/set", "config": "en", "streaming": True, "cache": str(tmp_path)}
    hub = Data(**hub, documents=30, held_out=0.3)
    assert everything(corpus(hub)) == sorted(map(story, range(30)))
    assert len(read) < 100
    monkeypatch.setattr("datasets.load_dataset", None)  # the cache is enough: a run needs no network twice
    assert len(corpus(hub).train.names) > 10


# Tokenizers


@pytest.fixture
def saved_tokenizer(tmp_path):
    """A byte-level BPE of 300 entries, saved as Hugging Face does; called with its special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    def save(name: str = "tokenizer", **special: str) -> Path:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=["[PAD]", "<|end|>"], initial_alphabet=alphabet, show_progress=False
        )
        raw.train_from_iterator(map(story, range(20)), trainer)
        PreTrainedTokenizerFast(tokenizer_object=raw, **special).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


@pytest.mark.parametrize("special", ["eos_token", "sep_token"])
def test_a_hugging_face_tokenizer(special, saved_tokenizer, texts):
    from transformers import AutoTokenizer

    folder = saved_tokenizer(**{special: "<|end|>"})
    built = corpus(of(texts, tokenizer=str(folder)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert built.meta["vocab_size"] == len(tokenizer) > 256 and built.meta["eos"] == 1
    assert built.train.ids.dtype == np.uint16 and "transformers" in built.meta["versions"]
    assert sorted(tokenizer.decode(built.train.document(d)) for d in range(3)) == sorted(
        Path(name).read_text() for name in built.train.names[:3]
    )
    assert built.meta["train"]["tokens"] < built.meta["train"]["bytes"]
    assert built.train.names == corpus(of(texts)).train.names  # the sides are those of the text, not of the tokens


def test_a_text_that_spells_the_end_token_does_not_end_there(saved_tokenizer, texts):
    for i in range(30):
        (texts / f"x{i}.txt").write_text(f"{i} <|end|> and on")
    built = corpus(of(texts, tokenizer=str(saved_tokenizer(eos_token="<|end|>"))))
    for side in (built.train, built.held_out):
        assert (side.ids == 1).sum() == len(side.names)


def test_it_is_known_which_bytes_of_held_out_text_each_token_stands_for(saved_tokenizer, texts):
    from transformers import AutoTokenizer

    folder = saved_tokenizer(eos_token="<|end|>")
    built, words = corpus(of(texts, tokenizer=str(folder))), AutoTokenizer.from_pretrained(folder)
    side = built.held_out
    # In a byte-level vocabulary a letter is a byte; these texts are ASCII.
    wanted = [0 if n == built.meta["eos"] else len(words.convert_ids_to_tokens(n)) for n in side.ids.tolist()]
    assert side.bytes.tolist() == wanted and max(wanted) > 3 and built.train.bytes is None
    assert side.bytes.sum() == built.meta["held_out"]["bytes"]
    for name, ids, sizes in long_documents(side, length=40, count=5):
        assert sizes.sum() == len(words.decode(ids)) and len(sizes) == len(ids) == 40
        assert Path(name).read_text().startswith(words.decode(ids))


def test_a_token_of_the_byte_tokenizer_is_a_byte_and_an_end_is_none(texts):
    built = corpus(of(texts))
    assert ((built.held_out.ids != built.meta["eos"]) == built.held_out.bytes).all()


def test_of_a_tokenizer_that_does_not_say_bytes_are_not_known(saved_tokenizer, texts, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    folder = saved_tokenizer(eos_token="<|end|>")
    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", False)
    for _ in range(2):  # built, and read again
        built = corpus(of(texts, tokenizer=str(folder)))
        assert built.held_out.bytes is None and built.meta["sized"] is False
    assert all(sizes is None for *_, sizes in long_documents(built.held_out, length=20, count=3))


def test_a_changed_tokenizer_under_the_same_name_is_another_cache(saved_tokenizer, texts):
    folder = saved_tokenizer(eos_token="<|end|>")
    before = corpus(of(texts, tokenizer=str(folder)))
    rules = folder / "tokenizer.json"
    changed = json.loads(rules.read_text())
    changed["model"]["merges"] = changed["model"]["merges"][:1]
    rules.write_text(json.dumps(changed))
    assert len(corpus(of(texts, tokenizer=str(folder))).train.ids) > len(before.train.ids)


def test_a_tokenizer_that_cannot_end_a_document(saved_tokenizer, texts):
    folder = saved_tokenizer(pad_token="[PAD]")
    assert "no eos or sep token" in told(of(texts, tokenizer=str(folder)))


# The cache


def test_a_second_call_reads_the_cache_and_leaves_it_alone(texts, monkeypatch):
    first = corpus(of(texts))
    monkeypatch.setattr(data, "build", None)
    second = corpus(of(texts))
    assert second.meta == first.meta and (second.train.ids == first.train.ids).all()


def test_settings_that_matter_have_caches_of_their_own(texts):
    for changes in ({}, {"held_out": 0.5}, {"documents": 30}):
        corpus(of(texts, **changes))
    assert len(os.listdir(texts.parent / "cache")) == 3


@pytest.mark.parametrize(
    "name", ["meta.json", "train.ids", "held_out.ids", "train.starts", "held_out.names.json", "held_out.bytes"]
)
@pytest.mark.parametrize("left", [0, 0.5, None])
def test_a_damaged_cache_is_built_again(name, left, texts, capsys):
    whole = corpus(of(texts))
    (folder,) = (texts.parent / "cache").iterdir()
    if left is None:
        (folder / name).unlink()
    else:
        os.truncate(folder / name, int((folder / name).stat().st_size * left))
    again = corpus(of(texts))
    assert again.meta == whole.meta and (again.held_out.ids == corpus(of(texts)).held_out.ids).all()
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder) in line and "damaged" in line and "building it again" in line
    assert list(folder.parent.iterdir()) == [folder]


def process(code: str, *arguments: str, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-c", f"from lab.settings import Data\nfrom lab import data\nimport os, sys\n{code}"]
    where = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen([*command, *arguments], env=where, stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize("at", ["os.rename", "os.fsync", "data.write.Writer.finish"])
def test_a_killed_build_leaves_nothing_that_is_used(at, texts):
    settings = of(texts)
    code = f"{at} = lambda *_: os.kill(os.getpid(), 9)\ndata.corpus(Data.model_validate_json(sys.argv[1]))"
    killed = process(code, settings.model_dump_json())
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    (left,) = (texts.parent / "cache").iterdir()
    assert left.name.startswith(".")
    assert everything(corpus(settings)) == sorted(map(story, range(60)))
    assert len(os.listdir(texts.parent / "cache")) == 2

    long_ago = time.time() - 2 * data.write.DAY
    for path in (*left.iterdir(), left):
        os.utime(path, (long_ago, long_ago))
    (folder,) = set(left.parent.iterdir()) - {left}
    (folder / "meta.json").unlink()
    corpus(settings)
    assert list(left.parent.iterdir()) == [folder]


def test_processes_that_race_all_get_the_corpus(texts):
    settings = of(texts)
    code = "print(data.corpus(Data.model_validate_json(sys.argv[1])).meta['sha256'])"
    racing = [process(code, settings.model_dump_json()) for _ in range(3)]
    said = {one.communicate(timeout=60) for one in racing}
    assert said == {(corpus(settings).meta["sha256"] + "\n", "")}
    assert len(os.listdir(texts.parent / "cache")) == 1


def test_the_one_who_comes_second_uses_the_cache_of_the_first(texts, monkeypatch):
    write = data.write.write

    def beaten(*arguments):
        monkeypatch.setattr(data.write, "write", write)
        write(*arguments)
        beaten.first = corpus(of(texts))

    monkeypatch.setattr(data.write, "write", beaten)
    assert corpus(of(texts)).meta == beaten.first.meta
    assert len(os.listdir(texts.parent / "cache")) == 1


def test_a_full_disk(texts, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = told(of(texts))
    size = sum(path.stat().st_size for path in texts.iterdir())
    assert f"no space left in {texts.parent / 'cache'}" in message and f"{size / 1e6:.1f} MB of text" in message
    assert not os.listdir(texts.parent / "cache")


def test_a_cache_folder_that_cannot_be_made(texts):
    (texts.parent / "file").write_text("in the way")
    assert "cannot be written" in told(of(texts, cache=str(texts.parent / "file")))


# What the user is told


def test_a_path_that_does_not_exist(tmp_path):
    message = told(of(tmp_path / "nowhere"))
    assert f"nothing at {tmp_path}/nowhere" in message and str(Path.cwd()) in message
    assert "nothing at" in told(of(tmp_path / "*.txt"))


def test_a_folder_or_glob_without_text(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"\x89PNG")
    for path in (tmp_path / "pictures", tmp_path / "pictures" / "*"):
        message = told(of(path))
        assert f"{path} holds no text" in message and ".txt" in message and ".parquet" in message


def test_files_that_are_all_empty(tmp_path):
    (tmp_path / "a.txt").write_text("")
    assert "all empty" in told(of(tmp_path / "a.txt"))


def test_a_suffix_that_is_not_text(tmp_path):
    (tmp_path / "a.docx").write_bytes(b"PK")
    message = told(of(tmp_path / "a.docx"))
    assert f"{tmp_path}/a.docx" in message and "`.docx`" in message and "Rename it to .txt" in message


def test_a_file_that_is_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes("caf\xe9".encode("latin-1"))
    assert f"{tmp_path}/a.txt is not UTF-8 text (from byte 3)" in told(of(tmp_path))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv", ".jsonl.gz"])
def test_a_missing_column(suffix, tmp_path):
    path = table(tmp_path / f"t{suffix}", [{"body": "a", "title": "b"}])
    assert told(of(path)) == f"data.column: {path} has no column `text`; it has body, title"


def test_a_column_of_numbers(tmp_path):
    path = table(tmp_path / "t.jsonl", [{"text": 3}])
    assert told(of(path)) == f"data.column: `text` of {path} holds int, not text"


def test_a_broken_table(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\nno json\n')
    message = told(of(tmp_path / "t.jsonl"))
    assert f"{tmp_path}/t.jsonl cannot be read" in message and "JSON parse error" in message


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_split_column_or_folder_that_is_not_there(streaming, tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    table(tmp_path / "set" / "train.jsonl", [{"body": "a"}])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    hub = {"source": "hub", "name": str(tmp_path / "set"), "streaming": streaming, "cache": str(tmp_path / "cache")}
    message = told(Data(**hub, split="trian"))
    assert str(tmp_path / "set") in message and "data.split (trian)" in message and "train" in message
    assert "no column `text`; it has body" in told(Data(**hub))
    message = told(Data(**hub | {"name": str(tmp_path / "nowhere")}))
    assert str(tmp_path / "nowhere") in message and "check its spelling" in message


def test_an_unknown_hub_dataset(tmp_path, monkeypatch):
    from datasets.exceptions import DatasetNotFoundError

    def load(name, *_, **__):
        raise DatasetNotFoundError(f"Dataset '{name}' doesn't exist on the Hub or cannot be accessed.")

    monkeypatch.setattr("datasets.load_dataset", load)
    message = told(Data(source="hub", name="no/such", cache=str(tmp_path)))
    assert "`no/such`" in message and "check its spelling" in message and "hf auth login" in message


def test_a_connection_lost_while_streaming(tmp_path, monkeypatch):
    from datasets import IterableDataset

    def rows():
        yield {"text": "a"}
        raise ConnectionError("the other side hung up")

    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: IterableDataset.from_generator(rows))
    message = told(Data(source="hub", name="some/set", streaming=True, cache=str(tmp_path / "cache")))
    assert "some/set cannot be read to its end: the other side hung up" in message
    assert not os.listdir(tmp_path / "cache")


def test_without_a_network(texts):
    code = """
for line in sys.argv[1:]:
    try:
        data.corpus(Data.model_validate_json(line))
    except data.LabError as error:
        print(error, end="\\0")
"""
    asked = [
        Data(source="hub", name="allenai/c4", config="en", cache=str(texts.parent)),
        Data(source="hub", name="allenai/c4", config="en", streaming=True, cache=str(texts.parent)),
    ]
    offline = process(code, *(one.model_dump_json() for one in asked), HF_HUB_OFFLINE="1", HF_HOME=str(texts.parent))
    *said, rest = offline.communicate(timeout=60)[0].split("\0")
    assert len(said) == 2 and not rest
    for message in said:
        assert "`allenai/c4` cannot be read" in message and "download it first" in message and "source: text" in message


def test_an_unknown_tokenizer(texts, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", str(texts)):
        message = told(of(texts, tokenizer=name))
        assert f"data.tokenizer: no tokenizer `{name}`" in message and "write `bytes`" in message


def test_importing_is_light():
    code = "print([name for name in ('torch', 'datasets', 'transformers', 'tqdm') if name in sys.modules])"
    assert process(code).communicate(timeout=60)[0] == "[]\n"


# Batches


def test_a_batch_is_inputs_and_targets_shifted_by_one():
    side = side_of(400, 300)
    ids, offsets = batch(side, length=16, size=4, seed=0, step=5)
    assert ids.shape == (4, 17) and ids.dtype == offsets.dtype == np.int64 and offsets.shape == (4,)
    assert (ids == offsets[:, None] + np.arange(17)).all()  # in this side an id is its place


@given(st.integers(2, 50), st.integers(1, 20), st.integers(0, 5), st.integers(0, 200), st.integers(0, 900))
@settings(max_examples=60, deadline=None)
def test_a_batch_is_a_pure_function_of_its_arguments(length, size, seed, step, tokens):
    side = side_of(tokens + length)
    first = batch(side, length=length, size=size, seed=seed, step=step)
    first[0][:], first[1][:] = -1, -1  # what a caller does to one must not reach the next
    second = batch(side, length=length, size=size, seed=seed, step=step)
    for other in range(3):
        batch(side, length=length, size=size, seed=seed + other, step=step + 7)
    order.cache_clear()
    third = batch(side, length=length, size=size, seed=seed, step=step)
    assert (second[0] == third[0]).all() and (second[1] == third[1]).all()
    assert (second[0] == second[1][:, None] + np.arange(length + 1)).all()


@given(st.integers(2, 40), st.integers(0, 2000), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_an_epoch_visits_each_stretch_once(length, extra, size):
    side = side_of(length + extra)
    epoch = stretches(len(side.ids), length)
    steps = -(-3 * epoch // size)  # batches straddle the epochs
    offsets = np.concatenate([batch(side, length=length, size=size, seed=1, step=s)[1] for s in range(steps)])
    for start in range(0, 3 * epoch, epoch):
        visited = np.sort(offsets[start : start + epoch])
        assert (np.diff(visited) == length).all()
        assert visited[0] >= 0 and visited[-1] + length < len(side.ids)
        assert len(side.ids) - epoch * length <= 2 * length + 1  # what it leaves out


def test_epochs_and_seeds_cut_and_order_anew():
    side = side_of(5000)
    epoch = stretches(len(side.ids), 64)

    def offsets(seed, step):
        return batch(side, length=64, size=epoch, seed=seed, step=step)[1]

    assert len({int(offsets(0, step)[0] % 64) for step in range(20)}) > 5
    assert (np.diff(offsets(0, 0)) != 64).any()
    assert (offsets(0, 0) != offsets(0, 1)).any() and (offsets(0, 0) != offsets(1, 0)).any()
    visits = Counter(np.concatenate([o + np.arange(64) for step in range(40) for o in offsets(0, step)]).tolist())
    assert len(visits) >= 4995  # over a few epochs every token is an input


def test_the_slices_of_two_ranks_are_the_batch():
    side = side_of(3000)
    ids, offsets = batch(side, length=32, size=8, seed=3, step=11)
    ranks = [batch(side, length=32, size=8, seed=3, step=11)[0][rank::2] for rank in (0, 1)]
    assert (np.stack(ranks, 1).reshape(8, 33) == ids).all()
    assert len(set(offsets.tolist())) == 8


def test_batches_of_one_size_are_those_of_another():
    side = side_of(3000)
    whole = batch(side, length=32, size=8, seed=3, step=2)[1]
    halves = [batch(side, length=32, size=4, seed=3, step=step)[1] for step in (4, 5)]
    assert (np.concatenate(halves) == whole).all()


def test_the_shortest_corpus_that_can_be_trained_on():
    assert (batch(side_of(16), length=16, size=3, seed=0, step=0)[0] == np.arange(17)).all()
    with pytest.raises(LabError) as caught:
        batch(side_of(5, 9), length=16, size=3, seed=0, step=0)
    message = str(caught.value)
    assert "2 training documents hold 16 tokens" in message and "length 16 needs 17" in message
    with pytest.raises(LabError, match="0 training documents hold 0 tokens"):
        batch(side_of(), length=16, size=3, seed=0, step=0)


def test_at_names_the_documents_of_a_stretch():
    side = side_of(4, 1, 3)  # places 0-4, 5-6, 7-10, end tokens included
    assert side.at(np.array([0]), 5) == ["d0"]
    assert side.at(np.array([4]), 2) == ["d0", "d1"]
    assert side.at(np.array([7, 0]), 4) == ["d2", "d0"]
    assert side.at(np.array([3, 4]), 5) == ["d0", "d1", "d2"]
    assert side.at(np.array([0]), 11) == ["d0", "d1", "d2"]


# Long documents


def test_long_documents_are_cut_and_without_end_tokens():
    side = side_of(10, 30, 9, 20, 11)
    found = {name: ids for name, ids, _ in long_documents(side, length=10, count=4)}
    assert set(found) == {"d0", "d1", "d3", "d4"}
    for name, ids in found.items():
        assert ids.dtype == np.int64 and type(ids) is np.ndarray
        assert (ids == side.starts[int(name[1])] + np.arange(10)).all()


def test_long_documents_stay_when_others_are_added(texts):
    before = [ids.tobytes() for _, ids, _ in long_documents(corpus(of(texts)).held_out, length=100, count=6)]
    for i in range(200, 203):
        (texts / f"0{i}.txt").write_text(story(i))
    for i in range(300, 320):
        (texts / f"0{i}.txt").write_text(f"too short {i}")
    side = corpus(of(texts)).held_out
    after = [ids.tobytes() for _, ids, _ in long_documents(side, length=100, count=6)]
    added = sum(name.split("/")[-1] in ("0200.txt", "0201.txt", "0202.txt") for name in side.names)
    kept = [ids for ids in before if ids in after]
    assert len(kept) >= 6 - added and [ids for ids in after if ids in before] == kept
    assert [ids.tobytes() for _, ids, _ in long_documents(side, length=100, count=3)] == after[:3]


def test_long_documents_do_not_hang_on_the_order_of_reading(texts):
    before = [ids.tobytes() for _, ids, _ in long_documents(corpus(of(texts)).held_out, length=100, count=5)]
    for path in list(texts.iterdir()):
        path.rename(texts / f"{99 - int(path.stem)}.text")
    assert before == [ids.tobytes() for _, ids, _ in long_documents(corpus(of(texts)).held_out, length=100, count=5)]


def test_too_few_long_documents():
    with pytest.raises(LabError) as caught:
        long_documents(side_of(10, 30, 9), length=20, count=2)
    message = str(caught.value)
    assert "only 1 of 3 held-out documents have 20 tokens" in message and "the longest has 30" in message
    assert "Lower eval.documents, eval.lengths or train.length" in message and "raise data.held_out" in message
