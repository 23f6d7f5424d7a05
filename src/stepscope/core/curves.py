"""Curve: something that was measured over time, for a chart."""

from __future__ import annotations

from msgspec import Struct


class Curve(Struct, frozen=True, kw_only=True):
    """Lines over one axis. A point whose value was not measured is left out."""

    title: str
    words: str
    """The chart in a sentence, for those who cannot see it."""
    x: str
    """What the axis counts, with its unit."""
    unit: str
    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    from_zero: bool = True
    steps: bool = False
    """Whether a value holds until the next one."""
