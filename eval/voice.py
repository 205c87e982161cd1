"""Voices: how a task is said in tokens, to a model that reads bytes or to one that reads text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval import EvalError
from eval.plan import Document

# Every text is encoded whole, once, and its ids are put where they belong. Nothing is decoded and encoded again: that
# garbles what it moves, since the same letters become other tokens at another place.

PLAIN = np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8).astype(np.int64)


@dataclass(frozen=True)
class Voice:
    """How keys, values, facts and questions are said, and what haystacks are made of."""

    encode: Callable[[str], Sequence[int]]  # without special tokens
    haystack: NDArray | None  # (N,) ids that haystacks are cut from; None: letters, drawn one by one
    keys: tuple[tuple[str, ...], ...]  # a key takes one part from each
    fact: str  # of {key} and {value}
    question: str  # of {key}; the value follows
    passkey: tuple[str, str]  # fact of a {value} without a key, and its question
    resolve: str  # asks what a {key} stands for in the end, through other keys
    trace: str  # asks which keys stand for a {value}
    close: str  # what ends an answer
    alphabet: NDArray  # ids that tasks of bare tokens draw from
    blank: int  # the id at places that hold nothing; not in the alphabet
    mark: int  # the id after which a task of bare tokens is answered; not in the alphabet
    lead: str = ""  # before each answer
    start: tuple[int, ...] = ()  # what every sample begins with, as every training sequence did
    digits: int = 5

    def filler(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` tokens of haystack."""
        if self.haystack is None:
            return random.choice(PLAIN, count)
        if count > len(self.haystack):
            raise EvalError(f"the text for haystacks has {len(self.haystack)} tokens, and {count} are needed: add text")
        at = random.integers(len(self.haystack) - count + 1)
        return np.array(self.haystack[at : at + count], np.int64)

    def some_keys(self, random: np.random.Generator, count: int) -> list[str]:
        """Different keys."""
        sizes = [len(parts) for parts in self.keys]
        if count > math.prod(sizes):
            raise EvalError(f"{count} different keys were asked for, and there are {math.prod(sizes)}")
        chosen = np.unravel_index(random.choice(math.prod(sizes), count, replace=False), sizes)
        return ["".join(parts[n] for parts, n in zip(self.keys, one, strict=True)) for one in zip(*chosen, strict=True)]

    def some_values(self, random: np.random.Generator, count: int) -> list[str]:
        """Different numbers of `digits` digits, none beginning with 0."""
        least = 10 ** (self.digits - 1)
        if count > 9 * least:
            raise EvalError(f"{count} different values were asked for, and {self.digits} digits make {9 * least}")
        return [str(least + n) for n in random.choice(9 * least, count, replace=False)]

    def ids(self, text: str) -> NDArray[np.int64]:
        return np.array(self.encode(text), np.int64)

    def dialogue(self, parts: Sequence[tuple[str, str]]) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """The ids of (what is asked, the answer) in turn, and where each answer lies among them.

        Raises EvalError where the tokenizer joins the end of one to the beginning of the next.
        """
        text, cuts = "", []
        for asked, answer in parts:
            for said in (asked, self.lead + answer):
                text += said
                cuts.append((len(self.encode(text)), text))
        whole = self.ids(text)
        for cut, said in cuts[:-1]:
            if list(self.encode(said)) != whole[:cut].tolist():
                raise EvalError(f"the tokenizer joins the end of {said[-12:]!r} to what follows: end it otherwise")
        ends = [cut for cut, _ in cuts]
        return whole, list(zip(ends[::2], ends[1::2], strict=True))


def in_bytes(haystack: NDArray | None = None, start: tuple[int, ...] = ()) -> Voice:
    """For a model with a vocabulary of 256. Every key has 4 bytes and every value 5, so that all samples are alike.

    The question repeats the beginning of the fact: looking for what followed it is all that a small model must learn.
    haystack: ids of the user's own text; None: letters drawn one by one, among which no key or value can be.
    """
    return Voice(
        encode=lambda text: list(text.encode()),
        haystack=haystack,
        keys=("ABCDEFGHIJKLMNOPQRSTUVWXYZ",) * 4,
        fact="<{key}:{value}>",
        question="<{key}:",
        passkey=("<PASS:{value}>", "<PASS:"),
        resolve="?{key}:",
        trace="?{value}:",
        close=">",
        alphabet=np.setdiff1d(np.arange(1, 256), (ord(" "), ord("\n"))),
        blank=ord(" "),
        mark=ord("\n"),
        start=start,
    )


def in_words(
    encode: Callable[[str], Sequence[int]],
    haystack: NDArray,
    start: tuple[int, ...] = (),
) -> Voice:
    """For a pretrained model: numbers in English sentences, the passkey's as in Mohtashami & Jaggi 2023, 2305.16300.

    encode: without special tokens.   haystack: ids of a text.   start: what the model's tokenizer begins texts with.
    """
    blank, mark = (list(encode(text))[-1] for text in ("\n", ":"))
    return Voice(
        encode=encode,
        haystack=haystack,
        keys=(
            tuple("amber bold calm dark eager faint glad huge idle kind loud mild neat old pale quick red shy".split()),
            tuple(
                f" {n}" for n in "badger candle desert engine falcon garden hammer island jacket kettle lantern".split()
            ),
            tuple(f" {n}" for n in "beach camp forest harbor market museum palace river school tower valley".split()),
        ),
        fact=" The number of the {key} is {value}.",
        question=" What is the number of the {key}? The number of the {key} is",
        passkey=(
            " The pass key is {value}. Remember it. {value} is the pass key.",
            " What is the pass key? The pass key is",
        ),
        resolve=" Follow the numbers. In the end, the number of the {key} is",
        trace=" Follow the numbers. In the end, {value} is the number of these: the",
        close=",",
        alphabet=np.setdiff1d(np.unique(haystack[: 2**20]), (blank, mark)),
        blank=blank,
        mark=mark,
        lead=" ",
        start=start,
    )


def grass(encode: Callable[[str], Sequence[int]], count: int) -> NDArray[np.int64]:
    """At least `count` ids of the haystack that passkeys were first hidden in (2305.16300): one line, many times."""
    line = encode(" The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.")
    return np.resize(np.array(line, np.int64), max(count, len(line)))


def voice_of(documents: list[Document], tokenizer, bos: int | None) -> Voice:
    """Questions in English, in haystacks cut from these documents."""

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]

    start = () if bos is None else (bos,)
    return in_words(encode, np.concatenate([one.ids[len(start) :].numpy() for one in documents]), start)
