"""Recordings of other tools in words: what the report shows of each.

A tool's module, `words` beside its readers, has `lines(recording)`, words and what each is, and
`tables(recording)`.
"""

from __future__ import annotations

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.recording import Recording, RecordingText, lines_of
from stepscope.readers.formats import BY_NAME


def recording_texts(auxiliary: Auxiliary | None) -> tuple[RecordingText, ...]:
    """Each recording's; none where nothing was recorded beside traces."""
    return () if auxiliary is None else tuple(map(text_of, auxiliary.recordings))


def text_of(recording: Recording) -> RecordingText:
    tool = BY_NAME[recording.format].in_words()
    return RecordingText(
        format=recording.format,
        paths=recording.paths,
        lines=lines_of(tool.lines(recording)),
        tables=tuple(tool.tables(recording)),
        notes=recording.notes,
    )
