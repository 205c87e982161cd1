"""Several encodings in one model: each hook runs through them in turn, and what they do to the scores adds up."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Scores, Shape


class Stack(Scheme):
    """`[rope, window]` in a configuration. Two members that use the same word of `Scores` are refused when built."""

    def __init__(self, shape: Shape, members: list[Scheme]):
        super().__init__(shape)
        self.members = nn.ModuleList(members)
        self.limit = min((m.limit for m in members if m.limit is not None), default=None)
        self.reach = min((m.reach for m in members if m.reach is not None), default=None)
        self.prefix_consistent = all(m.prefix_consistent for m in members)
        if any(type(m).parts is not Scheme.parts for m in members):
            raise SchemeError(
                "a scheme that splits the keys into parts cannot be stacked: it rotates and hides them itself"
            )
        q = torch.zeros(1, shape.heads, 1, shape.head_dim)
        k = torch.zeros(1, shape.kv_heads, 1, shape.head_dim)
        self.scores(q, k, Positions.first(1))  # finds a clash now, not in the first step of training

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        for member in self.members:
            x = member.embed(x, pos)
        return x

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        for member in self.members:
            q, k = member.rotate(q, k, pos)
        return q, k

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        total, owner = Scores(), {}
        for member in self.members:
            said = member.scores(q, k, pos)
            for word in sorted(said.needs):
                if word in owner:
                    raise SchemeError(
                        f"{owner[word]} and {type(member).__name__} both set `{word}`: stack only one of them"
                    )
                owner[word] = type(member).__name__
            total = replace(total, **{word: getattr(said, word) for word in said.needs})
        return total

    def at(self, layer: int) -> Scheme:
        at = [member.at(layer) for member in self.members]
        return self if all(a is m for a, m in zip(at, self.members, strict=True)) else Stack(self.shape, at)
