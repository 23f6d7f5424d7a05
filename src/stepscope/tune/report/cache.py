"""What a tuning cache holds, as a document and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.codec import Contract, encode
from stepscope.report.document.blocks import Block, Headline, Prose, Section, as_document
from stepscope.report.words import plural, short_time
from stepscope.tune.cache import KeptSetting
from stepscope.tune.report.view import setting_words


class TuningCacheContract(Contract, frozen=True, kw_only=True, tag="stepscope.tuning-cache/1"):
    unread_lines: int
    entries: tuple[KeptSetting, ...]


def cache_json(entries: Sequence[KeptSetting], unread: int) -> str:
    return encode(TuningCacheContract(unread_lines=unread, entries=tuple(entries)))


@as_document
def cache_document(entries: Sequence[KeptSetting], unread: int) -> Iterator[Block]:
    yield Headline(command="stepscope tune cache", text=f"{plural(len(entries), 'setting')} kept")
    for entry in entries:
        gain = ""
        if entry.baseline_ns is not None:
            gain = f", {entry.baseline_ns / entry.ns:.2f}x as fast as before"
        versions = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
        lines = [
            f"{setting_words(entry.settings)}: {short_time(entry.ns)}{gain}",
            f"{entry.shapes}; {entry.dtype}; {entry.device}",
            f"{versions or 'no versions recorded'}; {entry.at}",
        ]
        if not entry.checked:
            lines.append("what it computes was not compared")
        yield Section(title=entry.what, blocks=tuple(map(Prose, lines)))
    if unread:
        yield Prose(f"{plural(unread, 'line')} could not be read")
