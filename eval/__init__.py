"""Measures any causal language model at longer and longer contexts."""


class EvalError(Exception):
    """A measurement that cannot be made as asked; the message names the thing and the fix.

    code: the exit code, 2 for a call that was wrong from the start, 1 for a measurement that failed.
    """

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code
