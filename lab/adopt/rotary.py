"""The first seam into a pretrained model: what stands in place of its rotary module and tells it the angles."""

# B batch · Q new tokens · T all tokens · R channels of a head that turn

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from lab import LabError
from positional import Positions, Scheme
from positional.rope import Layout, Rope
from positional.stack import Stack, acts

Where = Literal["rotary", "attention"]
"""Who turns queries and keys: the model, by the angles of its rotary module, or the scheme itself inside attention."""


class Rotary(nn.Module):
    """Called as the model's own rotary module is, with hidden states, position_ids and perhaps a type of layer.

    Gives cosines and sines, (B or 1, Q, R), made in fp32 and handed on in the dtype of the hidden states. Of a scheme
    that acts inside attention they are ones and zeros: keys reach attention, and the cache, as they were before
    rotation, which is exact for every scheme. Where the tokens sit waits here, in `call`, for attention to ask.

    native: the model's own module, which still serves the types of layers in `keeps`.   name: of the scheme, in errors.
    layout, channels: of the model's cosines.   exact: whether it takes them in fp32 whatever the dtype.
    where: None for the model's own way wherever that can say all of the scheme.
    """

    def __init__(
        self,
        native: nn.Module,
        scheme: Scheme,
        name: str,
        layout: Layout,
        channels: int,
        exact: bool = False,
        keeps: Iterable[str] = (),
        where: Where | None = None,
    ):
        super().__init__()
        self.native, self.scheme, self.name = native, scheme, name
        self.layout, self.channels, self.exact, self.keeps = layout, channels, exact, frozenset(keeps)
        self.where: Where = where or ("rotary" if is_table(scheme) else "attention")
        self.call: Call | None = None
        self.before: str | None = None  # the model's own attention, where it was replaced
        self.cached: bool | None = None  # whether it generated with a cache, where it must not

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        if layer_type in self.keeps:
            return self.native(x, position_ids, layer_type)
        if not self.scheme.prefix_consistent and int(position_ids.min()) > 1:  # of a padded row it is 0 or 1
            raise LabError(
                f"{self.name} encodes all tokens anew when the input grows: what a cache holds of them would be of a "
                "shorter input. Pass use_cache=False; `generate` does so by itself"
            )
        dtype = torch.float32 if self.exact else x.dtype
        self.call = call = Call.of(self.scheme if self.training else None, position_ids, len(x))
        turning = [] if self.where == "attention" else [one for one in members(self.scheme) if "rotate" in acts(one)]
        if not turning:
            shape = *call.ids.shape, self.channels
            return x.new_ones(shape, dtype=dtype), x.new_zeros(shape, dtype=dtype)
        cos, sin = turning[0].turn(call.ids, call.length)  # (B or 1, 1, Q, R/2) fp32
        return paired(cos[:, 0], self.layout).to(dtype), paired(sin[:, 0], self.layout).to(dtype)


@dataclass(frozen=True)
class Call:
    """Where the new tokens of one forward pass sit."""

    ids: Tensor  # (B or 1, Q)
    length: int  # 1 + the largest, or as the scheme says
    memo: dict = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, placing: Scheme | None, ids: Tensor, rows: int) -> "Call":
        """placing: the scheme that may say in training where the tokens of each of so many rows sit."""
        length = 1 + int(ids.max())
        if placing is None or "place" not in acts(placing):
            return cls(ids, length)
        # Here, where the model has made its mask already: it would take a leap for the start of another document.
        pos = placing.place(Positions(ids, ids.shape[1], length, bool((ids.diff(dim=-1) == 1).all())), rows)
        return cls(pos.ids, pos.length)

    def positions(self, tokens: int, mask: Tensor | None) -> Positions:
        """Of so many keys, the new tokens last, those of a cache before them.   mask: (B, T), False for padding.

        A cache holds no positions. It was read in order, so that the token before sits one place before. Without one,
        a position that does not rise begins another document in the row, as in transformers; a leap does not.
        """
        key = tokens, None if mask is None else id(mask)
        if key not in self.memo:
            self.memo[key] = self.among(tokens, mask)
        return self.memo[key]

    def among(self, tokens: int, mask: Tensor | None) -> Positions:
        ids, new, segments = self.ids, self.ids.shape[1], None
        steps = ids.diff(dim=-1)
        if tokens > new:
            if mask is None and bool((steps != 1).any()):
                raise LabError("tokens that follow a cache must follow one another: position_ids that rise by one")
            back = torch.arange(tokens - new, 0, -1, device=ids.device)
            ids = torch.cat([(ids[:, :1] - back).clamp(min=0), ids], 1)
        elif mask is None and bool((steps <= 0).any()):
            segments = torch.cat([torch.zeros_like(ids[:, :1]), (steps <= 0).cumsum(-1)], 1)
        if mask is not None:
            segments = torch.where(mask, 0, -1)
        first = Positions.first(tokens, queries=new, device=ids.device)
        if bool((ids == first.ids).all()):
            return replace(first, segments=segments)
        return Positions(ids, new, self.length, bool((ids.diff(dim=-1) == 1).all()), segments=segments)


def members(scheme: Scheme) -> list[Scheme]:
    return list(scheme.members) if isinstance(scheme, Stack) else [scheme]


def is_table(scheme: Scheme) -> bool:
    """Whether a table of cosines and sines says all of it: at most one RoPE, turning as RoPE does, in all layers."""
    turning = [one for one in members(scheme) if acts(one) - {"place"} or type(one).at is not Scheme.at]
    return len(turning) <= 1 and all(
        isinstance(one, Rope) and type(one).rotate is Rope.rotate and acts(one) == {"rotate"} for one in turning
    )


def paired(table: Tensor, layout: Layout) -> Tensor:
    """(…, R/2) values of lanes -> (…, R) of channels."""
    return torch.cat([table, table], -1) if layout == "half" else table.repeat_interleave(2, -1)
