"""Pairs of token ids: parallel text in flat memory-mapped files, and batches of it by token count."""

# N pairs · B rows of a batch · S tokens of its longest source · T tokens of its longest target

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from lab import LabError
from lab.checkpoint import replacing
from lab.seq2seq import bpe
from lab.seq2seq.parallel import Pair, identity, sides
from lab.seq2seq.settings import Pairs

FORMAT = 1  # of the cached files
TOGETHER = 4096  # texts a tokenizer is given at once
Rows = list[tuple[np.ndarray, np.ndarray]]
"""Source and target ids of each row, both with their end token."""


@dataclass(frozen=True)
class Flat:
    """Sequences laid end to end."""

    ids: np.ndarray
    starts: np.ndarray  # (N + 1,) int64

    def __getitem__(self, n: int) -> np.ndarray:
        return self.ids[self.starts[n] : self.starts[n + 1]]

    @property
    def lengths(self) -> np.ndarray:  # (N,)
        return np.diff(self.starts)


@dataclass(frozen=True)
class Parallel:
    """The pairs of one side."""

    sources: Flat
    targets: Flat

    def rows(self, numbers: np.ndarray) -> Rows:
        return [(self.sources[n], self.targets[n]) for n in numbers.tolist()]


@dataclass(frozen=True)
class PairCorpus:
    train: Parallel
    held_out: Parallel
    texts: list[tuple[str, str]]  # of the held-out pairs
    tokenizer: PreTrainedTokenizerFast
    meta: dict[str, Any]


def pair_corpus(settings: Pairs) -> PairCorpus:
    """The pairs of these settings as ids: built at the first call, then read from settings.cache.

    Raises LabError where the source cannot be read, a side has no pair, or the tokenizer lacks a token.
    """
    made_from = {"format": FORMAT, "source": identity(settings), "settings": settings.model_dump(exclude={"cache"})}
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = Path(settings.cache).expanduser() / f"pairs-{key}"
    if not (folder / "meta.json").exists():
        found = sides(settings)
        tokenizer = tokenizer_for(settings, found["train"])
        with replacing(folder) as side:
            write(side, found, tokenizer, made_from)
    return opened(folder)


def tokenizer_for(settings: Pairs, pairs: list[Pair]) -> PreTrainedTokenizerFast:
    if settings.tokenizer == "bpe":
        if not pairs:
            raise LabError("data.tokenizer: at data.held_out 1 there is no text to train `bpe` on: name a tokenizer")
        return bpe.trained((text for _, *both in pairs for text in both), settings.vocabulary)
    return bpe.of_bytes() if settings.tokenizer == "bytes" else bpe.read(settings.tokenizer)


def write(folder: Path, found: dict[str, list[Pair]], tokenizer: PreTrainedTokenizerFast, made_from: dict) -> None:
    dtype = np.min_scalar_type(len(tokenizer))
    meta = {"vocab_size": len(tokenizer), "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    for side, pairs in found.items():
        meta[side] = {"pairs": len(pairs)}
        for what, which in (("sources", 1), ("targets", 2)):
            lists = [ids for part in chunks([pair[which] for pair in pairs]) for ids in bpe.encoded(tokenizer, part)]
            starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
            ids = np.fromiter((one for part in lists for one in part), dtype, int(starts[-1]))
            np.save(folder / f"{side}.{what}.ids.npy", ids), np.save(folder / f"{side}.{what}.starts.npy", starts)
            meta[side][f"{what}_tokens"] = int(starts[-1])
    (folder / "held_out.json").write_text(json.dumps([pair[1:] for pair in found["held_out"]], ensure_ascii=False))
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "meta.json").write_text(json.dumps(made_from | meta, indent=1, default=str))


def chunks(texts: list[str]) -> Iterator[list[str]]:
    return (texts[at : at + TOGETHER] for at in range(0, len(texts), TOGETHER))


def opened(folder: Path) -> PairCorpus:
    def flat(name: str) -> Flat:
        return Flat(*(np.load(folder / f"{name}.{part}.npy", mmap_mode="r") for part in ("ids", "starts")))

    train, held_out = (Parallel(flat(f"{side}.sources"), flat(f"{side}.targets")) for side in ("train", "held_out"))
    texts = [tuple(pair) for pair in json.loads((folder / "held_out.json").read_text())]
    meta = json.loads((folder / "meta.json").read_text())
    return PairCorpus(train, held_out, texts, bpe.read(folder / "tokenizer"), meta)


def batches(side: Parallel, *, longest: int, tokens: int, seed: int) -> list[np.ndarray]:
    """The numbers of the pairs of each batch: of about one length, and at most `tokens` on either side with padding.

    longest: tokens; longer pairs are left out.   seed: the order among pairs of one length.
    Raises LabError where no pair is left.
    """
    s, t = side.sources.lengths, side.targets.lengths
    kept = np.flatnonzero(np.maximum(s, t) <= longest)
    if not len(s):
        raise LabError("data: at data.held_out 1 there are no pairs to train on: lower it")
    if not len(kept):
        raise LabError(
            f"train.length: none of {len(s)} pairs has at most {longest} tokens on both sides, the shortest "
            f"{int(np.maximum(s, t).min())}: raise it"
        )
    kept = np.random.default_rng(seed).permutation(kept)
    kept = kept[np.lexsort((s[kept], t[kept]))]
    cuts, first, widest = [], 0, 0
    for n, size in enumerate(np.maximum(s, t)[kept].tolist()):
        widest = max(widest, size)
        if n > first and widest * (n + 1 - first) > tokens:
            cuts.append(n)
            first, widest = n, size
    return np.split(kept, cuts)


@functools.lru_cache(2)
def order(count: int, seed: int, epoch: int) -> np.ndarray:
    """In which the batches are visited; every epoch visits each once."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def padded(rows: Rows, pad: int, share: int = 1) -> dict[str, np.ndarray]:
    """The model's arguments: input_ids and attention_mask (B, S), labels (B, T), -100 behind each target.

    share: B is made a multiple of it, by rows that have a source and nothing to predict.
    """
    rows = [*rows, *[(rows[0][0], np.zeros(0, np.int64))] * (-len(rows) % share)]
    s, t = (max(map(len, column)) for column in zip(*rows, strict=True))
    call = {
        "input_ids": np.full((len(rows), s), pad, np.int64),
        "attention_mask": np.zeros((len(rows), s), np.int64),
        "labels": np.full((len(rows), t), -100, np.int64),
    }
    for n, (source, target) in enumerate(rows):
        call["input_ids"][n, : len(source)] = source
        call["attention_mask"][n, : len(source)] = 1
        call["labels"][n, : len(target)] = target
    return call
