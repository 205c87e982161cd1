"""Alternate: layers take turns between encodings, such as local and global (Yang et al. 2025, arXiv:2501.18795)."""

from torch import nn

from positional.base import Scheme, SchemeError, Shape
from positional.stack import acts


class Alternate(Scheme):
    """Layer l has schemes[pattern[l mod the pattern's length]].

    schemes: encodings.   pattern: numbers of schemes, from 0, repeated over the layers; null: each in turn.
    RNoPE-SWA has three layers of `[rope, window]` and one of `nope`, pattern: [0, 0, 0, 1]; Gemma 3 has five of
    `[rope, window]` and one of `{kind: rope, base: 1000000}`. What a scheme learns is shared by its layers.
    """

    def __init__(self, shape: Shape, *, schemes: list[Scheme], pattern: list[int] | None = None):
        super().__init__(shape)
        pattern = list(range(len(schemes))) if pattern is None else pattern
        refuse_misfits(schemes, pattern, shape.layers)
        self.schemes, self.pattern = nn.ModuleList(schemes), pattern
        used = [self.at(layer) for layer in range(shape.layers)]
        reaches = [scheme.reach for scheme in used]
        self.limit = min((s.limit for s in used if s.limit is not None), default=None)
        self.reach = None if None in reaches else max(reaches)
        self.prefix_consistent = all(s.prefix_consistent for s in used)
        self.causal_only = next((s.causal_only for s in used if s.causal_only), None)
        self.notes = max(s.notes for s in used)

    def at(self, layer: int) -> Scheme:
        return self.schemes[self.pattern[layer % len(self.pattern)]].at(layer)


def refuse_misfits(schemes: list[Scheme], pattern: list[int], layers: int) -> None:
    """Raise SchemeError for what no layer could do in its turn, and for a scheme that has no turn."""
    numbers = range(len(schemes))
    if not pattern or any(number not in numbers for number in pattern):
        raise SchemeError(
            f"pattern must be numbers of the {len(schemes)} schemes, from 0, such as [0, 0, 0, 1], got {pattern}"
        )
    for scheme in schemes:
        if hooks := {"place", "embed"} & acts(scheme):
            doing, such = ("places tokens", "pose") if "place" in hooks else ("acts on embeddings", "sinusoidal")
            raise SchemeError(
                f"{type(scheme).__name__} {doing}, once and before the first layer, so it cannot take turns: write it "
                f"in front, as in [{such}, {{kind: alternate, schemes: …}}]"
            )
    if idle := [n for n in numbers if n not in {pattern[layer % len(pattern)] for layer in range(layers)}]:
        raise SchemeError(f"with {layers} layers and pattern {pattern}, no layer has scheme {idle[0]}")
