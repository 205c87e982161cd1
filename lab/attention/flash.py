"""What the flash kernels have in common: layouts, how words and segments are said to them, and what they refuse."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · G key heads · D head size · N = B·T

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cache, wraps

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.attention import channel
from positional.base import Positions, Scores

WORDS = frozenset({"slopes", "decay", "window", "beyond"})
"""What can be said to each of them; those with an argument for it are told `cap` too."""
LARGEST = 256
"""The largest head size."""


@dataclass(frozen=True)
class Spans:
    """Sequences laid end to end: sequence s of the queries is rows queries[s] … queries[s+1]-1, and so for keys."""

    queries: Tensor  # (S+1,) int32
    keys: Tensor  # (S+1,) int32
    most_queries: int  # of the longest sequence
    most_keys: int


Call = Callable[..., tuple[Tensor, Tensor | None]]
"""(q, k, v, spans, *, scale, causal, window, slopes, cap, lse) -> output and log-sum-exp (None unless asked for).

Without spans q is (B, Q, H, D), k and v (B, T, G, D), the sum (B, H, Q); with them (N, H, D), (N, G, D) and (H, N).
Causality and windows count from the last key of a sequence. window: tokens seen, or None.   slopes: (H,) fp32, or None.
cap: of the scores before slopes, or None.
"""


def once(find: Callable[[], object]) -> Callable[[], object]:
    """`find`, asked once; a constant for a model that is compiled, which could not trace an import that fails."""
    known = cache(find)

    @torch.compiler.assume_constant_result
    @wraps(find)
    def found():
        return known()

    found.cache_clear = known.cache_clear
    return found


def hardware(q: Tensor, capabilities: Container[int], named: str) -> str | None:
    """Why the kernel cannot run on this device or in this dtype; None: it can."""
    if not q.is_cuda:
        return f"runs on an NVIDIA GPU, not on {q.device.type}"
    major, minor = torch.cuda.get_device_capability(q.device)
    if major not in capabilities:
        return f"runs on {named}, not on compute capability {major}.{minor}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"takes fp16 or bf16, not {str(q.dtype).removeprefix('torch.')}"
    return None


def refuses(scores: Scores, q: Tensor, k: Tensor, pos: Positions, lse: bool, native: bool) -> str | None:
    """Why these scores cannot be said to a flash kernel. native: it has an argument for slopes."""
    if q.shape[-1] > LARGEST or q.shape[-1] % 8:
        return f"takes head sizes up to {LARGEST} in multiples of 8, not {q.shape[-1]}"
    if lse and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return "returns a log-sum-exp without its gradient"
    if pos.segments is not None:
        if pos.queries != pos.tokens or pos.asking is not None or scores.beyond is not None:
            return "takes padded or packed tokens only where all of them ask, and without `beyond`"
        if not together(pos):
            return "takes segments only of tokens that follow one another"
    by_key = channels(scores, pos, native)
    if scores.cap is not None and by_key.needs:
        words = " and ".join(sorted(by_key.needs))
        return f"runs these {words} in channels of their own, which it would cap with the scores"
    if by_key.slopes is not None and not (pos.causal and channel.rising(pos)):
        return "runs slopes only where the keys a query sees lie behind it"
    if q.shape[-1] + room(by_key, q, k) > LARGEST:
        words = " and ".join(sorted(by_key.needs))
        return f"runs these {words} in channels of their own, and has too few left beside a head size of {q.shape[-1]}"
    return None


def channels(scores: Scores, pos: Positions, native: bool) -> Scores:
    """The words that are said in channels of their own."""
    known = native and scores.slopes is not None and by_index(scores.slopes, pos)
    return Scores(slopes=None if known else scores.slopes, decay=scores.decay)


def room(by_key: Scores, q: Tensor, k: Tensor) -> int:
    """How many channels these words take."""
    return channel.width(by_key, q, q.shape[1] // k.shape[1])


def attend(
    call: Call, q: Tensor, k: Tensor, v: Tensor, scores: Scores, pos: Positions, lse: bool, native: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """See `lab.attention.attend`; `call` is the kernel, `native` whether it has an argument for slopes."""
    scale, size, by_key = q.shape[-1] ** -0.5, v.shape[-1], channels(scores, pos, native)
    slopes = scores.slopes if by_key.slopes is None else None
    missed = channel.missed(by_key, pos, q.dtype)
    if by_key.needs:
        q, k, v = channel.add(q, k, v, by_key, pos, scale)
    if slopes is not None and scores.beyond:
        missed = missed + slopes[:, None] * scores.beyond  # what the kernel, blind to the gap, takes off too little
    first, keys, window = reach(scores, pos)
    if keys < 1 or window == 0:
        out, sums = torch.zeros_like(q), q.new_full(q.shape[:3], float("-inf"), dtype=torch.float32)
    else:
        causal = pos.causal or scores.beyond is not None
        options = {"scale": scale, "causal": causal, "window": window, "slopes": slopes, "cap": scores.cap, "lse": lse}
        out, sums = laid_out(call, q[:, :, first:], k[:, :, :keys], v[:, :, :keys], pos, options)
        out = F.pad(out, (0, 0, first, 0))
        sums = F.pad(sums, (first, 0), value=float("-inf")) if lse else None
    return (out[..., :size], sums - missed) if lse else out[..., :size]


def reach(scores: Scores, pos: Positions) -> tuple[int, int, int | None]:
    """The first query that sees any key, how many keys are seen by any, and the window counted from the last of them.

    `beyond` is causality that ends earlier: without the last keys, and the queries this leaves with none.
    """
    gap, window = scores.beyond or 0, scores.window
    first = max(0, gap - (pos.tokens - pos.queries)) if gap else 0
    return first, pos.tokens - gap, None if window is None else max(0, window - gap)


def laid_out(
    call: Call, q: Tensor, k: Tensor, v: Tensor, pos: Positions, options: dict
) -> tuple[Tensor, Tensor | None]:
    """The call with heads behind tokens, as flash kernels have them, and segments as sequences of their own."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if pos.segments is None:
        out, sums = call(q, k, v, None, **options)
        return out.transpose(1, 2), sums
    batch, tokens = q.shape[:2]
    out, sums = call(*(x.flatten(0, 1) for x in (q, k, v)), spans(pos, batch), **options)
    out = out.unflatten(0, (batch, tokens)).transpose(1, 2)
    return out, None if sums is None else sums.unflatten(1, (batch, tokens)).transpose(0, 1)


def spans(pos: Positions, batch: int) -> Spans:
    """Every segment of every row."""
    return pos.once(("spans", batch), lambda: find_spans(pos.segments.expand(batch, -1)))


def find_spans(segments: Tensor) -> Spans:
    begins = F.pad(segments.diff(dim=-1) != 0, (1, 0), value=True)
    starts = F.pad(begins.flatten().nonzero()[:, 0], (0, 1), value=segments.numel()).to(torch.int32)
    longest = int(starts.diff().max())
    return Spans(starts, starts, longest, longest)


def rows(q: Tensor, k: Tensor) -> Spans:
    """Every row of (B, Q, H, D) queries and (B, T, G, D) keys, for a kernel that takes only what is laid end to end."""
    batch, queries, tokens = q.shape[0], q.shape[1], k.shape[1]
    row = torch.arange(batch + 1, device=q.device, dtype=torch.int32)
    return Spans(row * queries, row * tokens, queries, tokens)


def together(pos: Positions) -> bool:
    """Whether the tokens of each segment follow one another."""
    return pos.once("together", lambda: bool((runs(pos.segments) == runs(pos.segments.sort(-1).values)).all()))


def runs(segments: Tensor) -> Tensor:
    """How often the segment changes in each row: (B or 1,)."""
    return (segments.diff(dim=-1) != 0).sum(-1)


def by_index(slopes: Tensor, pos: Positions) -> bool:
    """Whether a kernel that takes indices for positions, and slopes for constants, is right to."""
    if pos.asking is not None or (slopes.requires_grad and torch.is_grad_enabled()):
        return False
    return pos.contiguous or pos.once("by index", lambda: bool(steps(pos.ids, pos.segments).all()))


def steps(ids: Tensor, segments: Tensor | None) -> Tensor:
    """Where positions go up by one from token to token, or another segment begins."""
    one = ids.diff(dim=-1) == 1
    return one if segments is None else one | (segments.diff(dim=-1) != 0)
