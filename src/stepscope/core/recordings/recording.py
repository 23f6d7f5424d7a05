"""A recording of another tool: its format, its files, and what was wrong with them. What was read
stands in the classes of each kind (KernelRecording and its like); the tool's `words` say it in
words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct


class Recording(Struct, frozen=True, kw_only=True):
    """One recording, or several of a format that are read as one."""

    format: str
    """A name of readers.formats.FORMATS."""
    paths: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What was damaged, left out or not understood."""


class RecordingLine(Struct, frozen=True, kw_only=True):
    """A word and what it is: "peak", "61.2 GB of 80 GB"."""

    name: str
    value: str


class Table(Struct, frozen=True, kw_only=True):
    """Rows for a person. Cells are text that is ready to be shown; names in them are strangers'."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    """Indices of the columns of numbers."""


def table(title: str, columns: str, rows: Iterable[Sequence[str]]) -> Table:
    """`columns` has their titles, those of numbers behind a sign: `kernel|>calls|>ms`."""
    titles = columns.split("|")
    return Table(
        title=title,
        columns=tuple(each.removeprefix(">") for each in titles),
        rows=tuple(map(tuple, rows)),
        right=tuple(at for at, each in enumerate(titles) if each.startswith(">")),
    )


class RecordingText(Struct, frozen=True, kw_only=True):
    """What another tool recorded, in words; several recordings that are read as one are one."""

    format: str
    """Format as `stepscope formats` names it."""
    paths: tuple[str, ...]
    lines: tuple[RecordingLine, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The lines, each as a word and what it is."""
        return tuple((line.name, line.value) for line in self.lines)


def lines_of(pairs: Iterable[tuple[str, str]]) -> tuple[RecordingLine, ...]:
    return tuple(RecordingLine(name=name, value=value) for name, value in pairs)
