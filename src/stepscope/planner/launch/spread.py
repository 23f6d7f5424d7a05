"""How far a plan's figures may be off, as published results show it."""

from __future__ import annotations

from msgspec import Struct

STEP = (0.92, 1.34)
"""Measured over planned, of step times: four fifths of 2,133 published rows lie there, each of 11
sources weighing the same. Slower than planned is likelier than faster."""
MEMORY = (0.93, 1.32)
"""The same of memory: 1,091 rows of 5 sources."""


class Range(Struct, frozen=True, kw_only=True):
    """A figure and where four fifths of such figures lie."""

    value: float
    low: float
    high: float


def step_range(step_s: float) -> Range:
    return Range(value=step_s, low=step_s * STEP[0], high=step_s * STEP[1])


def memory_range(memory_bytes: float) -> Range:
    return Range(value=memory_bytes, low=memory_bytes * MEMORY[0], high=memory_bytes * MEMORY[1])
