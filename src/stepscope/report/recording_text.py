"""A recording of another tool in words: what the report shows of it.

A tool's module, `words` beside its readers, has `lines(recording)`, words and what each is, and
`tables(recording)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from stepscope.core.contract.codec import filled
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.recording import Recording
from stepscope.readers.formats import BY_NAME


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
    """One recording, or several that are read as one, in words."""

    format: str
    paths: tuple[str, ...]
    lines: tuple[tuple[str, str], ...] = ()
    """A word and what it is: ("peak", "61.2 GB of 80 GB")."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


def recording_texts(auxiliary: Auxiliary | None) -> tuple[RecordingText, ...]:
    """Each recording's; none where nothing was recorded beside traces."""
    return () if auxiliary is None else tuple(map(text_of, auxiliary.recordings))


def text_of(recording: Recording) -> RecordingText:
    tool = BY_NAME[recording.format].in_words()
    return filled(
        RecordingText,
        recording,
        lines=tuple(tool.lines(recording)),
        tables=tuple(tool.tables(recording)),
    )
