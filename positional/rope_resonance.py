"""RoPE, resonance: wavelengths rounded to whole tokens, so angles recur (Wang et al. 2024, arXiv:2403.00071)."""

import math

from torch import Tensor

from positional.base import Scheme, SchemeError, Shape
from positional.rope import Rope


class RopeResonance(Rope):
    """Another RoPE with each lane's wavelength 2π/frequency rounded to a whole number of tokens, at least 1.

    of: any kind of RoPE that says frequencies and growth alone, with its options: rope, {kind: rope-yarn, factor: 8}.
    Every lane is rounded, after the other's scaling, as in the paper. What does not turn stays so.
    """

    def __init__(self, shape: Shape, *, of: Scheme):
        hooks = ("rotate", "turn", "parts", "scores", "embed")
        if not isinstance(of, Rope) or any(getattr(type(of), hook) is not getattr(Rope, hook) for hook in hooks):
            raise SchemeError(
                "of must be a kind of RoPE that says frequencies alone, such as rope or rope-yarn, "
                f"got {type(of).__name__}"
            )
        super().__init__(shape, base=of.base, layout=of.layout)
        self.of = of
        self.prefix_consistent = of.prefix_consistent

    def frequencies(self, length: int) -> Tensor:
        return 2 * math.pi / (2 * math.pi / self.of.frequencies(length)).round().clamp(min=1)

    def gain(self, length: int) -> float:
        return self.of.gain(length)
