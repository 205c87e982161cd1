"""Lanes: what an extension does to each of them, and the colours that pictures give it."""

import numpy as np
from torch import Tensor

KEPT, BLENDED, STRETCHED, FASTER = "#2a7f62", "#d89a1e", "#b5382a", "#4a6fb5"


def kinds_of(now: Tensor, plain: Tensor) -> list[tuple[str, str, np.ndarray]]:
    """Lanes as they are in plain RoPE, slowed by the most that any is, by less, or quickened."""
    ratio = (now / plain).numpy()
    turning = now.numpy() > 0
    most = ratio[turning].min(initial=1.0)
    kept = turning & (abs(ratio - 1) < 1e-6)
    stretched = turning & ~kept & (ratio < most * (1 + 1e-6)) & (most < 1)
    faster = turning & (ratio > 1 + 1e-6)
    blended = turning & ~kept & ~stretched & ~faster
    return [
        ("kept", KEPT, kept),
        ("blended", BLENDED, blended),
        (f"stretched {1 / most:.4g} ×", STRETCHED, stretched),
        ("faster", FASTER, faster),
    ]
