"""mix: a share of the training sequences are samples of tasks with known answers, in the place of text."""

import numpy as np

from eval.tasks import build, seed_of
from eval.voice import Voice, in_bytes, in_words
from lab.data import Side
from lab.settings import Mixed, Run
from lab.tokenizer import tokenizer_of

Call = dict[str, np.ndarray]


class Mix:
    """Puts samples into batches. Which rows and which samples: a function of seed, step and row, as batches are, so a
    resumed run sees the same ones. They are learned as text is, from every token; haystacks are cut from the training
    side."""

    def __init__(self, run: Run, side: Side):
        self.parts, self.seed = run.data.mix, run.seed
        self.voice = voice_for(run.data.tokenizer, side.ids) if self.parts else None

    def into(self, call: Call, step: int) -> Call:
        """A batch's call, (size, length) each, with the rows that fell to a task replaced."""
        if not self.parts:
            return call
        call = {name: x.copy() for name, x in call.items()}
        size, length = call["input_ids"].shape
        for row, part in drawn(self.parts, size, self.seed, step):
            number = step * size + row
            [sample] = build(
                part.task, part.options, length=length + 1, count=1, voice=self.voice, seed=self.seed, first=number
            )
            call["input_ids"][row], call["shift_labels"][row] = sample.ids[:-1], sample.ids[1:]
            if "segments" in call:  # one document, whole
                call["segments"][row], call["position_ids"][row] = 0, np.arange(length)
        return call


def drawn(parts: list[Mixed], size: int, seed: int, step: int) -> list[tuple[int, Mixed]]:
    """(row, what it becomes) of the rows that are no text at this step."""
    draws = np.random.default_rng(seed_of("mix", seed, step)).random(size)
    which = np.searchsorted(np.cumsum([part.share for part in parts]), draws, side="right")
    return [(row, parts[n]) for row, n in enumerate(which.tolist()) if n < len(parts)]


def voice_for(tokenizer: str, ids: np.ndarray) -> Voice:
    """How tasks are said to a model with this tokenizer, in haystacks cut from these ids."""
    if tokenizer == "bytes":
        return in_bytes(ids)
    encode = tokenizer_of(tokenizer).encode
    return in_words(lambda text: encode([text])[0].tolist(), ids)
