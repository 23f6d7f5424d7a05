"""Reads the JSON of rocprofv3 (`--output-format json`), however large.

    {"rocprofiler-sdk-tool": [{"metadata": {}, "agents": [], "strings": {}, "kernel_symbols": [],
                               "buffer_records": {"kernel_dispatch": [], "hip_api": [], ...}}]}

Kernels have a number for a name, calls the numbers of their kind and operation: the tables that
name them stand before the records, as rocprofv3 writes them. A launch and its kernel carry one
correlation number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stepscope.api import FormatError, Kind, Reader, Source, Stream, Trace
from stepscope.core.numbers import true_notes
from stepscope.core.trace import NONE, DeviceProperties
from stepscope.readers.format import Progress
from stepscope.recordings.rocm.json_walk import Path, Walk, decoded, walked
from stepscope.recordings.rocm.records import (
    Agent,
    Copy,
    Dispatch,
    Info,
    Message,
    Names,
    Process,
    Record,
    Symbol,
)
from stepscope.recordings.row_builder import NO_HOST, NO_MARKS, RowTraceBuilder, copy_name, several

START = re.compile(rb'[\s\xef\xbb\xbf]*\{\s*"rocprofiler-sdk-tool"\s*:')
TOOL = "rocprofiler-sdk-tool"
RECORDS = (TOOL, "buffer_records")
DISPATCHES = (*RECORDS, "kernel_dispatch")
COPIES = (*RECORDS, "memory_copy")
MARKS = (*RECORDS, "marker_api")
COUNTED = (TOOL, "callback_records", "counter_collection")
CALLS = {(*RECORDS, name): name for name in ("hip_api", "hsa_api", "rccl_api")}
UNUSED = {
    (*RECORDS, name): name
    for name in ("memory_allocation", "scratch_memory", "rocdecode_api", "rocjpeg_api")
}
AGENTS = (TOOL, "agents")
SYMBOLS = (TOOL, "kernel_symbols")
STRINGS = (TOOL, "strings", "buffer_records")
MESSAGES = (TOOL, "strings", "marker_api")
PROCESS = (TOOL, "metadata")
TYPES: dict[Path, Any] = {
    DISPATCHES: list[Dispatch],
    COPIES: list[Copy],
    MARKS: list[Record],
    **dict.fromkeys(CALLS, list[Record]),
    **dict.fromkeys(UNUSED, list[Record]),
    COUNTED: list[Record],
    SYMBOLS: list[Symbol],
    MESSAGES: list[Message],
    AGENTS: list[Agent],
    STRINGS: list[Names],
    PROCESS: Process,
}
LISTS = frozenset(path for path in TYPES if path not in (STRINGS, AGENTS, PROCESS))
GPU = 2
"""ROCPROFILER_AGENT_TYPE_GPU."""
ROCTX_CALL = re.compile(r"roctxRangePop|roctxRangeStop|roctxGetThreadId|roctxProfiler|roctxName")
"""Calls that name no range."""
WANTED = "Record with: rocprofv3 --sys-trace --output-format json -- python train.py"


def is_mine(head: bytes, _name: str) -> bool:
    return START.match(head) is not None


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one file."""
    stream = Stream(source.path, source.offset, source.length)
    parser = _FileParser(stream=stream, progress=progress)
    walk = Walk(
        blocks=stream.blocks(),
        lists=LISTS,
        values=frozenset((STRINGS, AGENTS, PROCESS)),
        try_decode=parser.take,
    )
    walked(source, stream, walk, "rocprofv3", WANTED)
    if not parser.seen:
        raise FormatError(f"{source.label} has no records of rocprofv3 in it. {WANTED}")
    if parser.num_counted:
        raise FormatError(
            f"{source.label} has counters of {parser.num_counted} launches, so its kernels ran one "
            "by one, and their times are no timeline. Give the counters as a table (rocprofv3 "
            "--pmc ... --output-format csv), and record a timeline without --pmc."
        )
    return parser.finished(source, walk)


@dataclass(slots=True)
class _FileParser:
    """What one pass over the file fills."""

    stream: Stream
    progress: Progress | None
    builder: RowTraceBuilder = field(default_factory=RowTraceBuilder)
    seen: set[Path] = field(default_factory=set)
    devices: dict[int, int] = field(default_factory=dict)
    symbols: dict[int, Symbol] = field(default_factory=dict)
    strings: tuple[Names, ...] = ()
    messages: dict[int, str] = field(default_factory=dict)
    pid: int = 0
    num_counted: int = 0
    """Launches that counters were collected of."""
    pids: list[int] = field(default_factory=list)
    """Numbers of the processes so far: a file may hold several, one after the other."""

    @property
    def owner(self) -> int:
        return len(self.pids)

    def take(self, path: Path, text: bytes) -> bool:
        decoded_value = decoded(_DECODERS[path].decode, text)
        if decoded_value is None:
            return False
        self.seen.add(path)
        _TAKERS[path](self, path, decoded_value)
        if self.progress is not None:
            self.progress(self.stream.compressed_bytes)
        return True

    def take_process(self, _: Path, process: Process) -> None:
        """The next process: its numbers mean different things than the last one's."""
        self.pids.append(process.pid)
        self.pid, self.symbols, self.strings, self.messages = process.pid, {}, (), {}

    def take_agents(self, _: Path, agents: list[Agent]) -> None:
        self.devices = {}
        for agent in (agent for agent in agents if agent.type == GPU):
            index = (
                agent.logical_node_type_id if agent.logical_node_type_id >= 0 else len(self.devices)
            )
            self.devices[agent.id.handle] = index
            if all(device.index != index for device in self.builder.devices):
                self.builder.devices.append(_properties(agent, index))

    def take_symbols(self, _: Path, symbols: list[Symbol]) -> None:
        self.symbols.update((symbol.kernel_id, symbol) for symbol in symbols)

    def take_strings(self, _: Path, names: list[Names]) -> None:
        self.strings = tuple(names)

    def take_messages(self, _: Path, messages: list[Message]) -> None:
        self.messages.update((message.key, message.value) for message in messages)

    def take_counted(self, _: Path, launches: list[Record]) -> None:
        self.num_counted += len(launches)

    def take_dispatches(self, _: Path, dispatches: list[Dispatch]) -> None:
        for record in dispatches:
            info = record.dispatch_info
            symbol = self.symbols.get(info.kernel_id)
            device = self.devices.get(info.agent_id.handle, NONE)
            stream = (
                record.stream_id.handle if record.stream_id.handle >= 0 else info.queue_id.handle
            )
            name = symbol.name if symbol is not None else f"kernel {info.kernel_id}"
            detail = self._launch(info, symbol)
            self._on_device(Kind.KERNEL, name, record, device, stream, detail=detail)

    def _launch(self, info: Info, symbol: Symbol | None) -> int:
        if not info.workgroup_size.x:
            return NONE
        registers = None
        if symbol and symbol.arch_vgpr_count >= 0:
            registers = symbol.arch_vgpr_count + max(symbol.accum_vgpr_count, 0)
        shared = info.group_segment_size if info.group_segment_size >= 0 else None
        return self.builder.launch(
            info.grid_size.sizes, info.workgroup_size.sizes, registers, shared
        )

    def take_copies(self, _: Path, copies: list[Copy]) -> None:
        for record in copies:
            to, of = (
                self.devices.get(agent.handle, NONE)
                for agent in (record.dst_agent_id, record.src_agent_id)
            )
            device = to if to != NONE else of
            stream = record.stream_id.handle
            name = copy_name(self._operation(record))
            self._on_device(Kind.MEMCPY, name, record, device, stream, size_bytes=record.bytes)

    def take_calls(self, path: Path, calls: list[Record]) -> None:
        for record in calls:
            name = self._operation(record) or f"{path[-1]} {record.operation}"
            self._on_host(Kind.RUNTIME, name, record, record.correlation_id.internal or NONE)

    def take_marks(self, _: Path, marks: list[Record]) -> None:
        """ROCTx ranges, by the text the program gave; calls that give none are no ranges."""
        for record in marks:
            call = self._operation(record)
            text = self.messages.get(record.correlation_id.internal, "")
            if text or not ROCTX_CALL.match(call):
                self._on_host(Kind.MARK, text or call or "roctx", record, NONE)

    def take_unused(self, path: Path, records: list[Record]) -> None:
        self.builder.scanner.tally.raw_events += len(records)
        self.builder.scanner.tally.count_unknown(path[-1], len(records))

    def _on_device(
        self, kind: Kind, name: str, record: Record, device: int, stream: int, **more: int
    ) -> None:
        self.builder.add(
            kind,
            name,
            record.start_timestamp,
            record.end_timestamp,
            pid=device,
            tid=stream,
            device=device,
            stream=stream,
            correlation=record.correlation_id.internal or NONE,
            owner=self.owner,
            **more,
        )

    def _on_host(self, kind: Kind, name: str, record: Record, correlation: int) -> None:
        times = record.start_timestamp, record.end_timestamp
        self.builder.add(
            kind,
            name,
            *times,
            pid=self.pid,
            tid=record.thread_id,
            correlation=correlation,
            owner=self.owner,
        )

    def _operation(self, record: Record) -> str:
        names = self.strings[record.kind].operations if 0 <= record.kind < len(self.strings) else ()
        return names[record.operation] if 0 <= record.operation < len(names) else ""

    def finished(self, source: Source, walk: Walk) -> Trace:
        builder = self.builder
        owner, others = builder.keep_busiest()
        unnamed = sum(1 for name in builder.scanner.names if re.fullmatch(r"kernel \d+", name))
        builder.notes += true_notes(
            (walk.truncated, "the file ends before its end; the complete records were kept"),
            (
                others,
                several(
                    self._pid(owner),
                    [self._pid(other) for other in others],
                    "record one file per rank",
                ),
            ),
            (sum(walk.num_malformed.values()), "{n} record(s) were damaged and left out"),
            (walk.num_oversized, "{n} record(s) larger than 64 MiB were left out"),
            (unnamed, "{n} kernel(s) have no name in the file"),
            (not len(builder), "the file has no records of kernels, copies or calls"),
            (len(builder) and not builder.counts[Kind.RUNTIME], NO_HOST),
            (len(builder) and not builder.counts[Kind.MARK], NO_MARKS),
        )
        return builder.trace(source, self.stream.text_bytes, self.stream.problem)

    def _pid(self, owner: int) -> int:
        return self.pids[owner - 1] if 0 < owner <= len(self.pids) else NONE


def _properties(agent: Agent, index: int) -> DeviceProperties:
    memory = sum(bank.size_in_bytes for bank in agent.mem_banks)
    return DeviceProperties(
        index=index,
        name=agent.product_name or agent.name,
        memory_bytes=memory or None,
        num_sms=agent.cu_count or None,
        compute_capability=None,
        warp_size=agent.wave_front_size or None,
    )


_DECODERS = {path: msgspec.json.Decoder(type_) for path, type_ in TYPES.items()}
_TAKERS: dict[Path, Callable[[_FileParser, Path, Any], None]] = {
    DISPATCHES: _FileParser.take_dispatches,
    COUNTED: _FileParser.take_counted,
    COPIES: _FileParser.take_copies,
    MARKS: _FileParser.take_marks,
    SYMBOLS: _FileParser.take_symbols,
    MESSAGES: _FileParser.take_messages,
    AGENTS: _FileParser.take_agents,
    STRINGS: _FileParser.take_strings,
    PROCESS: _FileParser.take_process,
    **dict.fromkeys(CALLS, _FileParser.take_calls),
    **dict.fromkeys(UNUSED, _FileParser.take_unused),
}


READER = Reader(is_mine=is_mine, read_trace=read)
