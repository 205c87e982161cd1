"""Numbers in English words: what a number -> words problem is made of."""

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SCALES = ["", " thousand", " million", " billion"]
DIGITS = 3 * len(SCALES)
"""The most digits of a number that has a name here."""


def spelled(number: int) -> str:
    """1042 -> one thousand forty two; from 0, and of at most `DIGITS` digits."""
    if number == 0:
        return SMALL[0]
    parts = []
    for power in reversed(range(len(SCALES))):
        group = number // 1000**power % 1000
        if group:
            parts.append(below_thousand(group) + SCALES[power])
    return " ".join(parts)


def below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    parts = [f"{SMALL[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        parts.append(TENS[rest // 10 - 2])
        rest %= 10
    if rest:
        parts.append(SMALL[rest])
    return " ".join(parts)


def longest(digits: int) -> int:
    """Letters of the longest name of a number of so many digits: three, seventy three, three hundred seventy three."""
    groups, first = divmod(digits - 1, 3)
    return len(spelled(int(("3", "73", "373")[first] + "373" * groups)))
