"""Retrieval: facts in a haystack, asked for at its end: passkey, needles, and controls with nothing to find."""

import numpy as np

from eval import EvalError
from eval.layout import check_count, check_depth, contains, lay_out
from eval.sample import Sample
from eval.voice import Voice


def passkey(random: np.random.Generator, length: int, voice: Voice, *, depth: float | None = None) -> Sample:
    """One number that no key names.   depth: share of the haystack before it; None: drawn anew for each sample."""
    check_depth(depth)
    [value], depth = voice.some_values(random, 1), drawn(random, depth)
    fact, question = voice.passkey
    return sample(voice, random, length, [(depth, fact.format(value=value))], [(question, value)], [0], depth)


def passkey_no_needle(random: np.random.Generator, length: int, voice: Voice) -> Sample:
    """Control: haystack, question, and a number that is nowhere in it. What is right here is right by chance."""
    return nothing(voice, random, length, voice.passkey[1])


def niah(random: np.random.Generator, length: int, voice: Voice, *, depth: float | None = None) -> Sample:
    """A needle: one key with one value, asked for by its key."""
    return niah_multi_key(random, length, voice, depth=depth, keys=1)


def niah_multi_key(
    random: np.random.Generator, length: int, voice: Voice, *, depth: float | None = None, keys: int = 4
) -> Sample:
    """Needles of different keys, one of which is asked for.   depth: of that one; the others lie anywhere."""
    check_depth(depth), check_count(keys=keys)
    names, values, depth = voice.some_keys(random, keys), voice.some_values(random, keys), drawn(random, depth)
    depths = [depth, *random.random(keys - 1).tolist()]
    asked = [(voice.question.format(key=names[0]), values[0])]
    return sample(voice, random, length, facts(voice, depths, names, values), asked, [0], depth)


def niah_multi_value(random: np.random.Generator, length: int, voice: Voice, *, values: int = 4) -> Sample:
    """Needles of one key with different values, all of which are the answers, in the order in which they appear."""
    check_count(values=values)
    [name], found, depths = (
        voice.some_keys(random, 1),
        voice.some_values(random, values),
        sorted(random.random(values).tolist()),
    )
    first = [(voice.question.format(key=name), found[0])]
    asked = first + [(",", value) for value in found[1:]]
    return sample(voice, random, length, facts(voice, depths, [name] * values, found), asked, range(values))


def niah_multi_query(random: np.random.Generator, length: int, voice: Voice, *, queries: int = 4) -> Sample:
    """Needles of different keys, all asked for, one after the other, in an order of their own."""
    check_count(queries=queries)
    names, values, depths = (
        voice.some_keys(random, queries),
        voice.some_values(random, queries),
        random.random(queries).tolist(),
    )
    asked = [(voice.question.format(key=name), value) for name, value in zip(names, values, strict=True)]
    asked = asked[:1] + [(voice.close + question, value) for question, value in asked[1:]]
    return sample(voice, random, length, facts(voice, depths, names, values), asked, range(queries))


def niah_no_needle(random: np.random.Generator, length: int, voice: Voice) -> Sample:
    """Control: a key is asked for that the haystack never had."""
    return nothing(voice, random, length, voice.question.format(key=voice.some_keys(random, 1)[0]))


def niah_wrong_key(
    random: np.random.Generator, length: int, voice: Voice, *, depth: float | None = None, keys: int = 1
) -> Sample:
    """Control: another key is asked for than any that is there. It counts as exact to answer with the first needle's
    value all the same: a model that does looks for a number and not for the key."""
    check_depth(depth), check_count(keys=keys)
    (absent, *names), values = voice.some_keys(random, keys + 1), voice.some_values(random, keys)
    depth = drawn(random, depth)
    depths = [depth, *random.random(keys - 1).tolist()]
    asked = [(voice.question.format(key=absent), values[0])]
    return sample(voice, random, length, facts(voice, depths, names, values), asked, [0], depth)


def drawn(random: np.random.Generator, depth: float | None) -> float:
    return float(random.random()) if depth is None else depth


def facts(voice: Voice, depths, names, values) -> list[tuple[float, str]]:
    return [
        (depth, voice.fact.format(key=name, value=value))
        for depth, name, value in zip(depths, names, values, strict=True)
    ]


def sample(voice: Voice, random, length: int, facts, asked, wanted, depth: float | None = None) -> Sample:
    """wanted: which fact each answer is about."""
    ids, starts, spans = lay_out(voice, random, length, facts, asked)
    each = tuple(
        {"depth": facts[n][0], "distance": first - starts[n]} for n, (first, _) in zip(wanted, spans, strict=True)
    )
    return Sample(ids, tuple(spans), {} if depth is None else {"depth": depth}, each=each)


def nothing(voice: Voice, random: np.random.Generator, length: int, question: str) -> Sample:
    """Asks for one of a few numbers, the first that does not happen to stand in the text of the haystack."""
    values = voice.some_values(random, 9)
    state = random.bit_generator.state
    for value in values:
        random.bit_generator.state = state  # the same haystack for each
        ids, _, spans = lay_out(voice, random, length, [], [(question, value)])
        [(first, past)] = spans
        if not contains(ids[:first], ids[first:past]):
            return Sample(ids, tuple(spans))
    raise EvalError(f"the haystack holds each of {', '.join(values)}: it must not be made of numbers")
