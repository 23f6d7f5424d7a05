"""Numbers and units as Nsight Compute prints them, into base units: bytes, hertz, nanoseconds,
percent as it stands.

"3,197,215,463.64" hz     "78.91" us     "32.77" Kbyte/block     "1.98" cycle/nsecond     "132 (1;
1; 1)" with its instances
"""

from __future__ import annotations

import re
from functools import lru_cache

NUMBER = re.compile(
    r"(-?(?:\d{1,3}(?:,\d{3}){1,12}|\d{1,40})(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?)(?: \(.*)?",
    re.DOTALL,
)
MAX_NUMBER_CHARS = 64
MAX_NUMBER = 1e30
"""A number beyond is no measurement, and what is made of it would not be finite."""
PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SCALED = ("byte", "hz", "Hz", "cycle", "inst", "sector", "warp", "thread", "block")
NANOSECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
DECIMAL_COMMA = re.compile(r"-?(?:\d{1,3}(?:\.\d{3}){1,12}|\d{1,40}),(?:\d{1,2}|\d{4,40})")
"""`78,91` and `1.234,56`. Three digits behind it are a thousands separator's: Nsight Compute prints
two."""
SECONDS = re.compile(r"([num]?)s(?:ec(?:ond)?s?)?")


def number_of(text: str) -> float | None:
    """None for what is no number: text, `nan`, `no data`, nothing, a decimal comma."""
    match = NUMBER.fullmatch(text.strip()[:MAX_NUMBER_CHARS])
    if match is None:
        return None
    value = float(match[1].replace(",", ""))
    return value if abs(value) <= MAX_NUMBER else None


def has_decimal_comma(text: str) -> bool:
    return DECIMAL_COMMA.fullmatch(text.strip()[:MAX_NUMBER_CHARS]) is not None


@lru_cache(maxsize=4096)
def scale_of(unit: str) -> float:
    """What a number in this unit is multiplied with."""
    over, _, under = unit.strip().partition("/")
    scale = _part(over)
    return scale / (_part(under) / 1e9 if SECONDS.fullmatch(under) else 1.0)


def _part(unit: str) -> float:
    if match := SECONDS.fullmatch(unit):
        return NANOSECONDS[match[1]]
    for base in SCALED:
        if unit.endswith(base) and unit.removesuffix(base) in PREFIXES:
            return PREFIXES[unit.removesuffix(base)]
    return 1.0
