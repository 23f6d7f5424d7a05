"""Numbers as words: lists of ranks, how often, gains, and notes on what was counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def number_ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as `0-2, 5`."""
    ranges: list[tuple[int, int]] = []
    for value in sorted(set(numbers)):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def times(count: int) -> str:
    """1 as `once`, 3 as `3 times`."""
    return "once" if count == 1 else f"{count} times"


def ordinal(number: int) -> str:
    """3 as `3rd`, 11 as `11th`, 21 as `21st`."""
    ending = "th"
    if number // 10 % 10 != 1:
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def first_few(items: Sequence[object], most: int = 8) -> str:
    """`3, 5, 7, ...`."""
    return ", ".join(map(str, items[:most])) + (", ..." if len(items) > most else "")


def true_notes(*notes: tuple[object, str]) -> list[str]:
    """The texts whose condition holds. {n}, or {n:,}, in one is its condition: a count."""
    said = []
    for condition, text in notes:
        if isinstance(condition, int):
            text = text.replace("{n}", f"{condition}").replace("{n:,}", f"{condition:,}")
        if condition:
            said.append(text)
    return said


def ms_words(ns: float) -> str:
    """Nanoseconds as milliseconds in three digits, and no exponent: 0.123 ms, 46.3 ms, 2 134 ms."""
    value = ns / 1e6
    digits = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}".replace(",", " ")
    return f"{digits} ms"


def size_words(size: float) -> str:
    """4.50 GB, 31.2 MB, 512 B."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= 0.9995 * scale:
            value = size / scale
            return (
                f"{value:.{0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2}f} {unit}"
            )
    return f"{size:.0f} B"


WIDE_RANGE = 2.0
"""The end of a range over its beginning from which a gain is known roughly, and said so."""


def gain_words(gain: float, low: float, high: float) -> str:
    """A gain with its range: no more digits than it is known to."""
    if high >= WIDE_RANGE * low:
        return f"about {gain:.1f}x ({low:.1f}-{high:.1f})"
    return f"{gain:.2f}x ({low:.2f}-{high:.2f})"
