"""The lab: where encodings, attention, training and evaluation meet."""


class LabError(Exception):
    """Something the user can mend; the message names the thing, says what is wrong and what to write instead.

    code: the exit code, 2 for a call that was wrong from the start, 1 for work that failed.
    """

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code
