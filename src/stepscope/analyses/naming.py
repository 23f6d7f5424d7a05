"""Events by their names: a pattern is tried once per distinct name, not once per event."""

from __future__ import annotations

import re

import numpy as np

from stepscope.core.trace import Bool, Trace


def matching(trace: Trace, pattern: re.Pattern[str]) -> Bool:
    """Mask of the events whose name the pattern finds."""
    if len(trace) == 0:
        return np.zeros(0, np.bool_)
    by_name = np.array([pattern.search(name) is not None for name in trace.names], np.bool_)
    mask: Bool = by_name[trace.name]
    return mask
