"""Where text comes from: Python's own library, files, and Hugging Face datasets, as (name, text) documents."""

import glob
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab import LabError
from lab.settings import Data

PLAIN = frozenset(
    ".txt .text .md .rst .adoc .org .tex .log .html .xml .yaml .yml .toml .ini .cfg .sh .sql .py .pyi .c .h .cc .cpp "
    ".hpp .cu .rs .go .java .kt .scala .js .ts .rb .pl .php .lua .r .jl .hs .ml .lisp .swift".split()
)
ROWS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
PACKED = frozenset((".gz", ".zst", ".bz2", ".xz"))
LEFT_OUT = frozenset(("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"))


def documents(settings: Data) -> Iterator[tuple[str, str]]:
    """Every document of the source as (name, text), in an order that does not change. Raises LabError."""
    if settings.source == "hub":
        yield from named(texts(dataset(settings), settings.column, settings.name), settings.name)
        return
    for name, path in files(settings).items():
        if kind := rows_of(path):
            yield from named(texts(local(path, kind), settings.column, str(path)), name)
        else:
            yield name, decoded(path, settings.source)


def identity(settings: Data) -> dict[str, Any]:
    """What tells this source from any other; for files it is their content, so an edited file is another source.

    A streamed dataset is known by its name alone: whether it has changed since cannot be told without reading it.
    """
    if settings.source == "hub":
        named = settings.model_dump(include={"source", "name", "config", "split", "column", "streaming"})
        return named | {"fingerprint": None if settings.streaming else dataset(settings)._fingerprint}
    found = files(settings)
    digest, size = hashlib.sha256(), 0
    for name, path in found.items():
        content = bytes_of(path, lambda file: hashlib.file_digest(file, "sha256").digest())
        digest.update(hashlib.sha256(os.fsencode(name)).digest() + content)
        size += path.stat().st_size
    about = {"source": settings.source, "files": len(found), "bytes": size, "sha256": digest.hexdigest()}
    if settings.source == "stdlib":
        return about | {"python": platform.python_version()}
    return about | {"path": settings.path, "column": settings.column}


def files(settings: Data) -> dict[str, Path]:
    """Document or table name -> the file that holds it, in the order of reading."""
    if settings.source == "stdlib":
        return library()
    return {path.as_posix(): path for text in settings.path for path in under(text)}


def library() -> dict[str, Path]:
    """The modules of the Python that runs this, by their place in its library; a corpus every machine has."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {}
    for folder, inner, names in os.walk(root):
        # What the build of this one machine wrote would make its corpus differ from others'.
        inner[:] = [name for name in inner if name not in LEFT_OUT and not name.startswith("config-")]
        parts = [Path(folder, name).relative_to(root) for name in names if name.endswith(".py")]
        found |= {part: root / part for part in parts if not part.name.startswith("_sysconfigdata")}
    found.pop(Path("pydoc_data/topics.py"), None)
    if not found:
        raise LabError(f"data.source: {root} holds no Python sources; give text of your own with source: text")
    return {part.as_posix(): path for part, path in sorted(found.items())}


def under(text: str) -> list[Path]:
    """The readable files that one entry of data.path means: a file, a folder and all in it, or a glob."""
    path = Path(text).expanduser()
    if path.is_file():
        if not readable(path):
            raise LabError(
                f"data.path: {path} has the suffix `{path.suffix}`, which is not known as text. "
                f"Rename it to .txt if it is, or give {', '.join(ROWS)} with data.column",
                code=2,
            )
        return [path]
    matches = [path] if path.is_dir() else sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    if not matches:
        raise LabError(f"data.path: nothing at {path}: give a file, a folder or a glob, seen from {Path.cwd()}", code=2)
    found = [file for match in matches for file in (inside(match) if match.is_dir() else [match]) if readable(file)]
    if not found:
        raise LabError(
            f"data.path: {path} holds no text: no visible file ends in .txt, .md, .py or another plain-text suffix, "
            f"or in {', '.join(ROWS)}",
            code=2,
        )
    return found


def inside(folder: Path) -> list[Path]:
    """The files in a folder, at any depth; hidden ones hold settings and histories, not text."""
    parts = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [folder / part for part in parts if not any(name.startswith(".") for name in part.parts)]


def readable(path: Path) -> bool:
    return path.suffix.lower() in PLAIN or rows_of(path) is not None


def rows_of(path: Path) -> str | None:
    """The `datasets` reader for a table of documents; None for a file that is one document."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return ROWS.get(suffixes[-1]) if suffixes else None


def decoded(path: Path, source: str) -> str:
    """The text of a file, its line ends untouched."""
    content = bytes_of(path, lambda file: file.read())
    try:
        # Nobody can mend the library: a module in an old encoding loses a few letters instead.
        return content.decode("utf-8", "replace" if source == "stdlib" else "strict")
    except UnicodeDecodeError as error:
        raise LabError(
            f"data.path: {path} is not UTF-8 text (from byte {error.start}): convert it, or leave it out of data.path"
        ) from None


def bytes_of(path: Path, take) -> bytes:
    try:
        with path.open("rb") as file:
            return take(file)
    except OSError as error:
        raise LabError(f"data.path: {path} cannot be read: {error.strerror}") from None


def dataset(settings: Data):
    """The Hugging Face dataset of these settings, streamed or not."""
    from datasets import load_dataset

    try:
        return load_dataset(settings.name, settings.config, split=settings.split, streaming=settings.streaming)
    except Exception as error:  # datasets, huggingface_hub, httpx and pyarrow each raise errors of their own
        raise unreadable(settings, error) from error


def unreadable(settings: Data, error: Exception) -> LabError:
    said = f"data.name: dataset `{settings.name}` cannot be read: {first_line(error)}"
    if isinstance(error, FileNotFoundError):
        return LabError(f"{said}\ncheck its spelling; a gated or private dataset needs `hf auth login`")
    if isinstance(error, ValueError):
        return LabError(f"{said}\ncheck data.config ({settings.config}) and data.split ({settings.split})")
    return LabError(f"{said}\nwithout a network, download it first on a machine that has one, or use source: text")


def local(path: Path, kind: str):
    """A file of rows, streamed: datasets would otherwise keep a second copy of it in a cache of its own."""
    from datasets import load_dataset

    try:
        return load_dataset(kind, data_files=[glob.escape(str(path))], split="train", streaming=True)
    except Exception as error:  # as in `dataset`
        raise LabError(f"data.path: {path} cannot be read: {first_line(error)}") from error


def texts(rows, column: str, where: str) -> Iterator[str]:
    """One column of a dataset; a row without a value is an empty document."""
    try:
        names = rows.column_names or list(next(iter(rows), {column: None}))
        if column not in names:
            raise LabError(f"data.column: {where} has no column `{column}`; it has {', '.join(names)}")
        for row in rows.select_columns([column]):
            text = "" if row[column] is None else row[column]
            if not isinstance(text, str):
                raise LabError(f"data.column: `{column}` of {where} holds {type(text).__name__}, not text")
            yield text
    except LabError:
        raise
    except Exception as error:  # as in `dataset`; a stream meets its errors while it is read
        raise LabError(f"{where} cannot be read to its end: {first_line(error)}") from error


def named(texts: Iterator[str], name: str) -> Iterator[tuple[str, str]]:
    """Rows are counted from 1, as editors count lines."""
    return ((f"{name}:{row}", text) for row, text in enumerate(texts, 1))


def first_line(error: Exception) -> str:
    """What went wrong, without the advice that libraries add to it."""
    # datasets wraps what it meets while it writes its cache in a sentence that says nothing.
    reason = (type(error).__name__ == "DatasetGenerationError" and error.__cause__) or error
    return (str(reason).strip().splitlines() or [type(reason).__name__])[0]
