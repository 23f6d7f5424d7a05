"""Perfetto's own form: a stream of TracePackets.

Field numbers are those of Perfetto's public schema (github.com/google/perfetto,
protos/perfetto/trace): trace.proto, trace_packet.proto, clock_snapshot.proto,
interned_data/interned_data.proto and track_event/*.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np

from stepscope.core.device_label import device_label
from stepscope.core.trace import NONE, DeviceProperties, Float64, Int64
from stepscope.tables.perfetto.shapes import Arg, Slices, Value, plain
from stepscope.tables.perfetto.wire import (
    Piece,
    data,
    fixed,
    inside,
    interleaved,
    number,
    numbers,
    real,
    reals,
    rows_of,
    text,
)

PACKET = 1
"""Trace.packet"""
CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS = 6, 8, 10, 11, 12, 13
DESCRIPTOR = 60
"""TracePacket: clock_snapshot, timestamp, trusted_packet_sequence_id, track_event, interned_data,
sequence_flags, track_descriptor"""
CLEARED, NEEDS_STATE = 1, 2
"""SequenceFlags: what was interned before counts no more; this packet uses what was interned."""
CLOCKS, CLOCK_ID, CLOCK_TIME, REALTIME, BOOTTIME = 1, 1, 2, 1, 6
"""ClockSnapshot.clocks; Clock.clock_id, Clock.timestamp; BuiltinClock"""
CATEGORIES, NAMES, ARG_NAMES, ARG_TEXTS = 1, 2, 3, 29
"""InternedData: event_categories, event_names, debug_annotation_names,
debug_annotation_string_values"""
IID, INTERNED_TEXT = 1, 2
"""EventCategory, EventName, DebugAnnotationName, InternedString: iid, and name or str"""
UUID, TRACK_NAME, PROCESS, THREAD, PARENT, COUNTER, CHILDREN, ORDER = 1, 2, 3, 4, 5, 8, 11, 12
MERGING = 15
PROCESSES, THREADS = 19, 20
"""TrackDescriptor: uuid, name, process, thread, parent_uuid, counter, child_ordering,
sibling_order_rank, sibling_merge_behavior; process_ordering and thread_ordering, on the root
alone"""
ROOT, BY_RANK = 0, 1
"""The root's uuid; ProcessOrdering and ThreadOrdering: by sibling_order_rank"""
EXPLICIT, MERGE_NONE = 3, 2
"""ChildTracksOrdering, SiblingMergeBehavior: in the order of their ranks; tracks of one name stay
apart"""
PID, PROCESS_ORDER, PROCESS_NAME, PROCESS_LABEL = 1, 3, 6, 8
"""ProcessDescriptor: pid, legacy_sort_index, process_name, process_labels"""
THREAD_PID, TID, THREAD_ORDER, THREAD_NAME = 1, 2, 3, 5
"""ThreadDescriptor: pid, tid, legacy_sort_index, thread_name"""
UNIT, UNIT_NAME, BYTES_UNIT = 3, 6, 3
"""CounterDescriptor: unit, unit_name; Unit.UNIT_SIZE_BYTES"""
CATEGORY_IIDS, ANNOTATIONS, TYPE, NAME_IID, TRACK, EVENT_NAME, VALUE = 3, 4, 9, 10, 11, 23, 44
ARROWS, LAST_ARROWS = 47, 48
"""TrackEvent: category_iids, debug_annotations, type, name_iid, track_uuid, name,
double_counter_value, flow_ids, terminating_flow_ids"""
BEGIN, END, POINT = 1, 2, 4
"""TrackEvent.Type: TYPE_SLICE_BEGIN, TYPE_SLICE_END, TYPE_COUNTER"""
ARG_NAME_IID, ARG_INT, ARG_DOUBLE, ARG_TEXT, ARG_NAME, ARG_ARRAY = 1, 4, 5, 6, 10, 12
ARG_TEXT_IID = 17
"""DebugAnnotation: name_iid, int_value, double_value, string_value, name, array_values,
string_value_iid"""

ABOUT = 1
"""The sequence of what describes tracks; a process's events are the sequence after its number."""
AT_ONCE = 1 << 16
"""Packets made together: bounds the memory."""
INTERNED_AT_ONCE = 256


class ProtoWriter:
    """Writes packets to a file as they come. Each process is a sequence with texts interned for
    itself."""

    def __init__(self, file: BinaryIO, origin_wall_ns: int) -> None:
        self._file = file
        self._interned: dict[tuple[int, int], dict[str, int]] = {}
        """Texts by process and kind of text."""
        self._begun: set[int] = set()
        # So that the viewer can tell the time of day. Its own clock, BOOTTIME, begins at the file's
        # origin.
        clocks = [(BOOTTIME, 0), (REALTIME, max(origin_wall_ns, 0))]
        snapshot = b"".join(
            data(CLOCKS, number(CLOCK_ID, clock) + number(CLOCK_TIME, time))
            for clock, time in clocks
        )
        self._packet(data(CLOCK_SNAPSHOT, snapshot) + number(SEQUENCE, ABOUT))
        self._describe(ROOT, number(PROCESSES, BY_RANK) + number(THREADS, BY_RANK))

    def process(
        self, number_: int, name: str, rank_order: int, devices: Sequence[DeviceProperties] = ()
    ) -> None:
        fields = (
            number(PID, number_)
            + number(PROCESS_ORDER, rank_order)
            + text(PROCESS_NAME, plain(name))
            + b"".join(text(PROCESS_LABEL, plain(device_label(device))) for device in devices)
        )
        self._describe(
            number_, number(CHILDREN, EXPLICIT) + number(ORDER, rank_order) + data(PROCESS, fields)
        )

    def thread(self, number_: int, process: int, name: str, order: int) -> None:
        fields = (
            number(THREAD_PID, process)
            + number(TID, number_)
            + number(THREAD_ORDER, order)
            + text(THREAD_NAME, plain(name))
        )
        self._describe(
            number_, number(PARENT, process) + number(ORDER, order) + data(THREAD, fields)
        )

    def track(self, number_: int, process: int, name: str, order: int) -> None:
        fields = (
            number(PARENT, process)
            + text(TRACK_NAME, plain(name))
            + number(ORDER, order)
            + number(MERGING, MERGE_NONE)
        )
        self._describe(number_, fields)

    def counter(self, number_: int, process: int, name: str, unit: str, order: int) -> None:
        counted = text(UNIT_NAME, unit) if unit else b""
        if unit == "bytes":
            counted = number(UNIT, BYTES_UNIT)
        fields = number(PARENT, process) + text(TRACK_NAME, plain(name)) + number(ORDER, order)
        self._describe(number_, fields + data(COUNTER, counted))

    def slices(self, process: int, slices: Slices) -> None:
        names = self._codes(process, NAMES, slices.names, slices.name)
        categories = self._codes(process, CATEGORIES, slices.categories, slices.category)
        args = [self._arg(process, arg) for arg in slices.args]
        num_arrows = np.bincount(slices.arrows_from[0], minlength=len(slices.track)).astype(
            np.int64
        )
        first_arrow = np.cumsum(num_arrows) - num_arrows
        for at in range(0, len(slices.order), AT_ONCE):
            chunk = slices.order[at : at + AT_ONCE]
            opening, closing = np.flatnonzero(chunk >= 0), np.flatnonzero(chunk < 0)
            parts = []
            if len(closing):
                event = ~chunk[closing]
                inner: list[Piece] = [number(TYPE, END), *numbers(TRACK, slices.track[event])]
                parts.append((closing, self._rows(process, slices.end_ns[event], inner)))
            mask = slices.arrow_to >= 0
            layout = num_arrows[chunk[opening]] * 2 + mask[chunk[opening]]
            for _, value in args:
                layout = layout * 2 + (value[chunk[opening]] >= 0)
            for alike in np.unique(layout).tolist():
                positions = opening[layout == alike]
                event = chunk[positions]
                inner = [
                    number(TYPE, BEGIN),
                    *numbers(TRACK, slices.track[event]),
                    *numbers(NAME_IID, names[event]),
                ]
                inner += numbers(CATEGORY_IIDS, categories[event])
                for begin, value in args:
                    if value[event[0]] >= 0:
                        inner += begin(value[event])
                for k in range(int(num_arrows[event[0]])):
                    inner += fixed(ARROWS, slices.arrows_from[1][first_arrow[event] + k])
                if mask[event[0]]:
                    inner += fixed(LAST_ARROWS, slices.arrow_to[event])
                parts.append((positions, self._rows(process, slices.start_ns[event], inner)))
            self._file.write(interleaved(parts, len(chunk)))

    def points(self, process: int, number_: int, time_ns: Int64, value: Float64) -> None:
        for at in range(0, len(time_ns), AT_ONCE):
            inner: list[Piece] = [
                number(TYPE, POINT),
                number(TRACK, number_),
                *reals(VALUE, value[at : at + AT_ONCE]),
            ]
            self._file.write(self._rows(process, time_ns[at : at + AT_ONCE], inner).tobytes())

    def slice(
        self,
        process: int,
        track: int,
        name: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, Value | list[str]],
    ) -> None:
        annotations = b"".join(
            data(ANNOTATIONS, text(ARG_NAME, plain(key)) + _value(value))
            for key, value in args.items()
        )
        begin = (
            number(TYPE, BEGIN) + number(TRACK, track) + text(EVENT_NAME, plain(name)) + annotations
        )
        self._packet(
            number(TIMESTAMP, start_ns) + self._sequence(process) + data(TRACK_EVENT, begin)
        )
        end = number(TYPE, END) + number(TRACK, track)
        self._packet(number(TIMESTAMP, end_ns) + self._sequence(process) + data(TRACK_EVENT, end))

    def finish(self) -> None:
        """Nothing: a stream of packets has no end."""

    def _packet(self, body: bytes) -> None:
        self._file.write(data(PACKET, body))

    def _rows(
        self, process: int, time_ns: Int64, event: Sequence[Piece]
    ) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        body = [*numbers(TIMESTAMP, time_ns), self._sequence(process), *inside(TRACK_EVENT, event)]
        return rows_of(inside(PACKET, body), len(time_ns))

    def _sequence(self, process: int) -> bytes:
        if process not in self._begun:
            self._begun.add(process)
            self._packet(number(SEQUENCE, ABOUT + process) + number(FLAGS, CLEARED))
        return number(SEQUENCE, ABOUT + process) + number(FLAGS, NEEDS_STATE)

    def _describe(self, uuid: int, fields: bytes) -> None:
        self._packet(number(SEQUENCE, ABOUT) + data(DESCRIPTOR, number(UUID, uuid) + fields))

    def _codes(self, process: int, kind: int, table: Sequence[str], code: Int64) -> Int64:
        """Number under which the text of each code is interned; what is below 0 stays so."""
        used = np.unique(code[code >= 0])
        iids = np.full(len(table) + 1, NONE, np.int64)
        iids[used] = self._intern(process, kind, [table[index] for index in used.tolist()])
        return iids[np.where(code >= 0, code, len(table))]

    def _intern(self, process: int, kind: int, texts: Sequence[str]) -> list[int]:
        iids = self._interned.setdefault((process, kind), {})
        fresh: list[bytes] = []
        interned = []
        for string in map(plain, texts):
            if string not in iids:
                iids[string] = len(iids) + 1
                fresh.append(data(kind, number(IID, iids[string]) + text(INTERNED_TEXT, string)))
            interned.append(iids[string])
        for at in range(0, len(fresh), INTERNED_AT_ONCE):
            self._packet(
                self._sequence(process)
                + data(INTERNED, b"".join(fresh[at : at + INTERNED_AT_ONCE]))
            )
        return interned

    def _arg(self, process: int, arg: Arg) -> tuple[_Annotate, Int64]:
        """How to write it, and the value per slice."""
        name = number(ARG_NAME_IID, self._intern(process, ARG_NAMES, [arg.name])[0])
        field, value = ARG_INT, arg.value
        if arg.texts is not None:
            field, value = ARG_TEXT_IID, self._codes(process, ARG_TEXTS, arg.texts, arg.value)
        return _Annotate(name, field), value


class _Annotate:
    """An annotation's layout."""

    def __init__(self, name: bytes, field: int) -> None:
        self._name, self._field = name, field

    def __call__(self, value: Int64) -> list[Piece]:
        return inside(ANNOTATIONS, [self._name, *numbers(self._field, value)])


def _value(value: Value | list[str]) -> bytes:
    if isinstance(value, list):
        return b"".join(data(ARG_ARRAY, text(ARG_TEXT, plain(item))) for item in value)
    if isinstance(value, str):
        return text(ARG_TEXT, plain(value))
    return number(ARG_INT, value) if isinstance(value, int) else real(ARG_DOUBLE, value)
