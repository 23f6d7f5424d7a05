"""A recording of another tool: its format, its files, and what was wrong with them. What was read
stands in the classes of each kind (KernelRecording and its like); the tool's `words` say it in
words."""

from __future__ import annotations

from msgspec import Struct


class Recording(Struct, frozen=True, kw_only=True):
    """One recording, or several of a format that are read as one."""

    format: str
    """A name of readers.formats.FORMATS."""
    paths: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What was damaged, left out or not understood."""
