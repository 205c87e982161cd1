"""The store: what a crash cuts off is measured again, the rest stays; numbers are found under what they depend on."""

import json
import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import EvalError
from eval.jsonl import append, lines
from eval.store import VERSION, Store


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def held(store: Store, *keys: str) -> dict[str, list[float] | None]:
    found = {key: store.get(key) for key in keys}
    return {key: None if losses is None else losses.tolist() for key, losses in found.items()}


def test_a_store_finds_what_it_was_given_also_when_opened_again(tmp_path):
    store = Store(tmp_path / "a/b")
    store.put({"one": numbers(1.5, 2.5), "two": numbers(3)})
    store.put({"four": numbers(0.1)})
    for opened in (store, Store(tmp_path / "a/b")):
        assert held(opened, "one", "two", "three") == {"one": [1.5, 2.5], "two": [3.0], "three": None}
        assert opened.get("four").dtype == np.float32 and opened.get("four")[0] == np.float32(0.1)


def test_nothing_is_written_before_there_is_something_to_keep(tmp_path):
    store = Store(tmp_path / "losses")
    assert store.get("one") is None and not (tmp_path / "losses").exists()


def test_each_process_writes_files_of_its_own_and_reads_all(tmp_path):
    first, second = Store(tmp_path, 0), Store(tmp_path, 1)
    first.put({"a": numbers(1)})
    second.put({"b": numbers(2)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.f32", "0.jsonl", "1.f32", "1.jsonl"]
    assert first.get("b") is None
    first.read()
    assert held(first, "a", "b") == held(Store(tmp_path, 7), "a", "b") == {"a": [1.0], "b": [2.0]}


@given(cut=st.integers(0, 400), rest=st.integers(0, 12))
def test_wherever_a_crash_cuts_what_is_found_is_right_and_what_is_put_again_is_found(tmp_path_factory, cut, rest):
    """The index is cut somewhere, or the numbers are: a machine may lose its power before either is on disk."""
    folder, wanted = tmp_path_factory.mktemp("cut"), {f"k{n}": numbers(n, n + 0.5) for n in range(3)}
    for key, losses in wanted.items():
        Store(folder).put({key: losses})
    index, data = folder / "0.jsonl", folder / "0.f32"
    index.write_bytes(index.read_bytes()[:cut])
    data.write_bytes(data.read_bytes()[: len(data.read_bytes()) - rest])
    store = Store(folder)
    for key, losses in wanted.items():
        assert store.get(key) is None or np.array_equal(store.get(key), losses)
    missing = {key: losses for key, losses in wanted.items() if store.get(key) is None}
    store.put(missing)
    for opened in (store, Store(folder)):
        assert held(opened, *wanted) == {key: losses.tolist() for key, losses in wanted.items()}


def test_damaged_numbers_are_not_found_and_are_mended_by_any_process(tmp_path):
    Store(tmp_path, 1).put({"a": numbers(1, 2), "b": numbers(3)})
    content = bytearray((tmp_path / "1.f32").read_bytes())
    content[5] ^= 1
    (tmp_path / "1.f32").write_bytes(content)
    store = Store(tmp_path, 0)
    assert held(store, "a", "b") == {"a": None, "b": [3.0]}
    store.put({"a": numbers(1, 2)})
    assert held(Store(tmp_path, 0), "a") == held(Store(tmp_path, 1), "a") == {"a": [1.0, 2.0]}


def test_numbers_that_are_gone_are_not_found(tmp_path):
    Store(tmp_path).put({"a": numbers(1)})
    (tmp_path / "0.f32").unlink()
    assert Store(tmp_path).get("a") is None


@pytest.mark.parametrize("line", [{"store": VERSION + 1}, {"key": "k", "document": "d", "total": 1.5, "count": 3}])
def test_a_store_of_another_version_is_refused_with_what_to_do(tmp_path, line):
    append(tmp_path / "0.jsonl", [line])
    with pytest.raises(EvalError) as caught:
        Store(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} was written by another version of the lab ({line.get('store', 1)}, this one writes {VERSION}): "
        "delete or rename the folder, and its losses are measured again"
    )


def test_names_say_what_they_last_stood_for(tmp_path):
    store = Store(tmp_path)
    assert store.names == {}
    store.name("gpt2", "abc")
    store.name("gpt2", "abc")
    assert Store(tmp_path).names == {"gpt2": "abc"} and len(lines(tmp_path / "0.jsonl")) == 2
    store.name("gpt2", "def")
    assert Store(tmp_path).names == {"gpt2": "def"}


def keep_putting(folder, first: int):
    store = Store(folder)
    for n in range(first, first + 1000):
        store.put({f"{n}": numbers(n, n, n)})


def test_a_store_survives_kill_9(tmp_path):
    """Several times, at whatever it is doing; nothing that was whole is lost, nothing wrong is found."""
    before = 0
    for turn in range(3):
        process = multiprocessing.get_context("fork").Process(target=keep_putting, args=(tmp_path, 1000 * turn))
        process.start()
        while not (tmp_path / "0.jsonl").exists() or len(lines(tmp_path / "0.jsonl")) < before + 10:
            assert process.is_alive()
        process.kill()
        process.join()
        store = Store(tmp_path)
        found = [n for n in range(3000) if store.get(str(n)) is not None]
        assert len(found) >= before + 8 and all(store.get(str(n)).tolist() == [n] * 3 for n in found)
        before = len(found)


# Lines


@given(cut=st.integers(0, 60))
def test_wherever_a_crash_cuts_a_file_whole_lines_stay_and_new_ones_are_whole(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "x.jsonl"
    records = [{"n": n, "text": "a\nb"} for n in range(3)]
    append(path, records)
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    left = [json.loads(line) for line in content[: cut + 1].split(b"\n")[:-1]]
    assert lines(path) == left
    append(path, [{"n": 9}])
    assert lines(path) == [*left, {"n": 9}]


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
    assert lines(tmp_path / "none.jsonl") == []
