"""The formats: what each is and lets us judge, and how to record it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from stepscope.core.codec import encode
from stepscope.core.contract.formats import FileFormat, Format, FormatsContract
from stepscope.readers.format import JUDGED, KINETO
from stepscope.readers.formats import BY_NAME, FORMATS
from stepscope.readers.inputs import FoundSources
from stepscope.report.document.blocks import Column, Document, Items, Section, Table
from stepscope.report.words import clean

MAX_NAMED = 8


def formats_document() -> Document:
    """What each format is and tells of, then how to record it."""
    recorded = Items(tuple(f"{spec.name}: {spec.record}" for spec in FORMATS))
    return (formats_table(), Section(title="How to record each", blocks=(recorded,)))


def formats_table() -> Table:
    """A line for each format; the documentation has it too."""
    columns = (
        Column(title="format"),
        Column(title="what it is", fit="wrap"),
        Column(title="tells of", fit="wrap", most=34),
    )
    rows = ((spec.name, spec.words, ", ".join(spec.judges)) for spec in FORMATS)
    return Table(columns=columns, rows=tuple(rows))


def formats_json(files: tuple[FileFormat, ...] | UnsetType = UNSET) -> str:
    """The same as stepscope.formats/1, with the files that were looked at."""
    rows = tuple(
        Format(
            name=spec.name,
            words=spec.words,
            kind=spec.kind,
            record=spec.record,
            judges=spec.judges,
        )
        for spec in FORMATS
    )
    return encode(FormatsContract(judged=tuple(JUDGED), formats=rows, files=files))


def source_formats(inputs: FoundSources) -> Iterator[FileFormat]:
    """Each file of what the user named."""
    for source in (*inputs.logs, *inputs.sources, *inputs.others):
        yield FileFormat(path=source.label, format=source.format or KINETO)


def source_words(inputs: FoundSources) -> list[str]:
    """A line for each file of what the user named; of a run without any, one for the run."""
    lines = []
    for sources in (inputs.logs, inputs.sources, inputs.others):
        for source in sources[:MAX_NAMED]:
            spec = BY_NAME[source.format or KINETO]
            judged = ", ".join(spec.judges)
            lines.append(f"{clean(source.label)}: {spec.name} ({spec.words}); it tells of {judged}")
    num_more = len(inputs.sources) + len(inputs.others) + len(inputs.logs) - len(lines)
    if num_more > 0:
        lines.append(f"and {num_more} more")
    if not lines and inputs.run is not None:
        recorded = f"a recorded run of {len(inputs.run.ranks)} rank(s)"
        lines = [f"{clean(str(inputs.run.path))}: {recorded}; the profiler recorded no step of it"]
    return [*lines, *inputs.notes]
