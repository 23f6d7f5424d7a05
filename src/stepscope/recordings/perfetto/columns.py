"""The packets of a block as columns: what each says of its event, without a message built for any
of them.

Field numbers are those of Perfetto's public schema (github.com/google/perfetto,
protos/perfetto/trace).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.core.trace import NONE, Int64
from stepscope.recordings.perfetto.bulk import Fields, UInt8, decode, first_numbers, padded
from stepscope.recordings.perfetto.wire import Block

CLOCK_SNAPSHOT = 6
TIMESTAMP = 8
SEQUENCE = 10
EVENT = 11
INTERNED = 12
FLAGS = 13
CLOCK_ID = 58
DEFAULTS = 59
DESCRIPTOR = 60
"""TracePacket: clock_snapshot, timestamp, trusted_packet_sequence_id, track_event, interned_data,
sequence_flags, timestamp_clock_id, trace_packet_defaults, track_descriptor"""
STATE = (CLOCK_SNAPSHOT, INTERNED, DEFAULTS, DESCRIPTOR)
"""What later packets are read by."""
CATEGORY_IIDS, ANNOTATIONS, TYPE, NAME_IID, TRACK, CATEGORIES, NAME = 3, 4, 9, 10, 11, 22, 23
"""TrackEvent: category_iids, debug_annotations, type, name_iid, track_uuid, categories, name"""
ARG_NAME_IID, ARG_BOOL, ARG_UINT, ARG_INT, ARG_NAME, ARG_TEXT_IID = 1, 2, 3, 4, 10, 17
"""DebugAnnotation: name_iid, bool_value, uint_value, int_value, name, string_value_iid"""


@dataclass(slots=True)
class Args:
    """Numbers that were noted down with events, and texts that were interned."""

    name_iid: list[int]
    name: list[str | None]
    value: list[int]
    """NONE where it is no number of 0 or more."""
    text_iid: list[int]


@dataclass(slots=True)
class Events:
    """One entry for each event of a block."""

    kind: list[int]
    track: list[int]
    """NONE where it is the writer's usual one."""
    name_iid: list[int]
    name: list[str | None]
    category_iid: list[int]
    category: list[str | None]
    first_arg: list[int]
    """First argument of each event, and one entry more: where the last one's end."""
    args: Args
    is_bad: list[bool]


@dataclass(slots=True)
class Columns:
    """One entry for each packet of a block."""

    is_bad: list[bool]
    time: list[int]
    sequence: list[int]
    flags: list[int]
    clock: list[int]
    has_state: list[bool]
    event: list[int]
    """Index among the events; NONE where it has none."""
    events: Events

    def rows(self) -> Iterator[tuple[bool, int, int, bool, int, int, int]]:
        """Packet by packet: is_bad, sequence, flags, has_state, event, time, clock."""
        return zip(
            self.is_bad,
            self.sequence,
            self.flags,
            self.has_state,
            self.event,
            self.time,
            self.clock,
            strict=True,
        )


def columns_of(block: Block) -> Columns:
    data = padded(block.text)
    packets = decode(data, np.array(block.starts, np.int64), np.array(block.ends, np.int64))
    start, end = packets.spans(EVENT)
    with_event = np.flatnonzero(start != NONE)
    event = np.full(packets.num, NONE, np.int64)
    event[with_event] = np.arange(len(with_event))
    has_state = np.zeros(packets.num, np.bool_)
    has_state[packets.owner[np.isin(packets.number, STATE)]] = True
    return Columns(
        is_bad=packets.bad.tolist(),
        time=packets.numbers(TIMESTAMP, default=0),
        sequence=packets.numbers(SEQUENCE, default=0),
        flags=packets.numbers(FLAGS, default=0),
        clock=packets.numbers(CLOCK_ID),
        has_state=has_state.tolist(),
        event=event.tolist(),
        events=_events(data, block.text, start[with_event], end[with_event]),
    )


def _events(data: UInt8, text: bytes, start: Int64, end: Int64) -> Events:
    events = decode(data, start, end)
    noted = np.flatnonzero((events.number == ANNOTATIONS) & (events.size != NONE))
    owner, at = events.owner[noted], events.value[noted]
    args = decode(data, at, at + events.size[noted])
    is_bad = events.bad.copy()
    is_bad[owner[args.bad]] = True
    value = np.array(args.numbers(ARG_BOOL, ARG_UINT, ARG_INT), np.int64)
    return Events(
        kind=events.numbers(TYPE, default=0),
        track=events.numbers(TRACK),
        name_iid=events.numbers(NAME_IID),
        name=_texts(text, events, NAME),
        category_iid=first_numbers(data, events, CATEGORY_IIDS),
        category=_texts(text, events, CATEGORIES),
        first_arg=np.searchsorted(owner, np.arange(events.num + 1)).tolist(),
        args=Args(
            name_iid=args.numbers(ARG_NAME_IID),
            name=_texts(text, args, ARG_NAME),
            value=np.maximum(value, NONE).tolist(),
            text_iid=args.numbers(ARG_TEXT_IID),
        ),
        is_bad=is_bad.tolist(),
    )


def _texts(text: bytes, fields: Fields, number: int) -> list[str | None]:
    """Text of a field in each message; None where it has none. The same bytes are decoded once."""
    start, end = fields.spans(number)
    texts: list[str | None] = [None] * fields.num
    decoded: dict[bytes, str] = {}
    for index in np.flatnonzero(start != NONE).tolist():
        raw = text[start[index] : end[index]]
        if raw not in decoded:
            decoded[raw] = raw.decode("utf-8", "replace")
        texts[index] = decoded[raw]
    return texts
