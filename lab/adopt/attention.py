"""The second seam into a pretrained model: transformers' attention interface, served by the lab's attention."""

# B batch · Q new tokens · T all tokens · H query heads · G key heads · D head size

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from lab import LabError
from lab.adopt.rotary import Rotary
from lab.attention import attend_parts
from positional import Scheme, Scores

NAME = "lab"
"""What `config._attn_implementation` says of a model whose scheme acts inside attention."""


@dataclass(frozen=True)
class Seated:
    """What an attention module knows of the encoding that was put in: `module.seated`."""

    rotary: Rotary
    scheme: Scheme  # of this layer


def install() -> None:
    """Make both interfaces known to transformers under the lab's name."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, padding)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """(B, H, Q, D) queries on (B, G, T, D) keys, as transformers calls it -> (B, Q, H, D), and no weights.

    attention_mask: as `padding` made it.   Raises LabError for what the lab's attention does not do.
    """
    name = type(module).__name__
    if s_aux is not None:
        raise LabError(f"{name} has sinks of its own in its softmax, which the lab's attention does not")
    if dropout:
        raise LabError(f"{name} drops {dropout} of its weights: set config.attention_dropout to 0")
    if attention_mask is not None and attention_mask.dim() != 2:
        raise LabError("a mask of pairs of tokens was passed: a scheme inside attention takes a (B, T) attention_mask")
    seated: Seated = module.seated
    pos = seated.rotary.call.positions(key.shape[2], attention_mask)
    if scaling is not None and scaling != query.shape[-1] ** -0.5:  # which is what the lab multiplies by
        query = query * (scaling * query.shape[-1] ** 0.5)
    parts = seated.scheme.parts(query, key, replace(pos, layer=module.layer_idx))
    parts = [(q, k, capped(windowed(scores, sliding_window), softcap, name)) for q, k, scores in parts]
    return attend_parts(parts, value, pos).transpose(1, 2), None


def windowed(scores: Scores, window: int | None) -> Scores:
    """The same, seen through the window that the model's own layer has."""
    if window is None or (scores.window is not None and scores.window <= window):
        return scores
    return replace(scores, window=window)


def capped(scores: Scores, cap: float | None, name: str) -> Scores:
    """The same, of scores that the model's own layer caps, as they come from what turned or scaled its queries."""
    if cap is None:
        return scores
    if scores.cap is not None:
        raise LabError(f"{name} caps its scores at {cap:g}: an encoding that says `cap` itself cannot be put there")
    return replace(scores, cap=cap)


def padding(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> Tensor | None:
    """Which keys are real, (B, T), None for all: the one mask that a scheme is told of; the others it makes itself."""
    if q_offset + q_length != kv_offset + kv_length:
        raise LabError("a cache hands out room that no token fills yet: pass none, or transformers' DynamicCache()")
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
