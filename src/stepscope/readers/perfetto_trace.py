"""Reads Perfetto's own form (.pftrace): track events of rocprofv3, of `stepscope export perfetto`, and of others.

A slice is a begin and an end on one track. What it is follows from its category: rocprofv3 writes kernel_dispatch, memory_copy,
hip_api, hsa_api, rccl_api and marker_api; our own export writes the categories of torch.profiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.trace import DEVICE_WORK, NONE, Kind, Trace
from stepscope.errors import FormatError, InputError
from stepscope.readers.categories import kind_of_category
from stepscope.readers.kineto import Progress
from stepscope.readers.perfetto_state import ARG_NAMES, ARG_TEXTS, CATEGORIES, NAMES, Clocks, Sequence, texts
from stepscope.readers.perfetto_wire_in import Packets, Value, WireError, fields, signed, varint
from stepscope.readers.rocprof_draft import NO_HOST, NO_MARKS, Draft, copy_name
from stepscope.readers.source import Source
from stepscope.readers.stream import Stream

WANTED = "Record with: rocprofv3 --sys-trace --output-format pftrace -- python train.py"
CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, EVENT, INTERNED, FLAGS, CLOCK_ID, DEFAULTS, DESCRIPTOR = 6, 8, 10, 11, 12, 13, 58, 59, 60
"""TracePacket: clock_snapshot, timestamp, trusted_packet_sequence_id, track_event, interned_data, sequence_flags,
timestamp_clock_id, trace_packet_defaults, track_descriptor"""
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""TrackEvent.Type"""
PACKET_FIELDS = frozenset((*range(1, 130), 2000, 3001, 3002))
KINDS = {
    "kernel_dispatch": Kind.KERNEL,
    "memory_copy": Kind.MEMCPY,
    "hip_api": Kind.RUNTIME,
    "hsa_api": Kind.RUNTIME,
    "rccl_api": Kind.RUNTIME,
    "marker_api": Kind.MARK,
    "gpu_sync": Kind.SYNC,
    "compile": Kind.COMPILE,
}
OURS = "stepscope"
"""The category of tracks that an export of ours draws: nobody recorded them."""
AGENT_TRACK = re.compile(r"AGENT \[(\d{1,6})\] (?:QUEUE|THREAD|STREAM) \[(\d{1,6})\]|STREAM \[(\d{1,6})\]")
"""How rocprofv3 names a device's tracks: `COMPUTE AGENT [4] QUEUE [0] (GPU)`, `COPY to AGENT [4] THREAD [1] (GPU)`."""
MAX_TRACKS = 1 << 20
MAX_DEPTH = 1024
"""Slices open on one track."""
MAX_BAD_PACKETS = 10_000
PROGRESS_PACKETS = 1 << 14


def is_mine(head: bytes, name: str) -> bool:
    """Packets one after the other, the first few of them whole and with fields that a packet has."""
    try:
        return _num_packets(head) >= (1 if name.lower().endswith((".pftrace", ".perfetto-trace", ".pftrace.gz")) else 3)
    except WireError:
        return False


def _num_packets(head: bytes) -> int:
    at, count = 0, 0
    while at < len(head) and count < 8:
        if head[at] != 0x0A:
            raise WireError("no packet")
        size, body = varint(head, at + 1)
        if body + size > len(head):
            break
        numbers = [number for number, _ in fields(head[body : body + size])]
        if not numbers or not PACKET_FIELDS.issuperset(numbers):
            raise WireError("no packet")
        at, count = body + size, count + 1
    return count


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one file."""
    stream = Stream(source.path, source.offset, source.length)
    packets, reading = Packets(blocks=stream.blocks()), _Reading()
    problem = None
    try:
        for count, packet in enumerate(packets):
            reading.take(packet)
            if reading.num_bad > MAX_BAD_PACKETS:
                raise WireError(f"more than {MAX_BAD_PACKETS} packets cannot be read")
            if progress is not None and count % PROGRESS_PACKETS == 0:
                progress(stream.compressed_bytes)
    except WireError as error:
        problem = f"after {reading.num_packets} packets: {error}"
    if not stream.text_bytes:
        raise InputError(f"{source.label} has nothing to read: {stream.problem or 'it is empty'}. {WANTED}")
    if not reading.num_packets:
        raise FormatError(f"{source.label} is not a Perfetto trace ({problem or 'no packet is whole'}). {WANTED}")
    reading.tell(packets)
    return reading.draft.trace(source, stream.text_bytes, problem or stream.problem)


@dataclass(slots=True)
class _Track:
    name: str = ""
    parent: int = 0
    pid: int | None = None
    tid: int | None = None
    process: str = ""
    is_counter: bool = False
    open: list[tuple[int, str, str, dict[str, int | str]]] = field(default_factory=list)
    num_deep: int = 0


@dataclass(slots=True)
class _Reading:
    draft: Draft = field(default_factory=lambda: Draft(least_ns=0))
    clocks: Clocks = field(default_factory=Clocks)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    tracks: dict[int, _Track] = field(default_factory=dict)
    num_packets: int = 0
    num_bad: int = 0
    num_unopened: int = 0
    num_ours: int = 0
    device_pids: set[int | str] = field(default_factory=set)

    def take(self, packet: bytes) -> None:
        try:
            parts = dict(fields(packet))
            self.num_packets += 1
            self._packet(parts)
        except WireError:
            self.num_bad += 1  # It counts as a packet where its own fields can be read.

    def _packet(self, parts: dict[int, Value]) -> None:
        number = _int(parts.get(SEQUENCE)) or 0
        sequence = self.sequences.get(number)
        if sequence is None:
            if len(self.sequences) > MAX_TRACKS:
                raise WireError("too many writers")
            sequence = self.sequences[number] = Sequence()
        if (_int(parts.get(FLAGS)) or 0) & 1:
            sequence.clear()
        if isinstance(part := parts.get(DEFAULTS), bytes):
            sequence.take_defaults(part)
        if isinstance(part := parts.get(INTERNED), bytes):
            sequence.intern(part)
        if isinstance(part := parts.get(DESCRIPTOR), bytes):
            self._describe(part)
        if isinstance(part := parts.get(CLOCK_SNAPSHOT), bytes):
            self.clocks.snapshot(part, sequence)
        if isinstance(part := parts.get(EVENT), bytes):
            time = self.clocks.time_ns(_int(parts.get(TIMESTAMP)) or 0, _int(parts.get(CLOCK_ID)), sequence)
            self._event(part, time, sequence)

    def _describe(self, message: bytes) -> None:
        """TrackDescriptor: uuid 1, name 2 or static_name 10, process 3, thread 4, parent_uuid 5, counter 8."""
        parts = dict(fields(message))
        track = self._track(_int(parts.get(1)) or 0)
        track.name = _text(parts.get(2)) or _text(parts.get(10)) or track.name
        track.parent = _int(parts.get(5)) or track.parent
        track.is_counter = track.is_counter or 8 in parts
        if isinstance(process := parts.get(3), bytes):
            told = dict(fields(process))
            track.pid, track.process = _int(told.get(1)), _text(told.get(6))
        if isinstance(thread := parts.get(4), bytes):
            told = dict(fields(thread))
            track.pid, track.tid, track.name = _int(told.get(1)), _int(told.get(2)), _text(told.get(5)) or track.name

    def _track(self, uuid: int) -> _Track:
        track = self.tracks.get(uuid)
        if track is None:
            if len(self.tracks) >= MAX_TRACKS:
                raise WireError("too many tracks")
            track = self.tracks[uuid] = _Track()
        return track

    def _event(self, message: bytes, time_ns: int, sequence: Sequence) -> None:
        """TrackEvent: type 9, track_uuid 11, name 23 or name_iid 10, categories 22 or category_iids 3, debug_annotations 4."""
        kind, uuid, name, category = 0, sequence.default_track, "", ""
        annotations: list[bytes] = []
        for number, value in fields(message):
            if number == 4 and isinstance(value, bytes):
                annotations.append(value)
            elif number == 9 and isinstance(value, int):
                kind = value
            elif number == 11 and isinstance(value, int):
                uuid = value
            elif number == 10 and isinstance(value, int):
                name = sequence.interned[NAMES].get(value, name)
            elif number == 23:
                name = _text(value)
            elif number == 3:
                category = next(iter(texts(sequence, CATEGORIES, value)), category)
            elif number == 22:
                category = category or _text(value)
        track = self._track(uuid)
        if kind == BEGIN:
            if len(track.open) >= MAX_DEPTH:
                track.num_deep += 1
            else:
                track.open.append((time_ns, name, category, _annotations(annotations, sequence)))
        elif kind == END:
            self._close(track, uuid, time_ns)
        else:
            self.draft.scanner.tally.raw_events += 1
            if kind not in (INSTANT, COUNTER):
                self.draft.scanner.tally.count_unknown(f"track event of type {kind}"[:48])

    def _close(self, track: _Track, uuid: int, time_ns: int) -> None:
        if track.num_deep:
            track.num_deep -= 1
            return
        if not track.open:
            self.num_unopened += 1
            return
        start_ns, name, category, told = track.open.pop()
        if category == OURS or self._process(track).process == OURS:
            self.num_ours += 1
            return
        kind = KINDS.get(category) or kind_of_category(category)
        if kind == Kind.OTHER:
            self.draft.scanner.tally.count_unknown(category[:64] or "(no category)")
        if kind == Kind.MEMCPY and category == "memory_copy":
            name = copy_name(name)
        pid, tid = self._place(track, uuid, told)
        on_device = kind in (*DEVICE_WORK, Kind.SYNC, Kind.DEVICE_MARK)
        found = AGENT_TRACK.search(track.name[:256]) if on_device else None
        device = _first(told, "agent", "dst_agent") if found or "agent" in told else NONE
        stream = _first(told, "stream", "stream_ID", "queue")
        if on_device:
            self.device_pids.add(pid)
            stream = stream if stream != NONE else uuid & 0x7FFF_FFFF
            pid, tid = (device if device != NONE else pid), track.name or stream
        self.draft.add(
            kind,
            name,
            start_ns,
            time_ns,
            pid=pid,
            tid=tid,
            device=device,
            stream=stream if on_device else NONE,
            correlation=_first(told, "corr_id", "correlation"),
            size_bytes=_first(told, "copy_bytes", "bytes"),
            detail=self._launch(told) if kind == Kind.KERNEL else NONE,
        )

    def _launch(self, told: dict[str, int | str]) -> int:
        group, items = _first(told, "workgroup_size"), _first(told, "grid_size")
        if group <= 0 or items < 0:
            return NONE
        shared = _first(told, "group_segment_size", "LDS_block_size_v")
        return self.draft.launch((items, 1, 1), (group, 1, 1), None, None if shared < 0 else shared)

    def _place(self, track: _Track, uuid: int, told: dict[str, int | str]) -> tuple[int | str, int | str]:
        process = self._process(track)
        pid = process.pid if process.pid is not None else track.pid or 0
        tid: int | str = track.tid if track.tid is not None else _first(told, "tid")
        if tid == NONE:
            tid = track.name or uuid & 0x7FFF_FFFF
        if track.name:
            self.draft.scanner.thread_names[str(pid), str(tid)] = track.name[:256]
        return pid, tid

    def _process(self, track: _Track) -> _Track:
        """The process that a track belongs to, as far up as its parents tell."""
        for _ in range(16):
            if (track.pid is not None and track.tid is None) or not track.parent or track.parent not in self.tracks:
                break
            track = self.tracks[track.parent]
        return track

    def tell(self, packets: Packets) -> None:
        still_open = sum(len(track.open) for track in self.tracks.values())
        draft = self.draft
        told = [
            (packets.truncated, "the file ends inside a packet (a killed job?); the whole ones were kept"),
            (self.num_bad + packets.num_damaged, f"{self.num_bad + packets.num_damaged} damaged packet(s) were left out"),
            (packets.num_oversized, f"{packets.num_oversized} compressed packet(s) were cut at 16 MiB"),
            (still_open, f"{still_open} slice(s) never end and were left out"),
            (self.num_unopened, f"{self.num_unopened} end(s) of slices that never begin were left out"),
            (
                self.clocks.num_unknown,
                f"{self.clocks.num_unknown} time(s) of clocks that nothing ties together were kept as they are",
            ),
            (self.num_ours, "the tracks that stepscope itself had drawn were left out"),
            (len(self.device_pids) > 1, f"{len(self.device_pids)} processes have device work in it: read as one"),
            (not len(draft), "the file has no slices"),
            (draft.counts[Kind.KERNEL] and not draft.counts[Kind.RUNTIME], NO_HOST),
            (draft.counts[Kind.KERNEL] and not draft.counts[Kind.MARK], NO_MARKS),
        ]
        draft.notes += [text for condition, text in told if condition]


def _annotations(messages: list[bytes], sequence: Sequence) -> dict[str, int | str]:
    """DebugAnnotation: name_iid 1 or name 10; bool 2, uint 3, int 4, string 6 or string_value_iid 17."""
    told: dict[str, int | str] = {}
    for message in messages[:64]:
        key = ""
        value: int | str | None = None
        for number, part in fields(message):
            if number == 1:
                key = next(iter(texts(sequence, ARG_NAMES, part)), key)
            elif number == 10:
                key = _text(part)
            elif number in (2, 3) and isinstance(part, int):
                value = part
            elif number == 4 and isinstance(part, int):
                value = signed(part)
            elif number == 6:
                value = _text(part)
            elif number == 17:
                value = next(iter(texts(sequence, ARG_TEXTS, part)), None)
        if key and value is not None:
            told[key] = value
    return told


def _first(told: dict[str, int | str], *keys: str) -> int:
    """The first of these that is a whole number of 0 or more; NONE where there is none."""
    for key in keys:
        value = told.get(key)
        if isinstance(value, int) and value >= 0:
            return value
    return NONE


def _int(value: Value | None) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Value | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
