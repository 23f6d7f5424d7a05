"""Numbers on the command line: what they may be, and what is said of others."""

from __future__ import annotations

from argparse import ArgumentTypeError


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def positive(text: str, what: str, most: float = 1e9) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise ArgumentTypeError(f"{text!r} is not {what}: above 0, at most {most:g}")
    return value


def seconds(text: str) -> float:
    return positive(text, "a number of seconds", 1e7)
