"""What a tuning cache holds, as a document and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from stepscope.core.experiments.trials import Value
from stepscope.protocol.json_text import json_text
from stepscope.report.document.blocks import Block, Document, Headline, Prose, Section
from stepscope.report.tune.words import setting_words
from stepscope.report.units import plural, short_time

SCHEMA = "stepscope.tuning-cache/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record."""

    what: str
    shapes: str
    dtype: str
    device: str
    versions: Mapping[str, str]
    settings: Mapping[str, Value]
    ns: float
    baseline_ns: float | None
    at: str
    checked: bool


def cache_json(rows: Sequence[Row], unread: int) -> str:
    return json_text(
        {"schema": SCHEMA, "unread_lines": unread, "entries": [asdict(row) for row in rows]},
        indent=2,
    )


def cache_document(rows: Sequence[Row], unread: int) -> Document:
    return tuple(_blocks(rows, unread))


def _blocks(rows: Sequence[Row], unread: int) -> Iterator[Block]:
    yield Headline(command="stepscope tune cache", text=f"{plural(len(rows), 'setting')} kept")
    for row in rows:
        gain = ""
        if row.baseline_ns is not None:
            gain = f", {row.baseline_ns / row.ns:.2f}x as fast as before"
        versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        lines = [
            f"{setting_words(row.settings)}: {short_time(row.ns)}{gain}",
            f"{row.shapes}; {row.dtype}; {row.device}",
            f"{versions or 'no versions recorded'}; {row.at}",
        ]
        if not row.checked:
            lines.append("what it computes was not compared")
        yield Section(title=row.what, blocks=tuple(map(Prose, lines)))
    if unread:
        yield Prose(f"{plural(unread, 'line')} could not be read")
