"""grid: needles at many depths and lengths; one haystack holds those of all depths and is read once a length."""

# D depths · L tokens

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from eval import EvalError
from eval.fork import Fork
from eval.layout import bury, check_depth
from eval.sample import Answered, Answering, Sample, one
from eval.score import in_pieces, nats, vocabulary
from eval.scorer import Budget
from eval.tasks import seed_of
from eval.voice import Voice


@dataclass(frozen=True)
class Haystack:
    """D samples, one for each depth, that begin with the same `shared` tokens: a haystack with all D needles."""

    samples: tuple[Sample, ...]
    shared: int


def haystacks(
    lengths: Sequence[int], depths: Sequence[float], *, voice: Voice, count: int = 1, seed: int = 0
) -> list[Haystack]:
    """`count` haystacks of each length. Every needle has a key and a value of its own: a question has D - 1 others to
    tell its needle from, at every length alike. Samples have `length` tokens; where a tokenizer makes questions of
    different sizes, the longest has, and the others are as many tokens shorter.

    Raises EvalError where D needles, a question and its answer do not fit.
    """
    for depth in depths:
        check_depth(depth)
    return [
        haystack(length, list(depths), voice, number, group, seed)
        for group, (length, number) in enumerate((length, n) for length in lengths for n in range(count))
    ]


def haystack(length: int, depths: list[float], voice: Voice, number: int, group: int, seed: int) -> Haystack:
    random = np.random.default_rng(seed_of("grid", depths, length, number, seed))
    keys, values = voice.some_keys(random, len(depths)), voice.some_values(random, len(depths))
    tails = [voice.dialogue([(voice.question.format(key=k), v)]) for k, v in zip(keys, values, strict=True)]
    longest = max(len(tail) for tail, _ in tails)
    facts = [(d, voice.fact.format(key=k, value=v)) for d, k, v in zip(depths, keys, values, strict=True)]
    try:
        ids, starts = bury(voice, random, length - longest, facts, longest)
    except EvalError as error:
        raise EvalError(f"grid of {len(depths)} depths: {error}") from None
    samples = []
    for depth, start, (tail, [(first, past)]) in zip(depths, starts, tails, strict=True):
        span = (len(ids) + first, len(ids) + past)
        about = {"task": "grid", "length": length, "depth": depth, "distance": span[0] - start}
        samples.append(Sample(np.concatenate([ids, tail]), (span,), about, group))
    return Haystack(tuple(samples), len(ids))


def grid(
    model: nn.Module, stacks: Sequence[Haystack], *, prefix_consistent: bool = True, batch_tokens: int = 4096
) -> Iterator[Answered]:
    """The answers of each haystack, in order, by reading it once and asking every question of a copy of the cache.

    prefix_consistent: whether what the model keeps of a token depends on nothing after it. If not, every question is
    asked in a forward of its own, which gives the same answers and costs about D times as much.
    batch_tokens: tokens in all the copies of a cache together, or in one forward.
    """
    asking = Answering(model, Budget(batch_tokens))
    for stack in stacks:
        yield from answers_of(asking, stack, prefix_consistent)


def answers_of(asking: Answering, stack: Haystack, prefix_consistent: bool) -> list[Answered]:
    """Those of one haystack, in order."""
    if prefix_consistent:
        return forked(asking, stack)
    return [found for [found] in asking.answers(stack.samples)]


def forked(asking: Answering, stack: Haystack) -> list[Answered]:
    """The answers of one haystack from one reading of what its samples share.

    What does not fit is read in pieces, and asked of fewer copies: the tails are too short for their logits to matter.
    """
    samples, length, reading = stack.samples, len(stack.samples[0].ids), None
    while reading is None:
        make = partial(Reading, asking.model, stack, asking.budget.piece)
        reading = asking.fitting(make, 1, stack.shared, 1, vocabulary(asking.model))
    found: list[Answered] = []
    while len(found) < len(samples):
        part = samples[len(found) :][: max(1, asking.budget.tokens // length)]
        found += asking.fitting(partial(reading.answers, part), len(part), length, reading.room, 0) or []
    return found


class Reading:
    """What the samples of a haystack share, read once; questions are asked of copies of the cache."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, stack: Haystack, piece: int | None):
        """piece: how many tokens at a time; None: whole."""
        self.model, self.shared, self.fork = model, stack.shared, None
        self.device = next(model.parameters()).device
        self.room = max(len(sample.ids) for sample in stack.samples) - stack.shared
        ids = torch.from_numpy(stack.samples[0].ids[None, : stack.shared]).to(self.device)
        self.name, self.cache = read(model, ids, piece)

    @torch.no_grad()
    def answers(self, samples: Sequence[Sample]) -> list[Answered]:
        """The answers to questions that follow what is in the cache, asked together."""
        if self.fork is None or self.fork.rows != len(samples):
            self.fork = None  # there may be no room for two
            self.fork = Fork(self.cache, len(samples), self.room)
        longest = max(len(sample.ids) for sample in samples) - self.shared
        # Shorter ones are filled up at their end, where nothing that counts can see it.
        tails = np.stack([np.resize(sample.ids[self.shared :], longest) for sample in samples])
        tails = torch.from_numpy(tails).to(self.device)
        logits = self.model(input_ids=tails[:, :-1], use_cache=True, **{self.name: self.fork.again()}).logits
        right = (logits.argmax(-1) == tails[:, 1:]).cpu().numpy()  # (D, longest - 1)
        losses = nats(logits, tails[:, 1:]).cpu().double().numpy()
        return [one(sample, 0, right[n], losses[n], self.shared + 1) for n, sample in enumerate(samples)]


def read(model: nn.Module, ids: Tensor, piece: int | None = None) -> tuple[str, object]:
    """What the model keeps of (1, L) ids, and under which name it hands that out and takes it back."""
    instead = "ask each question in a forward of its own, prefix_consistent=False"
    *_, (_, name, cache) = in_pieces(model, ids, piece or ids.shape[1], instead)
    return name, cache
