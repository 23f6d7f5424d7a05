"""Reads the JSON of rocprof v1 (`rocprof --hip-trace`, over roctracer): a Chrome trace without
categories.

    { "traceEvents":[{}
    ,{"args":{"name":"GPU0"},"ph":"M","pid":6,"name":"process_name","sort_index":3}
    ,{"ph":"X","name":"k","pid":6,"tid":1,"ts":"12","dur":"4",
      "args":{"BeginNs":"1012345","EndNs":"1016345", ...}}

What an event is follows from the name of its process. Times are taken from BeginNs and EndNs: `ts`
and `dur` are whole microseconds. Arrows from a call to its work are flows, told by process, thread
and microsecond; several in one microsecond, by their order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from stepscope.api import FormatError, Kind, Reader, Source, Stream, Trace
from stepscope.core.numbers import true_notes
from stepscope.core.trace import NONE
from stepscope.protocol.untrusted import whole, whole_text
from stepscope.readers.format import Progress
from stepscope.recordings.rocm.json_walk import Path, Walk, decoded, walked
from stepscope.recordings.rocm.rocprofv3_json import WANTED
from stepscope.recordings.row_builder import RowTraceBuilder, copy_name

EVENTS = ("traceEvents",)
LABEL = re.compile(
    rb'"name"\s*:\s*"(?:CPU HIP API|CPU HSA API|Markers and '
    rb'Ranges|COPY|GPU\d{1,4})"\s*\}\s*,\s*"ph"\s*:\s*"M"'
)
GPU = re.compile(r"GPU(\d{1,4})")
COPY = re.compile(r"Copy(Host|Device)To(Host|Device)|hcMemcpy|MemoryCopy|Memcpy", re.IGNORECASE)
FILL = re.compile(r"FillBuffer|Memset", re.IGNORECASE)
HOST = {"CPU HIP API": Kind.RUNTIME, "CPU HSA API": Kind.RUNTIME, "Markers and Ranges": Kind.MARK}

Number = int | str | float | None


class Args(Struct, gc=False, frozen=True):
    begin: Number = msgspec.field(default=None, name="BeginNs")
    end: Number = msgspec.field(default=None, name="EndNs")
    pid: Number = None
    tid: Number = None
    stream: Number = msgspec.field(default=None, name="stream-id")
    queue: Number = msgspec.field(default=None, name="queue-id")
    name: Any = None


class Event(Struct, gc=False, frozen=True):
    ph: str = ""
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Number = None
    id: Number = None
    args: Args = Args()


_DECODER = msgspec.json.Decoder(list[Event])


def is_mine(head: bytes, _name: str) -> bool:
    """Looked for in what begins like a Chrome trace: the names of rocprof's processes."""
    return b'"traceEvents"' in head and LABEL.search(head) is not None


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one file."""
    stream = Stream(source.path, source.offset, source.length)
    parser = _FileParser(stream=stream, progress=progress)
    walk = Walk(
        blocks=stream.blocks(),
        lists=frozenset((EVENTS,)),
        values=frozenset(),
        try_decode=parser.take,
    )
    walked(source, stream, walk, "rocprof", WANTED)
    if not parser.labels:
        raise FormatError(f"{source.label} has none of rocprof's processes in it. {WANTED}")
    return parser.finished(source, walk)


Spot = tuple[int | None, int | None, int | None]
"""A process, a thread and a microsecond."""


@dataclass(slots=True)
class _FileParser:
    stream: Stream
    progress: Progress | None
    builder: RowTraceBuilder = field(default_factory=RowTraceBuilder)
    labels: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    flows: dict[Spot, int] = field(default_factory=dict)
    crowded: dict[Spot, list[int]] = field(default_factory=dict)
    """Spots with several flows."""
    in_order: dict[Spot, dict[int, int]] = field(default_factory=dict)
    """The flows of those spots, by when their events begin."""

    def take(self, _: Path, text: bytes) -> bool:
        events = decoded(_DECODER.decode, text)
        if not isinstance(events, list):
            return False
        for event in events:
            if event.ph == "X":
                self.events.append(event)
            elif (
                event.ph == "M"
                and event.name == "process_name"
                and (pid := _whole(event.pid)) is not None
            ):
                self.labels[pid] = str(event.args.name)
            elif event.ph in ("s", "t") and (flow := _whole(event.id)) is not None:
                spot = _spot(event)
                if (other := self.flows.get(spot, flow)) != flow:
                    self.crowded.setdefault(spot, [other]).append(flow)
                self.flows[spot] = flow
        if self.progress is not None:
            self.progress(self.stream.compressed_bytes)
        return True

    def finished(self, source: Source, walk: Walk) -> Trace:
        builder = self.builder
        self._put_in_order()
        for event in self.events:
            self._add(event)
        self.events.clear()
        builder.notes += true_notes(
            (walk.truncated, "the file ends before its end; the complete events were kept"),
            (sum(walk.num_malformed.values()), "{n} event(s) were damaged and left out"),
            (not len(builder), "the file has no events"),
            *builder.missing_kinds(),
        )
        return builder.trace(source, self.stream.text_bytes, self.stream.problem)

    def _put_in_order(self) -> None:
        """Calls are numbered as they come, and a queue runs its kernels in their order."""
        begins: dict[Spot, list[int]] = {}
        for event in self.events if self.crowded else ():
            if (spot := _spot(event)) in self.crowded:
                begins.setdefault(spot, []).append(_whole(event.args.begin) or 0)
        for spot, times in begins.items():
            if len(times) == len(flows := self.crowded[spot]):
                self.in_order[spot] = dict(zip(sorted(times), sorted(flows), strict=True))

    def _flow(self, event: Event) -> int | None:
        """The arrow at an event."""
        spot = _spot(event)
        in_order = self.in_order.get(spot)
        if in_order is None:
            return self.flows.get(spot)
        return in_order.get(_whole(event.args.begin) or 0)

    def _add(self, event: Event) -> None:
        pid, tid = _whole(event.pid), _whole(event.tid)
        label = self.labels.get(NONE if pid is None else pid, "")
        kind, device = _kind(label, event.name)
        if kind is None:
            self.builder.scanner.tally.raw_events += 1
            self.builder.scanner.tally.count_unknown(label[:64] or "(no process)")
            return
        args, on_device = event.args, kind in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
        queue = _whole(args.stream) if _whole(args.stream) is not None else _whole(args.queue)
        thread = NONE if tid is None else tid
        flow = self._flow(event)
        name = copy_name(_spelled(event.name)) if kind == Kind.MEMCPY else event.name
        self.builder.add(
            kind,
            name,
            _whole(args.begin) or 0,
            _whole(args.end) or 0,
            pid=device if on_device else _whole(args.pid) or 0,
            tid=(thread if queue is None else queue) if on_device else _whole(args.tid) or thread,
            device=device,
            stream=(thread if queue is None else queue) if on_device else NONE,
            correlation=NONE if flow is None or kind == Kind.MARK else flow,
        )


def _spot(event: Event) -> Spot:
    return _whole(event.pid), _whole(event.tid), _whole(event.ts)


def _kind(label: str, name: str) -> tuple[Kind | None, int]:
    """What an event of this process is, and on which device."""
    if label in HOST:
        return HOST[label], NONE
    if label == "COPY":
        return Kind.MEMCPY, NONE
    gpu = GPU.fullmatch(label)
    if gpu is None:
        return None, NONE
    return (
        Kind.MEMCPY if COPY.match(name) else Kind.MEMSET if FILL.match(name) else Kind.KERNEL
    ), int(gpu[1])


def _spelled(name: str) -> str:
    """CopyHostToDevice as MEMORY_COPY_HOST_TO_DEVICE."""
    match = COPY.match(name)
    return f"{match[1]}_TO_{match[2]}".upper() if match and match[1] else name


def _whole(value: Number) -> int | None:
    """A whole number of 0 or more, also where it is written as text."""
    return whole_text(value, 0) if isinstance(value, str) else whole(value, 0)


READER = Reader(is_mine=is_mine, read_trace=read)
