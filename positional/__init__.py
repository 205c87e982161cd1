"""Pluggable positional encodings for Transformers: one small exact file each."""

from positional.base import Positions, Scheme, SchemeError, Scores, Shape
from positional.build import build, kinds

__all__ = ["Positions", "Scheme", "SchemeError", "Scores", "Shape", "build", "kinds"]
