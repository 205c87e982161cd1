"""What the tests of attention share: layouts, words, random inputs, and how two answers are compared."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lab.attention import BACKENDS, Part, attend_parts, obstacle
from positional import Positions, Scores, Shape, build
from positional.alibi import slopes

B, H, T, D = 2, 4, 24, 16
REMOTE = ["flash3", "flash4", "flash2", "varlen", "flex"]
"""Backends for GPUs; test_backends.py says their words to stand-ins for their kernels."""
HERE = [name for name in BACKENDS if name not in REMOTE]
FUSED = [name for name in HERE if name != "eager"]
TOLERANCE = {
    torch.float64: 1e-9,  # the backends order sums differently, nothing else
    torch.float32: 1e-5,  # ~50 ulp of values near 1, after sums of T products
}
SUMMED = {
    torch.float64: 1e-6,  # parameters are fp32 whatever the inputs
    # Terms of all T tokens that largely cancel, as those of a decay summed from token to token: √T times the rounding.
    # By eager itself in fp32, the gradient of fire's c is off by 2e-5.
    torch.float32: 5e-5,
}
"""For gradients of parameters."""


def skipping() -> Positions:
    """Ever larger positions with gaps, different in each row."""
    ids = torch.cumsum(torch.randint(1, 4, (B, T), generator=torch.Generator().manual_seed(2)), -1)
    return Positions(ids, T, int(ids.max()) + 1, contiguous=False)


def left_padded() -> Positions:
    """Row 1 begins with 7 places of padding, a segment that no token sees."""
    mask = torch.ones(B, T, dtype=torch.int64)
    mask[1, :7] = 0
    return Positions((mask.cumsum(-1) - 1).clamp(min=0), T, T, contiguous=False, segments=mask)


def packed() -> Positions:
    """Two documents in row 0, three in row 1, each with positions of its own."""
    lengths = [[10, 14], [3, 20, 1]]
    ids = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    segments = torch.stack([torch.cat([torch.full((n,), i) for i, n in enumerate(row)]) for row in lengths])
    return Positions(ids, T, 20, contiguous=False, segments=segments)


LAYOUTS = {
    "plain": lambda: Positions.first(T),
    "last queries": lambda: Positions.first(T, queries=5),
    "one query": lambda: Positions.first(T, queries=1),
    "skipping": skipping,
    "left-padded": left_padded,
    "packed": packed,
}


def across(queries: int, seen: Tensor | None = None) -> Positions:
    """Queries at positions of their own, 3 apart, on T tokens of another text."""
    return Positions.across(3 * torch.arange(queries)[None], torch.arange(T)[None], 3 * queries + T, seen=seen)


def half_hidden() -> Positions:
    """Row 1 has 7 places of padding at its end, as the shorter of two sources has."""
    seen = torch.ones(B, T, dtype=torch.int64)
    seen[1, -7:] = 0
    return across(T + 5, seen)


CROSS = {
    "one query across": lambda: across(1),
    "fewer queries across": lambda: across(5),
    "more queries across": lambda: across(T + 5),
    "padded keys": half_hidden,
}
"""Cross-attention: the queries are no tokens."""


def at_pair_bias(b, h, i, j):
    return 0.3 * b - 0.2 * h + torch.sin(i * 1.7 + j)


def at_pair_keep(b, h, i, j):
    return (i * 5 + j * 3 + h + b) % 4 != 0  # some queries see nothing at all


def drawn(*sizes: int) -> Tensor:
    return torch.rand(*sizes, generator=torch.Generator().manual_seed(6))


NOTHING = Scores()
SLOPES = torch.tensor(slopes(H))
DECAY = (0.6 * drawn(B, H, 2048)).cumsum(-1)  # as the log of a gate of each token and head would add up
LEARNED = {
    "learned decay": DECAY.clone().requires_grad_(),
    "learned decay and window": DECAY[:1].clone().requires_grad_(),
    "learned bias": drawn(H).requires_grad_(),
    "learned bias and cap": drawn(H).requires_grad_(),
    "learned decay and cap": DECAY.clone().requires_grad_(),
    "learned rows": drawn(H).requires_grad_(),
    "learned rows and window": drawn(H).requires_grad_(),
}
"""What has a gradient in the scores of the same name."""


def at_rows(weight: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """As schemes make rows: from sums over the keys up to the last, which must therefore follow one another."""
    assert (j.diff() == 1).all() and i.dim() == j.dim() == 1
    before = j[-1] * (j[-1] + 1) // 2 - j.flip(0).cumsum(0).flip(0)  # (K,) sum of all keys before this one
    return (torch.sin(i[:, None] * 1.3 + before.double()).float() * weight[:, None, None])[None]  # (1, H, c, K)


ROWS = partial(at_rows, drawn(H))
CAP = 0.8  # of scores drawn from a normal distribution: they feel it
ALL_BUT_CAP = Scores(SLOPES, DECAY, window=9, sinks=3, beyond=2, bias=at_pair_bias, rows=ROWS, keep=at_pair_keep)
SYNTHETIC = {
    "window": Scores(window=7),
    "window of one": Scores(window=1),
    "keep": Scores(keep=at_pair_keep),
    "bias": Scores(bias=at_pair_bias),
    "slopes and window": Scores(slopes=SLOPES, window=7),
    "window and bias": Scores(window=7, bias=at_pair_bias),
    "slopes and keep": Scores(slopes=SLOPES, keep=at_pair_keep),
    "beyond": Scores(beyond=7),
    "beyond everything": Scores(beyond=T),
    "beyond and window": Scores(window=9, beyond=4),
    "slopes and beyond": Scores(slopes=SLOPES, beyond=4),
    "decay": Scores(decay=DECAY),
    "decay and slopes": Scores(decay=DECAY[:1], slopes=SLOPES),
    "decay and window": Scores(decay=DECAY, window=7),
    "decay and beyond": Scores(decay=DECAY, beyond=7),
    "learned decay": Scores(decay=LEARNED["learned decay"]),
    "learned decay and window": Scores(decay=LEARNED["learned decay and window"], window=7),
    "window and sinks": Scores(window=7, sinks=3),
    "slopes, window and sinks": Scores(slopes=SLOPES, window=7, sinks=3),
    "window, sinks and bias": Scores(window=7, sinks=3, bias=at_pair_bias),
    "learned bias": Scores(bias=lambda b, h, i, j: LEARNED["learned bias"][h] * at_pair_bias(b, h, i, j)),
    "cap": Scores(cap=CAP),
    "cap and window": Scores(cap=CAP, window=7),
    "cap, window and sinks": Scores(cap=CAP, window=7, sinks=3),
    "cap and beyond": Scores(cap=CAP, beyond=7),
    "cap and slopes": Scores(cap=CAP, slopes=SLOPES),
    "cap, slopes and window": Scores(cap=CAP, slopes=SLOPES, window=7),
    "cap and decay": Scores(cap=CAP, decay=DECAY),
    "cap and bias": Scores(cap=CAP, bias=at_pair_bias),
    "cap and keep": Scores(cap=CAP, keep=at_pair_keep),
    "cap and rows": Scores(cap=CAP, rows=ROWS),
    "learned bias and cap": Scores(
        cap=CAP, bias=lambda b, h, i, j: LEARNED["learned bias and cap"][h] * at_pair_bias(b, h, i, j)
    ),
    "learned decay and cap": Scores(cap=CAP, decay=LEARNED["learned decay and cap"]),
    "rows": Scores(rows=ROWS),
    "learned rows": Scores(rows=partial(at_rows, LEARNED["learned rows"])),
    "learned rows and window": Scores(rows=partial(at_rows, LEARNED["learned rows and window"]), window=7),
    "all but cap": ALL_BUT_CAP,
    "all": replace(ALL_BUT_CAP, cap=CAP),
}


def scores_of(words: str, pos: Positions, batch: int = B) -> Scores:
    """The words for this many tokens and rows."""
    scores = SYNTHETIC.get(words, NOTHING)
    return scores if scores.decay is None else replace(scores, decay=scores.decay[:batch, :, : pos.tokens])


def learned_of(words: str) -> list[Tensor]:
    return [LEARNED[words]] if words in LEARNED else []


def random_inputs(pos: Positions, dtype=torch.float64, kv_heads: int = H, batch: int = B) -> list[Tensor]:
    """Queries, keys and values for these positions, the same numbers in every dtype."""
    sizes = (H, pos.queries), (kv_heads, pos.tokens), (kv_heads, pos.tokens)
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(batch, *size, D, generator=draw, dtype=torch.float64).to(dtype) for size in sizes]


def made(spec, shape: Shape):
    """A scheme with weights that are not zero."""
    scheme = build(spec, shape)
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.normal_()
    return scheme


def noted(scheme, pos: Positions, k: Tensor) -> Positions:
    """The positions with what the scheme notes of the tokens, whose hidden states are here their keys."""
    if not scheme.notes:
        return pos
    x = k.repeat_interleave(scheme.shape.heads // k.shape[1], 1).transpose(1, 2).flatten(2)  # (B, T, C)
    return replace(pos, notes=scheme.note(x, pos))


def parts_of(scheme, q: Tensor, k: Tensor, pos: Positions) -> list[Part]:
    """What a layer hands to attention, as in the model."""
    return scheme.parts(q, k, noted(scheme, pos, k))


def through(scheme, inputs: list[Tensor], pos: Positions, backend: str) -> Tensor:
    """A layer's attention as the model runs it."""
    return attend_parts(parts_of(scheme.at(pos.layer), *inputs[:2], pos), inputs[2], pos, backend)


def with_gradients(run, inputs: list[Tensor], parameters=()) -> list[Tensor]:
    """The output of `run(inputs)`, and what flows back to the inputs and parameters."""
    inputs, parameters = [x.clone().requires_grad_() for x in inputs], list(parameters)
    out = run(inputs)
    if not out.requires_grad:  # no query sees anything
        return [out, *(torch.zeros_like(x) for x in inputs + parameters)]
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(out.dtype)
    found = torch.autograd.grad((out * weight).sum(), inputs + parameters, allow_unused=True)
    return [out.detach(), *(torch.zeros(()) if x is None else x for x in found)]


def both(run, inputs: list[Tensor], parameters=(), *, backend: str) -> tuple[list[Tensor], list[Tensor]]:
    """What `run(backend, inputs)` and `run("eager", inputs)` make and send back."""
    parameters = list(parameters)
    return tuple(with_gradients(partial(run, name), inputs, parameters) for name in (backend, "eager"))


def assert_same(found: list[Tensor], wanted: list[Tensor], tolerance: float, summed: float = 1e-6) -> None:
    """summed: the tolerance for gradients of fp32 parameters, whose many terms are added in fp32."""
    for mine, exact in zip(found, wanted, strict=True):
        loose = max(tolerance, summed) if exact.dtype == torch.float32 else tolerance
        scale = max(1.0, exact.abs().max().item())
        torch.testing.assert_close(mine.double(), exact.double(), rtol=0, atol=loose * scale)


def skip_unless_able(backend: str, parts: list[Part], pos: Positions) -> None:
    for q, k, scores in parts:
        if reason := obstacle(backend, scores, q, k, pos, lse=len(parts) > 1):
            pytest.skip(reason)


class Largest(TorchDispatchMode):
    """Records the most elements that any tensor made meanwhile holds."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        held = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.elements = max([self.elements, *held])
        return out


class Held(TorchDispatchMode):
    """Records how many elements the tensors made meanwhile hold that are alive when asked."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes() // x.element_size()
        return out

    @property
    def elements(self) -> int:
        return sum(count for storage, count in self.made.values() if not storage.expired())
