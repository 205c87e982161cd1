"""Texts as documents: token ids with the bytes that each token stands for, whatever the tokenizer."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from eval import EvalError
from eval.plan import Document


def document(name: str, text: str, tokenizer, bos: int | None) -> Document:
    """A text as a document that begins with the token `bos`, once. A `</s>` in the text is text and ends nothing.

    tokenizer: of transformers; a slow one does not say which bytes a token stands for.
    """
    how = {"return_offsets_mapping": tokenizer.is_fast, "split_special_tokens": True, "verbose": False}
    encoded = tokenizer(text, **how)
    ids = list(encoded["input_ids"])
    spans = list(encoded["offset_mapping"]) if tokenizer.is_fast else [(0, 0)] * len(ids)
    if ids and ids[0] == tokenizer.bos_token_id and spans[0][0] == spans[0][1]:
        ids, spans = ids[1:], spans[1:]
    if ids and ids[-1] == tokenizer.eos_token_id and spans[-1][0] == spans[-1][1]:
        ids, spans = ids[:-1], spans[:-1]  # an end is not part of the text
    if bos is not None:
        ids, spans = [bos, *ids], [(0, 0), *spans]
    return Document(name, torch.tensor(ids, dtype=torch.int64), bytes_of(text, spans) if tokenizer.is_fast else None)


def bytes_of(text: str, spans: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Bytes of each token, from its (first, past the last) character; what lies between two counts for the later.

    Several tokens may share a character that none of them holds whole: its bytes go to the first of them.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)  # in UTF-8
    ends = np.concatenate([[0], np.cumsum(sizes)])
    stops = np.maximum.accumulate(np.array([stop for _, stop in spans], np.int64))
    return np.diff(ends[stops], prepend=0)


def first_token(tokenizer) -> int | None:
    """The token that this tokenizer begins a text with; None where it begins with the text."""
    encoded = tokenizer("a")["input_ids"]
    bos = tokenizer.bos_token_id
    return bos if bos is not None and encoded and encoded[0] == bos else None


def read(paths: list[Path], column: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each text file, and of each line of a .jsonl. Raises EvalError for a line that holds no text."""
    for path in paths:
        if path.suffix != ".jsonl":
            yield path.name, path.read_text("utf-8", "replace")
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            for n, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path.name}:{n}", text_of(line, column, f"{path}, line {n},")


def refuse_missing(paths: list[Path]) -> None:
    """Raise EvalError where one is no file; before a model is loaded in vain."""
    for path in paths:
        if path.is_dir():
            raise EvalError(f"--data {path} is a folder: give the files in it, such as {path}/*.txt", code=2)
        if not path.is_file():
            raise EvalError(f"--data {path}: there is no such file, seen from {Path.cwd()}", code=2)


def text_of(line: str, column: str, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError:
        raise EvalError(f"{where} is not JSON") from None
    if not isinstance(row, dict) or column not in row:
        has = ", ".join(row) if isinstance(row, dict) else "no columns at all"
        raise EvalError(f"{where} has no column {column}; it has {has}: pass --column")
    if not isinstance(row[column], str):
        raise EvalError(f"{where} has {type(row[column]).__name__} and no text in the column {column}: pass --column")
    return row[column]


def long_enough(
    texts: Iterable[tuple[str, str]], tokenizer, bos: int | None, needed: int, most: int, say: Callable[[str], None]
) -> list[Document]:
    """The first `most` documents of at least `needed` tokens; `say` is told of those left out.

    Raises EvalError where there is none.
    """
    fitting, short = [], []
    for name, text in texts:
        made = document(name, text, tokenizer, bos)
        if len(made.ids) >= needed:
            fitting.append(made)
        else:
            short.append(len(made.ids))
        if len(fitting) == most:
            break
    if not fitting:
        raise EvalError(
            f"none of {len(short)} documents has the {needed} tokens that these lengths need; the longest has "
            f"{max(short, default=0)}: take shorter lengths or longer texts",
            code=2,
        )
    if short:
        say(
            f"{len(short)} of {len(short) + len(fitting)} documents are left out: they have {min(short)} to "
            f"{max(short)} tokens, and {needed} are needed"
        )
    return fitting
