"""Numbers as people read them: the right number of digits, and units that stay with their number.

A number and its unit are joined by a no-break space, so that wrapped prose does not part them; the
sheet prints a plain one.
"""

from __future__ import annotations

from collections.abc import Sequence

NBSP = "\u00a0"


def digits_after_point(value: float) -> int:
    """Decimals that leave about three digits: 0.12, 4.63, 46.3, 463."""
    size = abs(value)
    if size >= 99.95:
        return 0
    return 1 if size >= 9.995 else 2


def fixed(value: float, decimals: int) -> str:
    """The number with these decimals and its thousands apart: 1 234."""
    return f"{value:,.{decimals}f}".replace(",", NBSP)


def number(value: float) -> str:
    """Three digits or so; what is small keeps its first digit instead of becoming 0."""
    if 0 < value < 0.0005:
        return "<0.001"
    if 0 < value < 0.0095:
        return f"{value:.3f}"
    return "0" if value == 0 else fixed(value, digits_after_point(value))


def figure(value: float) -> str:
    """Four digits at most, no zeros to fill them and no exponent: 3, 7.856, 130 812."""
    if 0 < value < 0.0005 or value >= 9999.5:
        return number(value)
    return f"{value:.4g}"


def in_column(value: float, decimals: int) -> str:
    """The number with its column's decimals; `<0.1` where they would make it look like nothing."""
    text = fixed(value, decimals)
    least = 10.0**-decimals
    return f"<{least:.{decimals}f}" if value > 0 and float(text.replace(NBSP, "")) == 0 else text


def signed(value: float, decimals: int) -> str:
    """The number with its sign; what rounds to nothing has none."""
    text = fixed(abs(value), decimals)
    return text if float(text.replace(NBSP, "")) == 0 else f"{'-' if value < 0 else '+'}{text}"


def ms(ns: float) -> str:
    """Nanoseconds as milliseconds: 0.12 ms, 46.3 ms, 1 234 ms."""
    return f"{number(ns / 1e6)}{NBSP}ms"


def short_time(ns: float) -> str:
    """Nanoseconds in the unit that suits a single call: microseconds up to a millisecond."""
    return ms(ns) if ns >= 1e6 else f"{number(ns / 1e3)}{NBSP}us"


def percent(share: float) -> str:
    """0.034 as `3.4 %`, 0.52 as `52 %`."""
    value = share * 100
    if 0 < value < 0.05:
        return f"<0.1{NBSP}%"
    if value == 0:
        return f"0{NBSP}%"
    return f"{value:.{1 if value < 9.95 else 0}f}{NBSP}%"


def per_step(count: int, num_steps: int) -> str:
    """How often a step: a whole number where it is one."""
    value = count / num_steps
    return fixed(value, 0) if value == int(value) or value >= 99.95 else in_column(value, 1)


def megabytes(size: float) -> str:
    return number(size / 1e6)


def gigabytes(size: float) -> str:
    return number(size / 1e9)


def teraflops(flops: float) -> str:
    return f"{number(flops / 1e12)}{NBSP}TFLOP"


def scaled(value: float, units: Sequence[tuple[float, str]], space: str = " ") -> str:
    """Three digits in the largest unit that the value reaches, else in the last."""
    scale, unit = next((each for each in units if value >= each[0]), units[-1])
    return f"{value / scale:.3g}{space}{unit}"


def plural(count: int, noun: str, ending: str = "s") -> str:
    return f"{fixed(count, 0)}{NBSP}{noun}{'' if count == 1 else ending}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
