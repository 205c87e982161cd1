"""Checks of what an encoding's output may depend on: which tokens, how many, where they sit, what was run before."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · D head size

from collections.abc import Callable

import torch
from torch import Tensor

from lab.cache import NAME
from lab.model import LabConfig, LabModel
from lab.probe import (
    Fails,
    Skips,
    at,
    difference,
    few,
    hidden,
    in_each_layer,
    left_padded,
    made,
    many,
    output,
    packed,
    placed,
    same,
)
from positional import Positions, Scheme, Shape, build
from positional.build import Spec

FAR = 131072


def sees_no_future(spec: Spec, shape: Shape) -> None:
    """Other tokens behind a token change nothing at it."""
    scheme = made(spec, shape)
    for tokens in sorted({few(scheme), many(scheme)}):
        cut = max(1, tokens // 2)
        x = hidden(shape, tokens)
        other = torch.cat([x[:, :cut], -3 * x[:, cut:]], 1)

        def tried(layer: int, tokens: int = tokens, cut: int = cut, x: Tensor = x, other: Tensor = other) -> None:
            before, after = (output(scheme, one, Positions.first(tokens), layer)[:, :, :cut] for one in (x, other))
            same(after, before, f"with other tokens from {cut} on of {tokens}")

        in_each_layer(shape, tried)


def is_prefix_consistent_as_claimed(spec: Spec, shape: Shape) -> str | None:
    """How many tokens follow changes nothing, if `prefix_consistent` says so."""
    if not holds(sees_no_future, spec, shape):
        raise Skips("it looks ahead: see future")
    scheme = made(spec, shape)
    whole = many(scheme)
    x = hidden(shape, whole)
    shorter = sorted({1, few(scheme, 17), min(whole, shape.train_length), max(1, whole - 1)})

    def tried(layer: int) -> None:
        wanted = output(scheme, x, Positions.first(whole), layer)
        for n in shorter:
            found = output(scheme, x[:, :n], Positions.first(n), layer)
            same(found, wanted[:, :, :n], f"alone, or as the first {n} of {whole} (trained on {shape.train_length})")

    try:
        in_each_layer(shape, tried)
    except Fails as where:
        if scheme.prefix_consistent:
            raise Fails(f"prefix_consistent is true, but {where}") from None
        return "it claims not to be, and is not: no cache can be exact"
    return None if scheme.prefix_consistent else "it claims not to be, but is at the lengths tried"


def takes_the_last_queries_alone(spec: Spec, shape: Shape) -> None:
    """The last queries alone are those of the whole."""
    scheme = made(spec, shape)
    for tokens in sorted({few(scheme), many(scheme)}):
        x = hidden(shape, tokens)

        def tried(layer: int, tokens: int = tokens, x: Tensor = x) -> None:
            whole = output(scheme, x, Positions.first(tokens), layer)
            for queries in (1, min(9, tokens)):
                last = output(scheme, x, Positions.first(tokens, queries=queries), layer)
                same(last, whole[:, :, -queries:], f"the last {queries} of {tokens} alone", tokens - queries)

        in_each_layer(shape, tried)


def holds(property: Callable[[Spec, Shape], str | None], spec: Spec, shape: Shape) -> bool:
    try:
        property(spec, shape)
    except Fails:
        return False
    except Skips:
        pass
    return True


def decodes_with_a_cache(spec: Spec, shape: Shape) -> None:
    """Decoding with a cache gives the logits of the full forward."""
    scheme = build(spec, shape)
    if not scheme.prefix_consistent:
        raise Skips("no cache is exact for it: it is not prefix-consistent")
    if not holds(is_prefix_consistent_as_claimed, spec, shape) or not holds(sees_no_future, spec, shape):
        raise Skips("no cache is exact for it: see prefix and future")
    model, tokens = model_of(spec, shape).double().eval(), few(scheme, shape.train_length + 16)
    ids = torch.randint(50, (2, tokens), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(ids)
    mask[1, : tokens // 4] = 0
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        cache, found = None, []
        for new in pieces(tokens):
            out = model(ids[:, new], attention_mask=mask[:, : new.stop], use_cache=True, **{NAME: cache})
            cache, found = out[NAME], [*found, out.logits]
    for row, what in enumerate(("a row", f"a row behind {tokens // 4} places of padding")):
        real = mask[row].bool()
        mine, exact = (one[row : row + 1, real][:, None] for one in (torch.cat(found, 1), wanted))  # (1, 1, T, V)
        if place := difference(mine, exact, tokens - int(real.sum())):
            raise Fails(f"{what} of {tokens}, {place.replace(', head 0', ', logits')}")


def pieces(tokens: int) -> list[slice]:
    """Half of the tokens, then one by one, by three, and the rest."""
    ends = sorted({min(tokens, n) for n in (tokens // 2, *range(tokens // 2, tokens // 2 + 4), tokens - 9, tokens)})
    ends = sorted({n for n in ends if n > 0} | {n for n in range(tokens - 6, tokens) if n > 0})
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def model_of(spec: Spec, shape: Shape) -> LabModel:
    """A small model with every weight moved."""
    sizes = {"width": shape.width, "heads": shape.heads, "kv_heads": shape.kv_heads, "layers": shape.layers}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LabModel(LabConfig(vocab_size=50, **sizes, train_length=shape.train_length, positional=spec))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def reaches_no_further_than_it_says(spec: Spec, shape: Shape) -> None:
    """Tokens beyond its reach change nothing, so that a cache may forget them."""
    scheme = made(spec, shape)
    reaches = [scheme.at(layer).reach for layer in range(shape.layers)]
    if all(reach is None for reach in reaches):
        raise Skips("it claims no reach: a token may see all before it")
    tokens = few(scheme, max(reach or 0 for reach in reaches) + 9)
    x = hidden(shape, tokens)
    for layer, reach in enumerate(reaches):
        if reach is not None and reach < tokens:
            other = torch.cat([-3 * x[:, : tokens - reach], x[:, tokens - reach :]], 1)
            before, after = (output(scheme, one, Positions.first(tokens, queries=1), layer) for one in (x, other))
            same(after, before, f"layer {layer}, other tokens more than its reach of {reach} back", tokens - 1)


def ignores_left_padding(spec: Spec, shape: Shape) -> None:
    """Padding on the left changes nothing."""
    scheme = made(spec, shape)
    for tokens in sorted({few(scheme, 17), many(scheme)}):
        x = hidden(shape, 7 + tokens)

        def tried(layer: int, tokens: int = tokens, x: Tensor = x) -> None:
            alone = output(scheme, x[:, 7:], Positions.first(tokens), layer)
            padded = output(scheme, x, left_padded(tokens, 7), layer)[:, :, 7:]
            same(padded, alone, f"{tokens} tokens behind 7 places of padding")

        in_each_layer(shape, tried)


def keeps_documents_apart(spec: Spec, shape: Shape) -> None:
    """Packed documents are each as if alone."""
    scheme = made(spec, shape)
    lengths = [few(scheme, n) for n in (10, 23, 1, 14)]
    x = hidden(shape, sum(lengths))

    def tried(layer: int) -> None:
        together, start = output(scheme, x, packed(lengths), layer), 0
        for number, n in enumerate(lengths):
            alone = output(scheme, x[:, start : start + n], Positions.first(n), layer)
            same(together[:, :, start : start + n], alone, f"document {number} of {lengths} tokens")
            start += n

    in_each_layer(shape, tried)


def forgets_longer_inputs(spec: Spec, shape: Shape) -> None:
    """A long input leaves no trace on a short one."""
    scheme = made(spec, shape)
    tokens, longest = few(scheme, 20), min(scheme.limit or FAR, max(500, 4 * shape.train_length))
    x = hidden(shape, tokens)

    def tried(layer: int) -> None:
        alone = output(scheme, x, Positions.first(tokens), layer)
        output(scheme, hidden(shape, longest), Positions.first(longest, queries=min(8, longest)), layer)
        after = output(scheme, x, Positions.first(tokens), layer)
        same(after, alone, f"{tokens} tokens after an input of {longest}", tolerance=0)

    in_each_layer(shape, tried)


def depends_on_distance_alone(spec: Spec, shape: Shape) -> str | None:
    """Shifting all positions changes nothing; an encoding need not have this."""
    scheme = made(spec, shape)
    tokens = few(scheme, 20) if scheme.limit is None else max(1, min(20, scheme.limit // 2))
    room = FAR if scheme.limit is None else scheme.limit - tokens
    x = hidden(shape, tokens)
    for shift in sorted({min(shift, room) for shift in (1, 1000, FAR)}):
        here, there = torch.arange(tokens), torch.arange(tokens) + shift
        shifted = output(scheme, x, at(there))
        if place := difference(shifted, output(scheme, x, at(here))):
            if difference(shifted, output(scheme, x, at(here, tokens + shift))) is None:
                return f"depends on the length being run: as the end of {tokens + shift}, {place}"
            return f"depends on absolute position: shifted by {shift}, {place}"
    return None


def tells_order(spec: Spec, shape: Shape) -> str | None:
    """Two tokens that trade places change what comes after; an encoding need not have this."""
    scheme = made(spec, shape)
    if scheme.limit is not None and scheme.limit < 3:
        raise Skips(f"it takes at most {scheme.limit} tokens")
    x, pos = hidden(shape, 3), Positions.first(3)
    straight, traded = (output(scheme, x[:, order], pos)[:, :, -1:] for order in ([0, 1, 2], [1, 0, 2]))
    return None if difference(traded, straight) else "tells no order"


def places_tokens_in_training(spec: Spec, shape: Shape) -> None:
    """Where tokens are placed in training, the facts about their positions fit."""
    scheme = made(spec, shape)
    if all(type(one).place is Scheme.place for one in scheme.modules() if isinstance(one, Scheme)):
        raise Skips("it places no tokens")
    given = Positions.first(few(scheme))
    with torch.random.fork_rng(devices=[]):
        for seed in range(5):
            torch.manual_seed(seed)
            pos = placed(scheme, given)
            if (pos.tokens, pos.queries) != (given.tokens, given.queries):
                raise Fails(f"{given.tokens} tokens became {pos.tokens}, of which {pos.queries} ask")
            if not 0 <= int(pos.ids.min()) <= int(pos.ids.max()) < pos.length:
                raise Fails(f"length is {pos.length}, and positions go from {pos.ids.min()} to {pos.ids.max()}")
            if pos.contiguous and bool((pos.ids.diff(dim=-1) != 1).any()):
                raise Fails(f"they are said to be contiguous, and are {pos.ids[0].tolist()}")
