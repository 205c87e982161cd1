"""RoPE, LongRoPE: each lane slowed by a factor of its own, found by search (Ding et al. 2024, arXiv:2402.13753)."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from positional.base import SchemeError, Shape
from positional.rope import Rope


class RopeLongRope(Rope):
    """Lane i slows down by short[i] or long[i]; queries and keys grow by √(1 + ln(factor) / ln(train length)).

    short, long: one number for each of the D/2 lanes, above 0 (published ones run from about 1 to 2 · factor).
    factor: how many times longer than in training the inputs are that `long` was searched for.
    switch: which list is in force. input: `long` where the input exceeds the train length (transformers: one forward
    pass, all its tokens); target: `long` always, as the length that was searched for exceeds it (vLLM, llama.cpp).
    attention_factor: in place of the growth, which is there at every length, short ones too.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        short: list[float],
        long: list[float],
        factor: float,
        switch: Literal["input", "target"] = "input",
        attention_factor: float | None = None,
        **rope: Any,
    ):
        super().__init__(shape, **rope)
        for name, factors in {"short": short, "long": long}.items():
            if len(factors) != shape.head_dim // 2 or min(factors) <= 0:
                raise SchemeError(
                    f"{name} must hold a number above 0 for each of D/2 = {shape.head_dim // 2} lanes, "
                    f"got {len(factors)}: {factors}"
                )
        if factor < 1:
            raise SchemeError(f"factor must be at least 1, got {factor}; Phi-3 has 32, for 128k tokens trained on 4k")
        if shape.train_length < 2:
            raise SchemeError(
                f"the growth divides by ln(train length), which must be above 1, got {shape.train_length}"
            )
        if attention_factor is not None and attention_factor <= 0:
            raise SchemeError(f"attention_factor must be above 0, got {attention_factor}; left out, it is the paper's")
        self.short, self.long, self.factor, self.switch = short, long, factor, switch
        self.attention_factor = attention_factor
        self.prefix_consistent = switch == "target" or short == long

    def frequencies(self, length: int) -> Tensor:
        reach = length if self.switch == "input" else self.factor * self.shape.train_length
        factors = self.long if reach > self.shape.train_length else self.short
        return super().frequencies(length) / torch.tensor(factors, dtype=torch.float64)

    def gain(self, length: int) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.shape.train_length))
