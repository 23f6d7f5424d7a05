"""What a tuning cache holds, as a table and as JSON."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from stepscope.core.trials import Value
from stepscope.json_text import json_text
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.sheet import Sheet
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
    return json_text({"schema": SCHEMA, "unread_lines": unread, "entries": [asdict(row) for row in rows]}, indent=2)


def render_cache(rows: Sequence[Row], unread: int, *, width: int = PLAIN_WIDTH) -> str:
    """The list as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_cache(rows, unread, console)
    return captured.get()


def show_cache(rows: Sequence[Row], unread: int, console: Console) -> None:
    """Print the list."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    sheet.prose(f"{plural(len(rows), 'setting')} kept", style="bold")
    for row in rows:
        sheet.heading(sheet.shorten(sheet.clean(row.what), sheet.width))
        gain = "" if row.baseline_ns is None else f", {row.baseline_ns / row.ns:.2f}x as fast as before"
        sheet.prose(sheet.clean(f"{setting_words(row.settings)}: {short_time(row.ns)}{gain}"), indent=2)
        sheet.prose(sheet.clean(f"{row.shapes}; {row.dtype}; {row.device}"), indent=2)
        versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        sheet.prose(sheet.clean(f"{versions or 'no versions told'}; {row.at}"), indent=2)
        if not row.checked:
            sheet.prose("what it computes was not compared", indent=2)
    if unread:
        sheet.prose(f"{plural(unread, 'line')} could not be read", indent=2)
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
