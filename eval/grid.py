"""grid: needles at many depths and lengths; one haystack holds those of all depths and is read once a length."""

# D depths · L tokens

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval import EvalError
from eval.fork import Fork
from eval.layout import bury, check_depth
from eval.sample import Answered, Sample, answered, one
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
    for stack in stacks:
        if prefix_consistent:
            yield from forked(model, stack, batch_tokens)
        else:
            yield from answered(model, stack.samples, batch_tokens=batch_tokens)


@torch.no_grad()
def forked(model: nn.Module, stack: Haystack, batch_tokens: int) -> list[Answered]:
    """The answers of one haystack from one reading of what its samples share."""
    device, samples = next(model.parameters()).device, stack.samples
    name, cache = read(model, torch.from_numpy(samples[0].ids[None, : stack.shared]).to(device))
    size, found = max(1, batch_tokens // len(samples[0].ids)), []
    room = max(len(sample.ids) for sample in samples) - stack.shared
    for at in range(0, len(samples), size):
        part = samples[at : at + size]
        if at == 0 or len(part) < size:  # the last may be fewer
            fork = Fork(cache, len(part), room)
        found += asked(model, part, stack.shared, name, fork.again(), device)
    return found


def read(model: nn.Module, ids: Tensor) -> tuple[str, object]:
    """What the model keeps of (1, L) ids, and under which name it hands that out and takes it back."""
    takes = inspect.signature(model.forward).parameters
    # A head on all of a long haystack can take more memory than all the rest.
    seen = model(input_ids=ids, use_cache=True, **({"logits_to_keep": 1} if "logits_to_keep" in takes else {}))
    for name in ("cache", "past_key_values"):  # the first from transformers 5.24 on
        if (cache := getattr(seen, name, None)) is not None:
            return name, cache
    raise EvalError(
        f"{type(model).__name__} returns no cache: ask each question in a forward of its own, prefix_consistent=False"
    )


def asked(model: nn.Module, samples: Sequence[Sample], shared: int, name: str, cache, device) -> list[Answered]:
    """The answers to questions that follow what is in the cache, once for each."""
    longest = max(len(sample.ids) for sample in samples) - shared
    # Shorter ones are filled up at their end, where nothing that counts can see it.
    tails = torch.from_numpy(np.stack([np.resize(sample.ids[shared:], longest) for sample in samples])).to(device)
    logits = model(input_ids=tails[:, :-1], use_cache=True, **{name: cache}).logits  # (D, longest - 1, V)
    right = (logits.argmax(-1) == tails[:, 1:]).cpu().numpy()
    nats = F.cross_entropy(logits.float().transpose(1, 2), tails[:, 1:], reduction="none").cpu().double().numpy()
    return [one(sample, 0, right[n], nats[n], shared + 1) for n, sample in enumerate(samples)]
