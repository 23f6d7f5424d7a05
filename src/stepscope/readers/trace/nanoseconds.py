"""Exact integer nanoseconds from the numbers a trace writes.

A trace's times are decimal microseconds. `float * 1000` is wrong from 2^43 us on: a double there
cannot hold a nanosecond. Below that, the whole and the fractional part converted apart are exact;
above it only the text is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

EXACT_DOUBLE_US = float(2**43)
"""Below this many microseconds a double still tells nanoseconds apart (its step is at most 2^-10
us)."""

LIMIT_NS = 2**62
"""Times beyond this are taken for damage: sums of two stay inside 64 bits."""

LONGEST_NUMBER = 64
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,9})?", re.ASCII)
_WIDE = Context(prec=128)
_THREE_DECIMALS = re.compile(rb"(?:\d{1,15}\.\d{3},)+")
_WHOLE = re.compile(rb"(?:\d{1,15},)+")


def ns_from_double(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Nanoseconds from microseconds as doubles; exact below EXACT_DOUBLE_US, and for whole
    microseconds below 2^53."""
    whole = np.floor(us)
    ns: NDArray[np.int64] = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000.0).astype(
        np.int64
    )
    return ns


def ns_from_texts(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Nanoseconds from many numbers' JSON text, and which of them could not be read (0 there)."""
    joined = b",".join(texts) + b","
    unread = np.zeros(len(texts), np.bool_)
    # Nearly every file writes all its times alike; then the text of all of them converts at once.
    if _THREE_DECIMALS.fullmatch(joined):
        return np.fromstring(joined.replace(b".", b"").decode("ascii"), np.int64, sep=","), unread
    if _WHOLE.fullmatch(joined):
        return np.fromstring(joined.decode("ascii"), np.int64, sep=",") * 1000, unread
    values = [ns_from_text(text.decode("utf-8", "replace")) for text in texts]
    unread[:] = [value is None for value in values]
    return np.array([value or 0 for value in values], np.int64), unread


def ns_from_text(text: str) -> int | None:
    """Nanoseconds from microseconds as JSON number text (also quoted); None when it is no finite
    number in range."""
    if len(text) > LONGEST_NUMBER:
        return None
    number = text.strip().strip('"').strip()
    if not NUMBER.fullmatch(number):
        return None
    value = Decimal(number)
    if value.adjusted() > 18:
        return None
    ns = int(_WIDE.to_integral_value(_WIDE.multiply(value, Decimal(1000))))
    return ns if abs(ns) < LIMIT_NS else None
