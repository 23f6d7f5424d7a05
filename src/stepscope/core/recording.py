"""A recording of another tool, in words: what the report shows of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows for a person. Cells are text that is ready to be shown; names in them are strangers'."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    """Columns of numbers, by place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording, or several of a kind, in words: what the report shows of it."""

    format: str
    """A name of readers.formats.FORMATS."""
    paths: tuple[str, ...]
    lines: tuple[tuple[str, str], ...] = ()
    """A word and what it is: ("peak", "61.2 GB of 80 GB")."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    """What was damaged, left out or not understood."""
