"""Variable tracking: A = 12345, B = A, C = B …: what is C? which are 12345? (Hsieh et al. 2024, 2404.06654)."""

from collections.abc import Callable

import numpy as np

from eval.layout import check_count, lay_out
from eval.sample import Sample
from eval.voice import Voice


def last_in_chain(random: np.random.Generator, length: int, voice: Voice, *, hops: int = 2, chains: int = 2) -> Sample:
    """The number that the last key of a chain stands for.

    hops: from that key to the number's own; 0 is a needle.   chains: so many, of which one is asked for.
    """
    return tracked(
        random, length, voice, hops, chains, lambda keys, value: [(voice.resolve.format(key=keys[-1]), value)]
    )


def all_in_chain(random: np.random.Generator, length: int, voice: Voice, *, hops: int = 2, chains: int = 2) -> Sample:
    """All keys that stand for a number, in the order in which they appear. hops, chains: as for `last_in_chain`."""

    def asked(keys, value):
        return [(voice.trace.format(value=value), keys[0]), *((",", key) for key in keys[1:])]

    return tracked(random, length, voice, hops, chains, asked)


def tracked(random, length: int, voice: Voice, hops: int, chains: int, asked: Callable) -> Sample:
    check_count(chains=chains)
    check_count(0, hops=hops)
    size = hops + 1
    keys = np.array(voice.some_keys(random, chains * size)).reshape(chains, size)
    values = voice.some_values(random, chains)
    depths = np.sort(random.random((chains, size)), axis=1)  # what a key stands for comes before it
    said = np.column_stack([np.array(values, object), keys[:, :-1]])
    facts = [
        (float(depths[c, n]), voice.fact.format(key=keys[c, n], value=said[c, n]))
        for c in range(chains)
        for n in range(size)
    ]
    ids, starts, spans = lay_out(voice, random, length, facts, asked(keys[0].tolist(), values[0]))
    about = {"hops": hops, "depth": facts[0][0]}
    return Sample(ids, tuple(spans), about, each=tuple({"distance": first - starts[0]} for first, _ in spans))
