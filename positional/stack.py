"""Several encodings in one model: each hook runs through them in turn, and what they do to the scores adds up."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from positional.base import Positions, Scheme, SchemeError, Scores, Shape

HOOKS = ("place", "embed", "note", "rotate", "parts", "scores")


class Stack(Scheme):
    """`[rope, window]` in a configuration. Two members that use the same word of `Scores` are refused when built."""

    def __init__(self, shape: Shape, members: list[Scheme]):
        super().__init__(shape)
        members = [one for m in members for one in (m.members if isinstance(m, Stack) else [m])]
        self.members = nn.ModuleList(members)
        self.limit = min((m.limit for m in members if m.limit is not None), default=None)
        self.reach = min((m.reach for m in members if m.reach is not None), default=None)
        self.prefix_consistent = all(m.prefix_consistent for m in members)
        self.causal_only = next((m.causal_only for m in members if m.causal_only), None)
        self.notes = sum(m.notes for m in members)
        refuse_disorder(members)
        self.refuse_clashes()
        # Made once, and hidden from torch in a tuple, so that no parameter has two names.
        self.of_layers = tuple(self.of_layer(layer) for layer in range(shape.layers))

    def refuse_clashes(self) -> None:
        """Find now, not in the first step of training, what members cannot do together."""
        shape, one = self.shape, Positions.first(1)
        q, k = torch.zeros(1, shape.heads, 1, shape.head_dim), torch.zeros(1, shape.kv_heads, 1, shape.head_dim)
        self.scores(q, k, replace(one, notes=torch.zeros(1, 1, self.notes)))
        with torch.random.fork_rng(devices=[]):
            farthest = self.place(one, 1).length
        if self.limit is not None and farthest > self.limit:
            names = ", ".join(type(m).__name__ for m in self.members if m.limit is not None and farthest > m.limit)
            raise SchemeError(
                f"in training tokens are placed up to position {farthest - 1}, and {names} has positions for "
                f"{self.limit} tokens: give it more (learned has the option `positions`), or place them nearer"
            )

    def place(self, pos: Positions, rows: int) -> Positions:
        for member in self.members:
            pos = member.place(pos, rows)
        return pos

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        for member in self.members:
            x = member.embed(x, pos)
        return x

    def note(self, x: Tensor, pos: Positions) -> Tensor | None:
        noted = [member.note(x, pos) for member in self.members if member.notes]
        return torch.cat(noted, -1) if noted else None

    def told(self, pos: Positions) -> Iterator[tuple[Scheme, Positions]]:
        """Each member and the positions with what it noted itself."""
        if not self.notes:
            yield from ((member, pos) for member in self.members)
            return
        sizes = [member.notes for member in self.members]
        for member, mine in zip(self.members, pos.notes.split(sizes, -1), strict=True):
            yield member, replace(pos, notes=mine if member.notes else None)

    def rotate(self, q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        for member, mine in self.told(pos):
            q, k = member.rotate(q, k, mine)
        return q, k

    def parts(self, q: Tensor, k: Tensor, pos: Positions) -> list[tuple[Tensor, Tensor, Scores]]:
        last = self.members[-1]
        if type(last).parts is Scheme.parts:
            return super().parts(q, k, pos)
        *before, (_, of_last) = self.told(pos)
        for member, mine in before:
            q, k = member.rotate(q, k, mine)
        return last.parts(q, k, of_last)

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        total, owner = Scores(), {}
        for member, mine in self.told(pos):
            said = member.scores(q, k, mine)
            for word in sorted(said.needs):
                if word in owner:
                    raise SchemeError(
                        f"{owner[word]} and {type(member).__name__} both set `{word}`: stack only one of them"
                    )
                owner[word] = type(member).__name__
            total = replace(total, **{word: getattr(said, word) for word in said.needs})
        return total

    def of_layer(self, layer: int) -> Scheme:
        at = [member.at(layer) for member in self.members]
        return self if all(a is m for a, m in zip(at, self.members, strict=True)) else Stack(self.shape, at)

    def at(self, layer: int) -> Scheme:
        return self.of_layers[layer]


def acts(scheme: Scheme) -> set[str]:
    """The hooks in which a scheme does something."""
    if isinstance(scheme, Stack):
        return set().union(*(acts(member) for member in scheme.members))
    return {hook for hook in HOOKS if getattr(type(scheme), hook) is not getattr(Scheme, hook)}


def refuse_disorder(members: list[Scheme]) -> None:
    """Raise SchemeError where the order of the members is not the order in which a model calls their hooks."""
    hooks = [acts(member) for member in members]
    for n, mine in enumerate(hooks):
        if "parts" in mine and (n < len(members) - 1 or any("scores" in before for before in hooks[:n])):
            raise SchemeError(
                f"{type(members[n]).__name__} splits the keys into parts, which it rotates and hides itself: "
                "write it last, after encodings that only change queries and keys"
            )
        if "embed" in mine and "rotate" not in mine and any("rotate" in before for before in hooks[:n]):
            raise SchemeError(
                f"{type(members[n]).__name__} acts on embeddings, before any rotation of queries and keys: "
                "write it first"
            )
