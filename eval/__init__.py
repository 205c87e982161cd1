"""Measures any causal language model at longer and longer contexts."""


class EvalError(Exception):
    """A measurement that cannot be made as asked; the message names the thing and the fix."""
