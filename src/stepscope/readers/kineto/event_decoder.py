"""The scanning step: a chunk of event text in, columns out.

This is the one hot function of the reader, kept narrow so that a compiled scanner can take its
place: `Scanner.scan` takes the text of whole events separated by commas and returns a Columns;
codes point into the Scanner's tables. Four fifths of its time are the typed decoder's; the rest
works on whole lists with functions that run in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from stepscope.core.codec import decode_json
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.readers.trace.categories import (
    EXACT_DOUBLE_US,
    LIMIT_NS,
    UNNAMED,
    kind_of_category,
    ns_from_double,
    ns_from_texts,
    phase_label,
)
from stepscope.readers.trace.columns import (
    ANY_EVENT,
    ANY_EVENT_TEXT,
    COUNTED,
    KEPT,
    NO_ARGS,
    Args,
    Begin,
    Codes,
    Columns,
    Complete,
    CompleteText,
    End,
    Instant,
    Meta,
    RangePairs,
    Tally,
)

_decode_doubles = msgspec.json.Decoder(list[ANY_EVENT]).decode
_decode_text = msgspec.json.Decoder(list[ANY_EVENT_TEXT]).decode

MEMORY_FIELDS = ("bytes", "address", "allocated", "reserved", "device_type", "device")

SEPARATOR = b"\x00"
"""JSON text has none."""
OP_PARTS = attrgetter("types", "dims", "strides", "concrete")
LAUNCH_PARTS = attrgetter("grid", "block", "registers", "shared", "occupancy")
_NO_DETAILS = [SEPARATOR.join(parts(NO_ARGS)) for parts in (OP_PARTS, LAUNCH_PARTS)]

NOT_WHOLE = re.compile(rb'"(?:ts|dur)"\s*:\s*(?:"|-?\d+[.eE])')
"""A time with decimals, an exponent or quotes."""


class ScanError(Exception):
    """The chunk is not clean JSON of the expected types: take it event by event."""


class LossyTimesError(ScanError):
    """The chunk's times need their text: a double cannot hold them."""


@dataclass(slots=True)
class Scanner:
    """Scans chunks of one file and keeps the tables their codes point into."""

    names: Codes[str] = field(default_factory=Codes)
    threads: Codes[tuple[int | str, int | str]] = field(default_factory=Codes)
    details: Codes[bytes] = field(default_factory=lambda: Codes(*_NO_DETAILS))
    """Keys: an event's OP_PARTS or LAUNCH_PARTS as JSON text, joined by SEPARATOR; their number
    tells which."""
    collectives: Codes[tuple[bytes, ...]] = field(default_factory=Codes)
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    ranges: RangePairs = field(default_factory=RangePairs)
    tally: Tally = field(default_factory=Tally)
    times_as_text: bool = False
    """Set once a chunk needs it: the times of one file are all written alike."""
    _kinds: dict[str, int] = field(default_factory=dict)
    _has_collectives: bool = False

    def scan(self, chunk: bytes | memoryview) -> Columns:
        """Columns of the chunk's events; ScanError when it must be taken event by event."""
        text = b"".join((b"[", chunk, b"]"))
        self._has_collectives = b'"Collective name"' in text
        if not self.times_as_text:
            try:
                return self._scan_doubles(text)
            except ScanError:
                columns = self._scan_text(text)
                self.times_as_text = True
                return columns
        return self._scan_text(text)

    def scan_in_place(self, chunk: bytes | memoryview) -> list[Columns]:
        """The same in pieces, which hold until the next chunk is scanned."""
        return [self.scan(chunk)]

    def _scan_doubles(self, text: bytes) -> Columns:
        events = _decoded(_decode_doubles, text)
        complete = [e for e in events if type(e) is Complete]
        start, dur = self._times_from_doubles(complete, text)
        return self._columns(complete, start, dur, events)

    def _scan_text(self, text: bytes) -> Columns:
        events = _decoded(_decode_text, text)
        complete = [e for e in events if type(e) is CompleteText]
        start, bad = ns_from_texts([bytes(e.ts) for e in complete])
        dur, unended = ns_from_texts([bytes(e.dur) for e in complete])
        start, dur = self._checked(start, dur, bad, unended)
        return self._columns(complete, start, dur, events)

    def _times_from_doubles(self, events: Sequence[Complete], text: bytes) -> tuple[Int64, Int64]:
        n = len(events)
        ts = np.fromiter(map(attrgetter("ts"), events), np.float64, n)
        dur = np.fromiter(map(attrgetter("dur"), events), np.float64, n)
        bad, unended = np.isnan(ts), np.isnan(dur)
        ts[bad] = 0.0
        dur[unended] = 0.0
        # A plain float: what overflows becomes infinite without a warning.
        largest = float(max(np.abs(ts).max(initial=0.0), np.abs(dur).max(initial=0.0)))
        if largest >= EXACT_DOUBLE_US and (largest * 1000 >= LIMIT_NS or NOT_WHOLE.search(text)):
            raise LossyTimesError
        return self._checked(ns_from_double(ts), ns_from_double(dur), bad, unended)

    def _checked(self, start: Int64, dur: Int64, bad: Bool, unended: Bool) -> tuple[Int64, Int64]:
        """Counts what is damaged. An event without a start keeps its place here as dur = NONE and
        is dropped in `_columns`."""
        negative = dur < 0
        self.tally.no_time += int(bad.sum())
        self.tally.no_duration += int((unended & ~bad).sum())
        self.tally.negative_duration += int((negative & ~bad).sum())
        dur[negative] = 0
        dur[bad] = NONE
        return start, dur

    def _columns(
        self, complete: list[Any], start: Int64, dur: Int64, events: Sequence[Any]
    ) -> Columns:
        """Columns of the complete events, and of the ranges that end here; `dur` is NONE for those
        to drop."""
        self.tally.raw_events += len(events)
        keep = dur >= 0
        if not keep.all():
            complete, start, dur = list(compress(complete, keep.tolist())), start[keep], dur[keep]
        rest = [e for e in events if type(e) in KEPT] if len(complete) < len(events) else []
        ranges = self._ended_ranges(rest)
        if ranges:
            complete = complete + [event for event, _, _ in ranges]
            start = np.concatenate([start, np.array([s for _, s, _ in ranges], np.int64)])
            dur = np.concatenate([dur, np.array([d for _, _, d in ranges], np.int64)])
        columns = self._filled(complete, start, dur)
        self._take_names(rest)
        columns.memory = self._memory(rest)
        return columns

    def _filled(self, events: list[Any], start: Int64, dur: Int64) -> Columns:
        columns, n = Columns.blank(start, dur), len(events)
        cats = list(map(attrgetter("cat"), events))
        pids, tids = map(attrgetter("pid"), events), map(attrgetter("tid"), events)
        columns.kind = np.fromiter(map(self._kind_lookup(cats), cats), np.uint8, n)
        columns.name = np.fromiter(
            map(self.names.__getitem__, map(attrgetter("name"), events)), np.int32, n
        )
        columns.thread = np.fromiter(
            map(self.threads.__getitem__, zip(pids, tids, strict=True)), np.int32, n
        )
        self._fill_host(columns, events)
        self._fill_runtime(columns, events)
        self._fill_device(columns, events)
        return columns

    def _kind_lookup(self, cats: list[str]) -> Any:
        for cat in set(cats):
            if cat not in self._kinds:
                self._kinds[cat] = int(kind_of_category(cat))
            if self._kinds[cat] == Kind.OTHER:
                self.tally.count_unknown(cat or UNNAMED, cats.count(cat))
        return self._kinds.__getitem__

    def _fill_host(self, columns: Columns, events: Sequence[Any]) -> None:
        where, args = _args_of(columns, events, Kind.OP, Kind.MARK)
        if not args:
            return
        columns.external[where] = _ints("external", args)
        columns.sequence[where] = _ints("sequence", args)
        columns.fwd_thread[where] = _ints("fwd_thread", args)
        self._fill_details(columns, where, args, OP_PARTS)
        self._fill_collectives(columns, where, args)

    def _fill_runtime(self, columns: Columns, events: Sequence[Any]) -> None:
        where, args = _args_of(columns, events, Kind.RUNTIME)
        if not args:
            return
        columns.correlation[where] = _ints("correlation", args)
        columns.external[where] = _ints("external", args)
        sizes = _ints("bytes", args)
        columns.size_bytes[where] = np.where(sizes == NONE, _ints("size", args), sizes)

    def _fill_device(self, columns: Columns, events: Sequence[Any]) -> None:
        where, args = _args_of(columns, events, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)
        if not args:
            return
        columns.correlation[where] = _ints("correlation", args)
        columns.external[where] = _ints("external", args)
        columns.size_bytes[where] = _ints("bytes", args)
        kinds = columns.kind[where]
        streams, devices = _ints("stream", args), _ints("device", args)
        # XPU, HPU and MTIA write no stream, and some no device: their timeline is the device as
        # process, the queue as thread.
        placed = kinds != Kind.SYNC
        for ids, place in ((streams, "tid"), (devices, "pid")):
            blank = np.flatnonzero(placed & (ids == NONE))
            if len(blank):
                ids[blank] = _ints(place, [events[i] for i in where[blank].tolist()])
        columns.stream[where] = streams
        columns.device[where] = np.clip(devices, NONE, np.iinfo(np.int16).max)
        mine = kinds == Kind.KERNEL
        kernels = list(compress(args, mine.tolist()))
        self._fill_details(columns, where[mine], kernels, LAUNCH_PARTS)
        self._fill_collectives(columns, where, args)

    def _fill_details(
        self, columns: Columns, where: Int64, args: Sequence[Args], parts: Any
    ) -> None:
        """Number each event's `parts`, joined as they are written, in the table of details; those
        without any stay NONE."""
        keys = map(SEPARATOR.join, map(parts, args))
        columns.detail[where] = np.fromiter(
            map(self.details.__getitem__, keys), np.int32, len(args)
        )

    def _fill_collectives(self, columns: Columns, where: Int64, args: Sequence[Args]) -> None:
        if self._has_collectives:
            has = np.fromiter(map(bool, map(attrgetter("coll_name"), args)), np.bool_, len(args))
            codes = [
                self.collectives[tuple(map(bytes, _COLLECTIVE_PARTS(a)))]
                for a in compress(args, has.tolist())
            ]
            columns.collective[where[has]] = codes

    def _ended_ranges(self, rest: Iterable[Any]) -> list[tuple[CompleteText, int, int]]:
        taken = (
            self.ranges.take(edge, self.tally)
            for edge in rest
            if type(edge) is Begin or type(edge) is End
        )
        return [event for event in taken if event is not None]

    def _take_names(self, rest: Iterable[Any]) -> None:
        for event in rest:
            if type(event) in COUNTED:
                self.tally.count_unknown(phase_label(COUNTED[type(event)]))
            elif type(event) is Meta and event.name == "thread_name" and event.args is not None:
                name = string_of(event.args.name)
                if name is not None:
                    self.thread_names[str(event.pid), str(event.tid)] = name

    def _memory(self, rest: Iterable[Any]) -> Int64 | None:
        events = [
            e
            for e in rest
            if type(e) is Instant
            and e.name == "[memory]"
            and e.args is not None
            and e.args.bytes != NONE
        ]
        if not events:
            return None
        times, bad = ns_from_texts([bytes(e.ts) for e in events])
        self.tally.no_time += int(bad.sum())
        columns = [times, *(_ints(name, [e.args for e in events]) for name in MEMORY_FIELDS)]
        return np.stack(columns, axis=1)[~bad]


_COLLECTIVE_PARTS = attrgetter(
    "coll_name", "coll_group", "coll_desc", "coll_ranks", "coll_size", "coll_dtype", "coll_in",
    "coll_out", "coll_in_split", "coll_out_split", "coll_seq", "coll_id", "coll_src", "coll_dst",
)  # fmt: skip


def _decoded(decode: Any, text: bytes) -> list[Any]:
    try:
        return decode(text)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as problem:
        raise ScanError(str(problem)) from problem


def string_of(raw: bytes | msgspec.Raw) -> str | None:
    """The string that this JSON is; None when it is none."""
    try:
        return decode_json(bytes(raw), str)
    except ValueError:
        return None


def _args_of(columns: Columns, events: Sequence[Any], *kinds: Kind) -> tuple[Int64, list[Args]]:
    wanted = np.zeros(256, np.bool_)
    wanted[list(kinds)] = True
    mask = wanted[columns.kind]
    where = np.flatnonzero(mask)
    return where, [e.args for e in compress(events, mask.tolist())] if len(where) else []


def _ints(field_name: str, items: Sequence[Any]) -> Int64:
    values: Iterator[Any] = map(attrgetter(field_name), items)
    try:
        return np.fromiter(values, np.int64, len(items))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(_as_int, map(attrgetter(field_name), items)), np.int64, len(items))


def _as_int(value: Any) -> int:
    """An identifier or a size that some recorders write as text, as a decimal, as null or beyond 64
    bits."""
    try:
        number = (
            int(value)
            if not isinstance(value, str) or value.lstrip("-").isdecimal()
            else int(float(value))
        )
    except (TypeError, ValueError, OverflowError):
        return NONE
    return number if -(2**63) <= number < 2**63 else NONE
