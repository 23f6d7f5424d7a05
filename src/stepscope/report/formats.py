"""The formats: what each is and lets us judge, and how to record it."""

from __future__ import annotations

from stepscope.core.contract.codec import encode, filled
from stepscope.core.contract.formats import Format, FormatsContract
from stepscope.readers.formats import BY_NAME, FORMATS, JUDGED, KINETO
from stepscope.readers.inputs import FoundSources
from stepscope.report.document.blocks import Column, Document, Items, Section, Table
from stepscope.report.names import clean

MOST_NAMED = 8


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


def formats_json() -> str:
    """The same as stepscope.formats/1."""
    rows = tuple(filled(Format, spec) for spec in FORMATS)
    return encode(FormatsContract(judged=tuple(JUDGED), formats=rows))


def source_words(inputs: FoundSources) -> list[str]:
    """A line for each file of what the user named."""
    lines = []
    for sources in (inputs.logs, inputs.sources, inputs.others):
        for source in sources[:MOST_NAMED]:
            spec = BY_NAME[source.format or KINETO]
            judged = ", ".join(spec.judges)
            lines.append(f"{clean(source.label)}: {spec.name} ({spec.words}); it tells of {judged}")
    num_more = len(inputs.sources) + len(inputs.others) + len(inputs.logs) - len(lines)
    if num_more > 0:
        lines.append(f"and {num_more} more")
    return [*lines, *inputs.notes]
