"""Numbers on the command line: what they may be, and what is said of others."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

MOST_DIGITS = 20
"""Of a whole number: Python refuses to read one of thousands."""


def whole(what: str, least: int = 1, most: int = 10**9) -> Callable[[str], int]:
    """Reads whole numbers in a range; `what` says what others are not."""

    def read(text: str) -> int:
        is_short = text.isdecimal() and len(text) <= MOST_DIGITS
        if text.isdecimal() and (not is_short or int(text) > most):
            raise ArgumentTypeError(f"{text[:60]!r} is more than {most}")
        if not is_short or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return read


def real(what: str, is_good: Callable[[float], bool]) -> Callable[[str], float]:
    """Reads numbers; `what` says what those are not that are not good."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not is_good(value):
            raise ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return read


def positive(what: str, most: float = 1e9) -> Callable[[str], float]:
    """Reads numbers above 0."""
    return real(f"{what}: above 0, at most {most:g}", lambda value: 0 < value <= most)


count = whole("a whole number from 1 on")
seconds = positive("a number of seconds", 1e7)
step_time = real(
    "a step time in milliseconds; give a number above 0, such as 65.5",
    lambda value: 0 < value < 1e9,
)
