"""Where the tokens of a call sit: positions and segments from masks, packed documents and what a cache holds."""

# B batch · Q new tokens · T all tokens, those in a cache first

from dataclasses import replace

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from lab import LabError
from lab.cache import places_of, remember
from positional import Positions


def positions(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    segments: Tensor | None,
    cache: Cache | None = None,
    layers: int = 0,
) -> Positions:
    """Where the tokens sit, those in a cache of so many layers first, to which the new ones are added.

    Padding is a segment of its own, seen by no token; the first real token has position 0.
    """
    new, device = input_ids.shape[1], input_ids.device
    padded = attention_mask is not None and not bool(attention_mask.all())
    if cache is None and not padded and position_ids is None:
        return replace(Positions.first(new, device=device), segments=segments)
    past = None if cache is None else places_of(cache, layers)  # (B, T - Q)
    tokens = new if past is None else new + past.shape[1]
    if attention_mask is not None and attention_mask.shape[1] != tokens:
        raise LabError(
            f"attention_mask is of {attention_mask.shape[1]} tokens where there are {tokens}, "
            f"{tokens - new} of them in the cache: pass one of all"
        )
    if position_ids is None:
        position_ids = following(new, past, attention_mask, device)
    if padded:
        real = attention_mask[:, -new:].bool()
        segments = torch.where(real, 0 if segments is None else segments, -1)
    if cache is not None:
        position_ids, segments = remember(cache, layers, position_ids, segments, len(input_ids))
        if torch.equal(segments, segments[:, -1:].expand_as(segments)):
            segments = None
    first = Positions.first(tokens, queries=new, device=device)
    if bool((position_ids == first.ids).all()):
        return replace(first, segments=segments)
    contiguous = bool((position_ids.diff(dim=-1) == 1).all())
    return Positions(position_ids, new, 1 + int(position_ids.max()), contiguous, segments=segments)


def following(new: int, past: Tensor | None, attention_mask: Tensor | None, device: torch.device) -> Tensor:
    """(B or 1, Q) positions of the new tokens: counted over the real ones, or on from the last in the cache."""
    if attention_mask is not None:
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -new:]
    ids = torch.arange(new, device=device)[None]
    return ids if past is None else past[:, -1:] + 1 + ids
