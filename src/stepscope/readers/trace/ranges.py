"""Ranges written as a start and an end, paired as they are read into complete events."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field

from stepscope.readers.trace.columns import Tally
from stepscope.readers.trace.nanoseconds import ns_from_text
from stepscope.readers.trace.records import NO_ARGS, Args, Begin, CompleteText, End

MAX_OPEN = 100_000
"""Ranges open at once, over all threads; real programs nest some hundred deep."""


class RangePairs(Struct):
    """The ranges still open, per thread; an end closes the one opened last on its thread."""

    _open: dict[tuple[int | str, int | str], list[tuple[Begin, int | None]]] = field(
        default_factory=dict
    )
    _num_open: int = 0

    def take(self, edge: Begin | End, tally: Tally) -> tuple[CompleteText, int, int] | None:
        """The complete event that `edge` ends, with its start and duration; None when it ends none.
        Oddities are counted."""
        at = ns_from_text(bytes(edge.ts).decode("utf-8", "replace"))
        place = (edge.pid, edge.tid)
        if isinstance(edge, Begin):
            if self._num_open >= MAX_OPEN:
                tally.count_unknown("phase B without its E")
                return None
            self._open.setdefault(place, []).append((_owned(edge), at))
            self._num_open += 1
            return None
        stack = self._open.get(place)
        if not stack:
            tally.count_unknown("phase E without its B")
            return None
        begin, start = stack.pop()
        self._num_open -= 1
        if start is None or at is None:
            tally.no_time += 1
            return None
        if at < start:
            tally.negative_duration += 1
        event = CompleteText(
            cat=begin.cat, name=begin.name, pid=begin.pid, tid=begin.tid, args=begin.args
        )
        return event, start, max(at - start, 0)

    def count_open(self, tally: Tally) -> None:
        """Count the ranges that never ended: none is given a guessed end."""
        if self._num_open:
            tally.count_unknown("phase B without its E", self._num_open)


def _owned(begin: Begin) -> Begin:
    """The same with no part of it pointing into its chunk, which would otherwise stay in memory as
    long as the range is open."""
    begin.ts = Raw(b"")
    if begin.args is not NO_ARGS:
        parts: dict[str, Any] = {name: getattr(begin.args, name) for name in Args.__struct_fields__}
        parts = {
            name: part.copy() if isinstance(part, Raw) else part for name, part in parts.items()
        }
        begin.args = Args(**parts)
    return begin
