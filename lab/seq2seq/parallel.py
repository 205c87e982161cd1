"""Parallel text: two files line by line, a dataset of the hub, or the message catalogues that programs carry."""

import gettext
import hashlib
from collections.abc import Iterator
from pathlib import Path

from lab import LabError
from lab.pretrained import PACKAGE, folders
from lab.seq2seq.settings import Pairs
from lab.sources import dataset, first_line

CATALOGUES = ["/usr/share/locale", "/usr/local/share/locale"]
"""Where systems keep them."""

Pair = tuple[str, str, str]
"""What it is called, the source, the target."""


def pairs(settings: Pairs) -> Iterator[Pair]:
    """The pairs of these settings that have text on both sides, each source once, as many as are asked for."""
    read = {"text": of_files, "hub": of_hub, "gettext": of_catalogues}[settings.source]
    seen, found = set(), 0
    for name, source, target in read(settings):
        source, target = " ".join(source.split()), " ".join(target.split())
        if source and target and source not in seen:
            seen.add(source)
            yield name, source, target
            found += 1
            if found == settings.pairs:
                return


def of_files(settings: Pairs) -> Iterator[Pair]:
    """Line n of the second file translates line n of the first. Raises LabError where they are not equally long."""
    both = [lines_of(Path(path).expanduser()) for path in settings.path]
    for path, lines in zip(settings.path, both, strict=True):
        if not any(map(str.strip, lines)):
            raise LabError(f"data.path: {path} is empty: give a file with a sentence on each line", code=2)
    if len(both[0]) != len(both[1]):
        counts = " and ".join(f"{path} has {len(lines)} lines" for path, lines in zip(settings.path, both, strict=True))
        raise LabError(f"data.path: {counts}: line n of one has to translate line n of the other", code=2)
    return ((f"line {n}", *pair) for n, pair in enumerate(zip(*both, strict=True), 1))


def lines_of(path: Path) -> list[str]:
    """Without what ends them; `splitlines` would also cut at characters that a sentence may hold."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LabError(f"data.path: no file {path}, seen from {Path.cwd()}", code=2) from None
    except IsADirectoryError:
        raise LabError(f"data.path: {path} is a folder: give one file for each language", code=2) from None
    except OSError as error:
        raise LabError(f"data.path: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LabError(f"data.path: {path} is not UTF-8 text (from byte {error.start}): convert it") from None
    return text.removesuffix("\n").split("\n") if text else []


def of_hub(settings: Pairs) -> Iterator[Pair]:
    """A column that holds a text for each language, {"en": …, "de": …}, or a column for each language."""
    rows = dataset(settings)
    one, other = settings.languages
    for number, row in enumerate(rows, 1):
        texts = row.get(settings.column, row)
        if not isinstance(texts, dict) or not {one, other} <= texts.keys():
            raise LabError(
                f"data.languages: {settings.name} has no {one} and {other} in its column `{settings.column}`, nor "
                f"columns of these names; it has {', '.join(row)}"
            )
        yield f"{settings.name}:{number}", texts[one] or "", texts[other] or ""


def of_catalogues(settings: Pairs) -> Iterator[Pair]:
    """Messages and their translations, from `LANGUAGE/LC_MESSAGES/*.mo` below the folders of data.path, in a Python
    package that it names, or from the catalogues it names; without a path, from those of the system. Messages are
    English."""
    one, other = settings.languages
    if "en" not in (one, other):
        raise LabError(f"data.languages: messages of programs are English: write [en, {other}], not [{one}, {other}]")
    language = other if one == "en" else one
    files = [file for path in settings.path or CATALOGUES for file in catalogues(path, language)]
    if not files:
        places = ", ".join(settings.path or CATALOGUES)
        raise LabError(f"data.path: no catalogue {language}/LC_MESSAGES/*.mo below {places}: name a folder with one")
    for file in files:
        for message, translation in messages(file):
            pair = (message, translation) if one == "en" else (translation, message)
            yield f"{file.stem}: {message[:40]}", *pair


def catalogues(path: str, language: str) -> list[Path]:
    """path: a catalogue, a folder with some below it, or `package:NAME`."""
    places = folders(path) if path.startswith(PACKAGE) else [Path(path).expanduser()]
    if places[0].is_file():
        return places
    return sorted(file for place in places for file in place.glob(f"**/{language}/LC_MESSAGES/*.mo"))


def messages(file: Path) -> Iterator[tuple[str, str]]:
    """(message, translation) of a catalogue; of a message with plural forms its singular, its context left out."""
    try:
        with file.open("rb") as opened:
            found = gettext.GNUTranslations(opened)._catalog
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise LabError(f"data.path: {file} is no catalogue of messages: {first_line(error)}") from error
    for key, translation in found.items():
        message, form = key if isinstance(key, tuple) else (key, 0)
        if message and not form:
            yield message.partition("\4")[2] or message, translation


def sides(settings: Pairs) -> dict[str, list[Pair]]:
    """`train` and `held_out`: which of them a pair is on hangs on its source alone."""
    found: dict[str, list[Pair]] = {"train": [], "held_out": []}
    for pair in pairs(settings):
        draw = int.from_bytes(hashlib.sha256(pair[1].encode()).digest()[:8], "big")
        found["held_out" if draw < settings.held_out * 2**64 else "train"].append(pair)
    for side, some in found.items():
        if not some and not (side == "train" and settings.held_out == 1):
            raise LabError(
                f"data: none of {sum(map(len, found.values()))} pairs is on the side {side}, of which data.held_out "
                f"{settings.held_out:g} are to be held out: give more text, or another share"
            )
    return found


def identity(settings: Pairs) -> dict:
    """What tells one text from another: a hash of the files, or the dataset's own mark."""
    if settings.source == "hub":
        return {"name": settings.name, "fingerprint": getattr(dataset(settings), "_fingerprint", None)}
    digest = hashlib.sha256()
    one, other = settings.languages
    for path in settings.path or CATALOGUES:
        of_text = [Path(path).expanduser()]
        files = of_text if settings.source == "text" else catalogues(path, other if one == "en" else one)
        for file in files:
            digest.update(file.read_bytes() if file.is_file() else b"")
    return {"path": settings.path, "sha256": digest.hexdigest()}
