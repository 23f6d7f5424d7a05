"""Events by their names: a pattern is tried once per distinct name, not once per event."""

from __future__ import annotations

import re

import numpy as np

from stepscope.core.trace import Bool, Trace

FEW_NAMES = 6
"""Up to so many, comparing the column with each is faster than looking every event's name up."""


def matching(trace: Trace, pattern: re.Pattern[str]) -> Bool:
    """Mask of the events whose name the pattern finds."""
    by_name = trace.is_named(pattern)
    codes = np.flatnonzero(by_name)
    if len(codes) > FEW_NAMES:
        named: Bool = by_name.take(trace.name)
        return named
    mask = np.zeros(len(trace), np.bool_)
    for code in codes.tolist():
        mask |= trace.name == code
    return mask
