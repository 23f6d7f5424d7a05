"""Reads Perfetto's own form (.pftrace): track events of rocprofv3, of `stepscope export perfetto`,
and of others.

A slice is a begin and an end on one track. What it is follows from its category: rocprofv3 writes
kernel_dispatch, memory_copy, hip_api, hsa_api, rccl_api and marker_api; our own export writes the
categories of torch.profiler.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import lru_cache

from stepscope.api import FormatError, Kind, Reader, Source, Stream, Trace
from stepscope.core.device_label import device_of_label
from stepscope.core.numbers import first_few, true_notes
from stepscope.core.trace import DEVICE_WORK, ENDS_EARLY, ENDS_INSIDE, NONE
from stepscope.readers.format import Progress
from stepscope.readers.trace.categories import kind_of_category
from stepscope.recordings.perfetto.args import DETAIL, slice_of
from stepscope.recordings.perfetto.columns import (
    CLOCK_SNAPSHOT,
    DEFAULTS,
    DESCRIPTOR,
    INTERNED,
    Events,
    columns_of,
)
from stepscope.recordings.perfetto.processes import (
    MAX_RANKS,
    MIN_SHARE,
    OURS,
    Owners,
    described,
    listed,
    number_of,
    words_of,
)
from stepscope.recordings.perfetto.state import Clocks, Sequence
from stepscope.recordings.perfetto.tracks import Track, TrackOwner
from stepscope.recordings.perfetto.wire import (
    Block,
    Packets,
    Value,
    WireError,
    fields,
    signed,
    varint,
)
from stepscope.recordings.row_builder import RowTraceBuilder, copy_name, several

WANTED = "Record with: rocprofv3 --sys-trace --output-format pftrace -- python train.py"
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""TrackEvent.Type"""
PACKET_FIELDS = frozenset((*range(1, 130), 2000, 3001, 3002))
KINDS = {
    "kernel_dispatch": Kind.KERNEL, "memory_copy": Kind.MEMCPY, "hip_api": Kind.RUNTIME,
    "hsa_api": Kind.RUNTIME, "rccl_api": Kind.RUNTIME, "marker_api": Kind.MARK,
    "gpu_sync": Kind.SYNC, "compile": Kind.COMPILE,
}  # fmt: skip
AGENT_TRACK = re.compile(
    r"AGENT \[(\d{1,6})\] (?:QUEUE|THREAD|STREAM) \[(\d{1,6})\]|STREAM \[(\d{1,6})\]"
)
"""How rocprofv3 names a device's tracks: `COMPUTE AGENT [4] QUEUE [0] (GPU)`, `COPY to AGENT [4]
THREAD [1] (GPU)`."""
MAX_TRACKS = 1 << 20
MAX_DEPTH = 1024
"""Slices open on one track."""
MAX_BAD_PACKETS = 10_000
"""What is looked up of the numbers noted down with an event."""


def is_mine(head: bytes, name: str) -> bool:
    """Packets one after the other, the first few of them whole and with fields that a packet
    has."""
    try:
        return _num_packets(head) >= (
            1 if name.lower().endswith((".pftrace", ".perfetto-trace", ".pftrace.gz")) else 3
        )
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


def parts(source: Source) -> tuple[list[tuple[int, str]], list[str]]:
    """The ranks that share the file, each with words for it, and notes; none where it is of one
    rank."""
    if len(described(source)) < 2:
        return [], []
    parser = _TraceParser()
    with (
        suppress(WireError),
        closing(Stream(source.path, source.offset, source.length).blocks()) as blocks,
    ):
        for block in Packets(blocks=blocks):
            parser.take(block)
            if parser.num_bad > MAX_BAD_PACKETS:
                break
    parser.finish()
    work = parser.builder.work()
    least_ns = MIN_SHARE * max((ns for ns, _ in work.values()), default=0.0)
    ranks = [owner for owner, (ns, has_kernels) in work.items() if has_kernels and ns >= least_ns]
    if len(ranks) < 2:
        return [], []
    many = len(ranks)
    ranks = sorted(
        sorted(ranks, key=lambda owner: -work[owner][0])[:MAX_RANKS],
        key=lambda owner: (number_of(owner), owner),
    )
    words = words_of(ranks, parser.owners)
    notes = [
        (f"{len(ranks)} processes ran kernels, and each is read as one rank ({first_few(words)})")
    ]
    if many > MAX_RANKS:
        notes.append(f"{many} processes ran kernels: the {MAX_RANKS} busiest are read")
    elif others := [owner for owner in work if owner not in ranks]:
        little = f"no kernels, or less than {MIN_SHARE:.0%} of the busiest one's device time"
        notes.append(f"process {listed(others)} had {little}: taken for no rank")
    return list(zip(ranks, words, strict=True)), notes


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one process: of the source's part, else of the one with the most device work. A
    file whose begins and ends do not come by time is read once more, and sorted."""
    packets, parser, stream, problem = _parsed(source, progress, _TraceParser(part=source.part))
    if parser.num_back:
        anew = _TraceParser(part=source.part, is_sorted=False)
        packets, parser, stream, problem = _parsed(source, progress, anew)
    stream.refuse_empty(source.label, WANTED)
    if not parser.num_packets:
        raise FormatError(
            f"{source.label} is not a Perfetto trace ({problem or 'no packet is whole'}). {WANTED}"
        )
    parser.finish()
    parser.add_notes(packets)
    return parser.builder.trace(source, stream.text_bytes, problem or stream.problem)


def _parsed(
    source: Source, progress: Progress | None, parser: _TraceParser
) -> tuple[Packets, _TraceParser, Stream, str | None]:
    """The file, taken by the parser, and what was wrong with it."""
    stream = Stream(source.path, source.offset, source.length)
    packets, problem = Packets(blocks=stream.blocks()), None
    try:
        for block in packets:
            parser.take(block)
            if parser.num_bad > MAX_BAD_PACKETS:
                raise WireError(f"more than {MAX_BAD_PACKETS} packets cannot be read")
            if progress is not None:
                progress(stream.compressed_bytes)
    except WireError as error:
        problem = f"after {parser.num_packets} packets: {error}"
    return packets, parser, stream, problem


@dataclass(slots=True)
class _TraceParser:
    builder: RowTraceBuilder = field(default_factory=lambda: RowTraceBuilder(least_ns=0))
    clocks: Clocks = field(default_factory=Clocks)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    tracks: dict[int, Track] = field(default_factory=dict)
    num_packets: int = 0
    num_bad: int = 0
    num_unopened: int = 0
    num_ours: int = 0
    num_too_deep: int = 0
    num_unowned: int = 0
    part: int | None = None
    """The process that is read alone, as `owners` numbers them; None where all are."""
    owners: Owners = field(default_factory=Owners)
    version: int = 0
    """Version of what the descriptors say so far."""
    is_sorted: bool = True
    """Whether begins and ends are taken to come by time; else they wait for `finish`."""
    num_back: int = 0
    """Slices that end before they begin, as they come."""

    def take(self, block: Block) -> None:
        """All packets of a block, in their order."""
        columns = columns_of(block)
        for at, (is_bad, number, flags, has_state, event, time, clock) in enumerate(columns.rows()):
            if is_bad:
                self.num_bad += 1
                continue
            self.num_packets += 1  # Also where what it holds turns out to be damaged.
            try:
                sequence = self.sequences.get(number) or self._sequence(number)
                if flags & 1:
                    sequence.clear()
                if has_state:
                    self._state(block.text[block.starts[at] : block.ends[at]], sequence)
                if event != NONE:
                    self._event(
                        columns.events, event, self.clocks.time_ns(time, clock, sequence), sequence
                    )
            except WireError:
                self.num_bad += 1

    def _sequence(self, number: int) -> Sequence:
        if len(self.sequences) > MAX_TRACKS:
            raise WireError("too many writers")
        sequence = self.sequences[number] = Sequence()
        return sequence

    def _state(self, packet: bytes, sequence: Sequence) -> None:
        """What later packets are read by."""
        parts = dict(fields(packet))
        if isinstance(part := parts.get(DEFAULTS), bytes):
            sequence.take_defaults(part)
        if isinstance(part := parts.get(INTERNED), bytes):
            sequence.intern(part)
        if isinstance(part := parts.get(DESCRIPTOR), bytes):
            self._describe(part)
        if isinstance(part := parts.get(CLOCK_SNAPSHOT), bytes):
            self.clocks.snapshot(part, sequence)

    def _describe(self, message: bytes) -> None:
        """TrackDescriptor: uuid 1, name 2 or static_name 10, process 3, thread 4, parent_uuid 5."""
        parts = dict(fields(message))
        track = self._track(signed(_int(parts.get(1)) or 0))
        track.name = _text(parts.get(2)) or _text(parts.get(10)) or track.name
        track.parent = signed(_int(parts.get(5)) or 0) or track.parent
        if isinstance(process := parts.get(3), bytes):
            descriptor = dict(fields(process))
            track.pid, track.process = _int(descriptor.get(1)), _text(descriptor.get(6))
            labels = (_text(value) for number, value in fields(process) if number == 8)
            track.devices = tuple(
                device for label in labels if (device := device_of_label(label)) is not None
            )
        if isinstance(thread := parts.get(4), bytes):
            descriptor = dict(fields(thread))
            track.pid, track.tid, track.name = (
                _int(descriptor.get(1)),
                _int(descriptor.get(2)),
                _text(descriptor.get(5)) or track.name,
            )
        self.version += 1

    def _track(self, uuid: int) -> Track:
        track = self.tracks.get(uuid)
        if track is None:
            if len(self.tracks) >= MAX_TRACKS:
                raise WireError("too many tracks")
            track = self.tracks[uuid] = Track(uuid=uuid)
        return track

    def _event(self, events: Events, at: int, time_ns: int, sequence: Sequence) -> None:
        uuid = events.track[at] if events.track[at] != NONE else sequence.default_track
        track = self.tracks.get(uuid) or self._track(uuid)
        kind = events.kind[at]
        if events.is_bad[at]:
            raise WireError("an event that cannot be read")
        if not self.is_sorted and kind in (BEGIN, END):
            begins = (
                slice_of(events, at, time_ns, sequence, self.builder) if kind == BEGIN else None
            )
            track.waiting.append((time_ns, begins))
        elif kind == END:
            self._close(track, uuid, time_ns)
        elif kind != BEGIN:
            self.builder.scanner.tally.raw_events += 1
            if kind not in (INSTANT, COUNTER):
                self.builder.scanner.tally.count_unknown(f"track event of type {kind}"[:48])
        elif len(track.open) >= MAX_DEPTH:
            track.num_deep += 1
            self.num_too_deep += 1
        else:
            track.open.append(slice_of(events, at, time_ns, sequence, self.builder))

    def finish(self) -> None:
        """What waited for its order is taken in it."""
        for uuid, track in self.tracks.items():
            for time_ns, begins in track.by_time():
                if begins is None:
                    self._close(track, uuid, time_ns)
                else:
                    track.open.append(begins)

    def _close(self, track: Track, uuid: int, time_ns: int) -> None:
        if track.num_deep:
            track.num_deep -= 1
            return
        if not track.open:
            self.num_unopened += 1
            return
        start_ns, name, category, args = track.open.pop()
        self.num_back += time_ns < start_ns
        resolved = (
            track.resolved
            if track.resolved is not None and track.resolved.version == self.version
            else self._resolve(track)
        )
        if category == OURS or resolved.is_ours:
            self.num_ours += 1
            return
        kind, on_device = _kind(category)
        if self.part is not None and resolved.owner != self.part:
            self.num_unowned += on_device and resolved.owner == NONE
            return
        if kind == Kind.OTHER:
            self.builder.scanner.tally.count_unknown(category[:64] or "(no category)")
        if kind == Kind.MEMCPY and category == "memory_copy":
            name = copy_name(name)
        device, stream, owner = NONE, NONE, resolved.owner
        pid = resolved.pid
        tid = (
            resolved.tid
            if resolved.tid is not None
            else self._thread_of(track, resolved.pid, uuid, args)
        )
        if on_device:
            if resolved.is_agent or "agent" in args:
                # A copy to the host is the work of the device it comes from; the host's memory is
                # an agent too.
                agents = (
                    ("agent", "src_agent", "dst_agent")
                    if name.endswith("DtoH")
                    else ("agent", "dst_agent", "src_agent")
                )
                device = _first(args, *agents)
            elif "device" in args:
                # PyTorch's own writer has a device for a process: the work is the host's.
                device, owner = args["device"], NONE
            stream = _first(args, "stream", "stream_ID", "queue")
            stream = stream if stream != NONE else uuid & 0x7FFF_FFFF
            pid, tid = (device if device != NONE else pid), track.name or stream
        self.builder.add(
            kind,
            name,
            start_ns,
            time_ns,
            pid=pid,
            tid=tid,
            device=device,
            stream=stream,
            # rocprofv3 counts from 1: 0 is none.
            correlation=args.get("corr_id") or args.get("correlation", NONE),
            size_bytes=_first(args, "copy_bytes", "bytes"),
            detail=args.get(DETAIL, self._launch(args) if kind == Kind.KERNEL else NONE),
            owner=owner,
        )

    def _launch(self, args: dict[str, int]) -> int:
        group, items = _first(args, "workgroup_size"), _first(args, "grid_size")
        if group <= 0 or items < 0:
            return NONE
        shared = _first(args, "group_segment_size", "LDS_block_size_v")
        return self.builder.launch(
            (items, 1, 1), (group, 1, 1), None, None if shared < 0 else shared
        )

    def _resolve(self, track: Track) -> TrackOwner:
        process = self._process(track)
        pid = process.pid if process.pid is not None else track.pid or 0
        is_agent = AGENT_TRACK.search(track.name[:256]) is not None
        owner = self.owners.of(pid, process.uuid if process.tid is None else 0, process.process)
        track.resolved = TrackOwner(
            pid, track.tid, owner, process.process == OURS, is_agent, self.version
        )
        if track.name and track.tid is not None:
            self.builder.scanner.thread_names[str(pid), str(track.tid)] = track.name[:256]
        return track.resolved

    def _thread_of(self, track: Track, pid: int, uuid: int, args: dict[str, int]) -> int | str:
        """What stands for a thread where the track is of none."""
        tid: int | str = args.get("tid", NONE)
        if tid == NONE:
            tid = track.name or uuid & 0x7FFF_FFFF
        if track.name:
            self.builder.scanner.thread_names[str(pid), str(tid)] = track.name[:256]
        return tid

    def _process(self, track: Track) -> Track:
        """The process that a track belongs to, as far up as its parents tell."""
        for _ in range(16):
            if (
                (track.pid is not None and track.tid is None)
                or not track.parent
                or track.parent not in self.tracks
            ):
                break
            track = self.tracks[track.parent]
        return track

    def add_notes(self, packets: Packets) -> None:
        still_open = sum(len(track.open) for track in self.tracks.values())
        builder = self.builder
        busiest, others = builder.keep_busiest()
        builder.wall_ns = self.clocks.wall_ns()
        read = busiest if self.part is None else self.part
        builder.devices = [
            device
            for track in self.tracks.values()
            if track.devices and read in (NONE, self._resolve(track).owner)
            for device in track.devices
        ]
        builder.notes += true_notes(
            (
                packets.truncated,
                f"{ENDS_INSIDE} (a killed job?); the whole ones were kept",
            ),
            (self.num_bad + packets.num_damaged, "{n} damaged packet(s) were left out"),
            (packets.num_oversized, "{n} compressed packet(s) were cut at 16 MiB"),
            (
                still_open,
                f"{ENDS_EARLY}: {{n}} slice(s) never end and were left out",
            ),
            (self.num_too_deep, f"{{n}} slice(s) inside {MAX_DEPTH} others were left out"),
            (self.num_unopened, "{n} end(s) of slices that never begin were left out"),
            (
                self.clocks.num_unknown,
                "{n} time(s) of clocks that nothing ties together were kept as they are",
            ),
            (self.num_ours, "the tracks that stepscope itself had drawn were left out"),
            (
                others,
                several(
                    number_of(busiest),
                    [number_of(other) for other in others],
                    "which had less work or no kernels",
                ),
            ),
            (self.num_unowned, "{n} piece(s) of device work that tell no process were left out"),
            (not len(builder), "the file has no slices"),
            *builder.missing_kinds(),
        )


@lru_cache(maxsize=256)
def _kind(category: str) -> tuple[Kind, bool]:
    """What slices of a category are, and whether they stand on a device."""
    kind = KINDS[category] if category in KINDS else kind_of_category(category)
    return kind, kind in (*DEVICE_WORK, Kind.SYNC, Kind.DEVICE_MARK)


def _first(args: dict[str, int], *keys: str) -> int:
    """The first of these that was noted down; NONE where there is none."""
    for key in keys:
        if key in args:
            return args[key]
    return NONE


def _int(value: Value | None) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Value | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


READER = Reader(is_mine=is_mine, read_trace=read, parts=parts)
