"""What all methods of `lab extend` have in common: the model, the texts, the questions, and the folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from eval.asked import Questions
from eval.device import refuse_absent
from eval.entries import Asked
from eval.grid import Haystack
from eval.load import begins_with, identity_of, load, tokenizer_of
from eval.plan import Document
from eval.texts import first_token, long_enough
from eval.voice import Voice, voice_of
from lab import LabError
from lab.extend.settings import Extending
from lab.fits import refuse_unfitting
from lab.pretrained import config_of, located
from lab.rope.config import described
from lab.settings import Length, tokens
from lab.sources import documents
from positional import SchemeError, Shape, build


@dataclass(frozen=True)
class Bench:
    """One model, what it reads and is asked, and where what comes of it is kept."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    texts: list[Document]
    voice: Voice  # questions in English, in haystacks cut from the texts
    bos: int | None
    train_length: int
    to: int
    identity: str  # of the model and its weights
    folder: Path


def bench_of(asked: Extending, say: Callable[[str], None]) -> Bench:
    """Load what was asked for. Raises LabError or EvalError, naming what is missing or does not fit."""
    where, code = located(asked.model), asked.trust_remote_code
    config = config_of(asked.model, remote_code=code)
    own = described(config)
    train_length = asked.train_length or own.rotations[own.main].train_length
    to = length_of(asked.to, train_length)
    if to <= train_length:
        raise LabError(
            f"{asked.model} was trained on {train_length} tokens, and {to} are within: nothing is to be extended. "
            "Write a longer `to`, or `train_length` where it was trained on fewer",
            code=2,
        )
    refuse_unbuildable(asked, replace(own.rotations[own.main].shape, train_length=train_length))
    device = asked.device if asked.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    refuse_absent(device)
    refuse_unfitting(config, to, dtype_of(asked, config, device), device, asked.targets, remote_code=code)
    words = tokenizer_of(
        where, remote_code=code
    )  # before the weights, which texts that are too short need not wait for
    texts = long_enough(documents(asked.data), words, first_token(words), to + 1, asked.documents, say)
    model, tokenizer = load(where, asked.dtype, device, remote_code=code)
    bos = begins_with("auto", model, tokenizer, say)
    voice, folder = voice_of(texts, tokenizer, bos), Path(asked.folder) / asked.name
    return Bench(model, tokenizer, texts, voice, bos, train_length, to, identity_of(model), folder)


def length_of(to: Length, train_length: int) -> int:
    try:
        return tokens(to, train_length)
    except ValueError as error:
        raise LabError(f"to: {error}", code=2) from None


def refuse_unbuildable(asked: Extending, shape: Shape) -> None:
    """Raise LabError for an encoding among the methods that there is not, or that has other options."""
    for name, spec in (pair for one in asked.methods if isinstance(one, dict) for pair in one.items()):
        try:
            build(spec, shape)
        except SchemeError as error:
            raise LabError(f"methods: {name}: {error}", code=2) from None


def dtype_of(asked: Extending, config: PreTrainedConfig, device: str) -> torch.dtype:
    """What weights are loaded as."""
    if asked.dtype != "auto":
        return getattr(torch, asked.dtype)
    return torch.float32 if device == "cpu" else config.dtype or torch.float32


class CutQuestions(Questions):
    """The same questions, each read with the last `most` tokens before its end alone: what was there before is gone."""

    def __init__(self, tasks: list[Asked], lengths: list[int], voice: Voice, most: int):
        self.most = most
        super().__init__(tasks, lengths, voice)

    def made(self, asked: Asked, length: int, number: int) -> Haystack:
        whole, start = super().made(asked, length, number), np.array(self.voice.start, np.int64)
        gone = max(0, max(len(sample.ids) for sample in whole.samples) - self.most)
        if not gone:
            return whole
        samples = tuple(
            replace(
                sample,
                ids=np.concatenate([start, sample.ids[gone + len(start) :]]),
                answers=tuple((first - gone, past - gone) for first, past in sample.answers),
            )
            for sample in whole.samples
        )
        return Haystack(samples, whole.shared - gone)
