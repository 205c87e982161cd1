"""A probe: one layer of attention with random weights around an encoding, and where two answers of it differ."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size · C width

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lab.attention import Part, attend_parts, eager
from positional import Positions, Scheme, Shape, build
from positional.build import Spec

TOLERANCE = 1e-5
"""Of the largest value: the inputs are fp64, and what a scheme itself computes is fp32, after sums of many terms."""


class Fails(AssertionError):
    """A property that does not hold; the message says where."""


class Skips(Exception):
    """A property that does not apply; the message says why."""


def made(spec: Spec, shape: Shape, seed: int = 0) -> Scheme:
    """A scheme with every weight moved, as training would: a table that starts at zero would hide that it is read."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scheme = build(spec, shape)
        with torch.no_grad():
            for parameter in scheme.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return scheme


def hidden(shape: Shape, tokens: int, batch: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """(B, T, C) random embeddings, the same numbers in every dtype."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(batch, tokens, shape.width, dtype=torch.float64, generator=draw).to(dtype)


def parts_of(
    scheme: Scheme, x: Tensor, pos: Positions, layer: int = 0, kv_heads: int | None = None
) -> tuple[list[Part], Tensor, Positions]:
    """What an encoding makes of (B, T, C) embeddings in a layer: its parts, values (B, G, T, D), and its positions."""
    shape, every = scheme.shape, pos
    if pos.queries < pos.tokens:
        every = replace(pos, queries=pos.tokens, memo={})
    kv_heads, size = shape.kv_heads if kv_heads is None else kv_heads, shape.head_dim
    draw = torch.Generator().manual_seed(2)
    sizes = shape.heads * size, kv_heads * size, kv_heads * size
    mixes = [torch.randn(shape.width, n, dtype=torch.float64, generator=draw).to(x) / shape.width**0.5 for n in sizes]
    read = scheme.embed(x, every)
    asking = read if every is pos else scheme.embed(x[:, -pos.queries :], pos)
    q, k, v = (
        (one @ mix).unflatten(-1, (-1, size)).transpose(1, 2)
        for one, mix in zip((asking, read, read), mixes, strict=True)
    )
    own = scheme.at(layer)
    notes = own.note(read, replace(every, layer=layer)) if own.notes else None
    pos = replace(pos, layer=layer, notes=notes)
    return own.parts(q, k, pos), v, pos


def output(
    scheme: Scheme, x: Tensor, pos: Positions, layer: int = 0, backend: str = "eager", kv_heads: int | None = None
) -> Tensor:
    """What attention makes of (B, T, C) embeddings at these positions, all hooks in turn: (B, H, Q, D)."""
    parts, v, pos = parts_of(scheme, x, pos, layer, kv_heads)
    return attend_parts(parts, v, pos, backend)


def no_number(scheme: Scheme, x: Tensor, pos: Positions, layer: int = 0) -> str | None:
    """The first token whose scores or output are no numbers; None: there is none.

    Read off the log-sum-exp of the scores, because where that is no number attention makes an output of zero.
    """
    parts, v, pos = parts_of(scheme, x, pos, layer)
    for q, k, scores in parts:
        out, sums = eager.attend(q, k, v, scores, pos, lse=True)
        wrong = sums.isnan() | (sums == torch.inf) | ~out.isfinite().all(-1)  # (1, H, Q)
        if wrong.any():
            token = int(wrong[0].any(0).nonzero()[0])
            return f"token {token}, head {int(wrong[0, :, token].nonzero()[0])}: not a finite number"
    return None


def placed(scheme: Scheme, pos: Positions) -> Positions:
    """Where one row of tokens is said to sit in training."""
    return scheme.place(pos, 1)


def at(ids: Tensor, length: int | None = None) -> Positions:
    """These positions in one row; length: what is said to be run, where it is not for the largest to say."""
    contiguous = bool((ids.diff() == 1).all())
    return Positions(ids[None], len(ids), int(ids.max()) + 1 if length is None else length, contiguous)


def left_padded(tokens: int, padding: int) -> Positions:
    """One row of so many tokens behind padding, which is a segment of its own."""
    ids = (torch.arange(padding + tokens) - padding).clamp(min=0)[None]
    segments = torch.where(torch.arange(padding + tokens) < padding, -1, 0)[None]
    return Positions(ids, padding + tokens, tokens, contiguous=False, segments=segments)


def packed(lengths: list[int]) -> Positions:
    """One row of documents, each with positions of its own."""
    ids = torch.cat([torch.arange(n) for n in lengths])[None]
    segments = torch.cat([torch.full((n,), number) for number, n in enumerate(lengths)])[None]
    return Positions(ids, sum(lengths), max(lengths), contiguous=False, segments=segments)


def skipping(tokens: int) -> Positions:
    """Positions with a gap after every second token."""
    return at(torch.arange(tokens) * 3 // 2)


def same(found: Tensor, wanted: Tensor, what: str, first: int = 0, tolerance: float = TOLERANCE) -> None:
    """Whether two (1, H, Q, D) outputs agree. Raises Fails naming the first token and head where they do not.

    what: what differs between the two.   first: the number of the first of the Q tokens.
    """
    if place := difference(found, wanted, first, tolerance):
        raise Fails(f"{what}: {place}")


def difference(found: Tensor, wanted: Tensor, first: int = 0, tolerance: float = TOLERANCE) -> str | None:
    if found.shape != wanted.shape:
        raise Fails(f"output is of shape {tuple(found.shape)}, not {tuple(wanted.shape)}")
    found, wanted = found.detach().double(), wanted.detach().double()
    off = (found - wanted).abs().amax(-1)[0]  # (H, Q)
    off = torch.where(found.isfinite().all(-1)[0], off, torch.inf)
    wrong = off > tolerance * max(1.0, wanted.abs().max().item())
    if not wrong.any():
        return None
    token = int(wrong.any(0).nonzero()[0])
    head = int(off[:, token].argmax())
    by = f"off by {off[head, token].item():.2g}" if off[head, token].isfinite() else "not a finite number"
    return f"token {first + token}, head {head}: {by} ({int(wrong.any(0).sum())} of {wrong.shape[1]} tokens)"


def in_each_layer(shape: Shape, tried: Callable[[int], None]) -> None:
    """Try the first and the last layer; a failure says in which."""
    for layer in sorted({0, shape.layers - 1}):
        try:
            tried(layer)
        except Fails as where:
            raise Fails(f"layer {layer}, {where}") from None


def few(scheme: Scheme, tokens: int = 24) -> int:
    return tokens if scheme.limit is None else min(tokens, scheme.limit)


def many(scheme: Scheme) -> int:
    """Half as many again as in training, so that what sets in beyond the train length shows."""
    tokens = scheme.shape.train_length * 3 // 2
    return tokens if scheme.limit is None else min(tokens, scheme.limit)
