"""Reads the tables of rocprofv3 (`--output-format csv`) and of rocprof v1 and v2, by the columns
they have.

rocprofv3 writes one table for kernels, one for calls, one for copies, one for ROCTx ranges:
`<pid>_kernel_trace.csv`, `<pid>_hip_api_trace.csv`, ... The table of kernels brings its neighbours
of the same process along, so that one recording is one Trace. rocprof v1 writes `results.csv`:
kernels alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.api import FormatError, InputError, Kind, Reader, Source, Stream, Trace
from stepscope.core.numbers import true_notes
from stepscope.core.trace import NONE, DeviceProperties
from stepscope.readers.format import Progress
from stepscope.recordings.rocm.table import DAMAGED, Table, cell, header_of, last_number, whole
from stepscope.recordings.row_builder import RowTraceBuilder, copy_name

WANTED = "Record with: rocprofv3 --sys-trace --output-format csv -- python train.py"
START, END = ("start_timestamp", "beginns"), ("end_timestamp", "stop_timestamp", "endns")
KERNEL_NAME = ("kernel_name", "kernelname")
KERNELS, CALLS, COPIES = "kernels", "calls", "copies"
KERNEL_FILE = "kernel_trace.csv"
COUNTER_FILE = "counter_collection.csv"
NEIGHBOURS = re.compile(
    r"(hip_api|hip_runtime|hsa_api|rccl_api|memory_copy|marker_api)_trace\.csv\Z"
)
V3_TABLE = re.compile(r"((?:hip|hsa|rccl|marker)_\w{0,32}trace|memory_copy_trace)\.csv\Z")
AGENTS_FILE = "agent_info.csv"
COUNTER = re.compile(r"(?:sq|sqc|tcc|tcp|grbm)_[a-z]")
MAX_TABLES = 16
PROGRESS_ROWS = 100_000


def is_mine(head: bytes, _name: str) -> bool:
    return _kind_of(header_of(head)) is not None


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of a table, and of its neighbours where it is rocprofv3's table of kernels."""
    parser = _FileParser(builder=RowTraceBuilder())
    path = None
    if isinstance(source.path, Path) and source.archive is None and not source.offset:
        path = source.path
    if path is not None and (main := _main_table(path)) is not None:
        raise InputError(
            f"{source.label} is part of one recording with {main.name}, and is read with it: name "
            "that one alone."
        )
    if path is not None:
        _refuse_counted(path, source.label)
    others = _neighbours(path) if path is not None else []
    if path is not None:
        parser.read_agents(path)
    stream = Stream(source.path, source.offset, source.length)
    kind = parser.read_table(stream, progress)
    stream.refuse_empty(source.label, WANTED)
    if kind is None:
        raise FormatError(
            f"{source.label} is no table of rocprof: it has no columns of names and times. {WANTED}"
        )
    size = stream.text_bytes
    for other in others:
        neighbour = Stream(other)
        try:
            parser.read_table(neighbour, None)
        except InputError as problem:
            parser.builder.notes.append(str(problem))
        size += neighbour.text_bytes
        parser.builder.notes += (
            [f"{other.name} was read only in part: {neighbour.problem}"]
            if neighbour.problem
            else []
        )
    parser.builder.notes += (
        [f"read together with {', '.join(other.name for other in others)}"] if others else []
    )
    parser.builder.notes += _lacks(parser.builder)
    return parser.builder.trace(source, size, stream.problem)


def _kind_of(header: Sequence[str]) -> str | None:
    """What the rows of a table with these columns are."""
    columns = set(header)
    if not columns.intersection(START) or not columns.intersection(END):
        return None
    if columns.intersection(KERNEL_NAME):
        # Nsight's tables have neither of these; every one of rocprof's has one.
        # One with counters is no timeline: its launches ran one by one (compute.py reads it).
        is_counted = "counter_name" in columns or any(map(COUNTER.match, columns))
        is_trace = columns & {"dispatch_id", "gpu_id", "agent_id", "operation"} and not is_counted
        return KERNELS if is_trace else None
    if {"direction", "kind"} <= columns:
        return COPIES
    return CALLS if {"domain", "function"} <= columns else None


def _refuse_counted(path: Path, label: str) -> None:
    """Where counters were collected in the run, kernels ran one by one, and their times are no
    timeline."""
    table = path.with_name(path.name.removesuffix(KERNEL_FILE) + COUNTER_FILE)
    if path.name.endswith(KERNEL_FILE) and table.is_file():
        raise InputError(
            f"{label}: counters were collected in this run ({table.name}), so its kernels ran one "
            f"by one, and their times are no timeline. Give {table.name} for what the kernels do; "
            "record a timeline without --pmc."
        )


def _main_table(path: Path) -> Path | None:
    """The table of kernels that this one belongs to, where it lies beside it."""
    match = V3_TABLE.search(path.name)
    main = path.with_name(path.name[: match.start()] + KERNEL_FILE) if match else None
    return main if main is not None and main.is_file() else None


def companions(path: Path) -> list[Path]:
    """What is read along with a table, so that a cache knows when it is stale."""
    agents = _agents_of(path)
    return [*_neighbours(path), *([] if agents is None else [agents])]


def _agents_of(path: Path) -> Path | None:
    file = path.with_name(path.name.removesuffix(KERNEL_FILE) + AGENTS_FILE)
    return file if path.name.endswith(KERNEL_FILE) and file.is_file() else None


def _neighbours(path: Path) -> list[Path]:
    if not path.name.endswith(KERNEL_FILE):
        return []
    prefix = path.name.removesuffix(KERNEL_FILE)
    try:
        names = sorted(
            entry.name
            for entry in path.parent.iterdir()
            if entry.name.startswith(prefix) and entry.is_file()
        )
    except OSError:
        return []
    chosen = [name for name in names if NEIGHBOURS.fullmatch(name.removeprefix(prefix))]
    return [path.with_name(name) for name in chosen[:MAX_TABLES]]


def _lacks(builder: RowTraceBuilder) -> list[str]:
    return true_notes(
        (not len(builder), "the table has no rows of kernels, copies or calls"),
        (
            len(builder) and not builder.counts[Kind.KERNEL],
            "no kernels are in it: give the table of kernels (kernel_trace.csv) too",
        ),
        *builder.missing_kinds(),
    )


@dataclass(slots=True)
class _FileParser:
    """Tables of one process, put together."""

    builder: RowTraceBuilder
    gpus: dict[int, int] | None = None
    """The devices' places, by the number the tables give them; None where no table of agents tells
    it."""

    def read_table(self, stream: Stream, progress: Progress | None) -> str | None:
        table = Table(stream=stream)
        kind = None
        for count, row in enumerate(table.rows()):
            if not count:
                kind = _kind_of(table.header)
                if kind is None:
                    return None
            if kind == KERNELS:
                self._kernel(table, row)
            elif kind == COPIES:
                self._copy(table, row)
            else:
                self._call(table, row)
            if progress is not None and count % PROGRESS_ROWS == 0:
                progress(stream.compressed_bytes)
        self.builder.notes += true_notes((table.num_damaged, DAMAGED))
        return kind or _kind_of(table.header)

    def read_agents(self, path: Path) -> None:
        """The devices, where `<pid>_agent_info.csv` lies beside the table."""
        file = _agents_of(path)
        if file is None:
            return
        table, self.gpus = Table(stream=Stream(file)), {}
        try:
            for row in table.rows():
                node = whole(row, table.column("node_id"))
                if (
                    node is None
                    or cell(row, table.column("agent_type")).upper() != "GPU"
                    or len(self.gpus) >= 1024
                ):
                    continue
                self.gpus[node] = len(self.gpus)
                self.builder.devices.append(
                    DeviceProperties(
                        index=self.gpus[node],
                        name=cell(row, table.column("product_name"))
                        or cell(row, table.column("name")),
                        memory_bytes=whole(row, table.column("local_mem_size")) or None,
                        num_sms=whole(row, table.column("cu_count")) or None,
                        compute_capability=None,
                        warp_size=whole(row, table.column("wave_front_size")) or None,
                    )
                )
        except InputError as problem:
            self.builder.notes.append(str(problem))

    def _kernel(self, table: Table, row: list[str]) -> None:
        column = table.column
        device = self._device(row, column("agent_id", "gpu_id"))
        stream = whole(row, column("stream_id", "queue_id"))
        self.builder.add(
            Kind.KERNEL,
            cell(row, column(*KERNEL_NAME)).removesuffix(".kd") or "(no name)",
            whole(row, column(*START)) or 0,
            whole(row, column(*END)) or 0,
            pid=device,
            tid=NONE if stream is None else stream,
            device=device,
            stream=NONE if stream is None else stream,
            correlation=whole(row, column("correlation_id")) or NONE,
            detail=self._launch(table, row),
        )

    def _launch(self, table: Table, row: list[str]) -> int:
        column = table.column
        group = [whole(row, column(f"workgroup_size_{axis}")) for axis in "xyz"]
        items = [whole(row, column(f"grid_size_{axis}")) for axis in "xyz"]
        if None in group or None in items:
            group = [whole(row, column("workgroup_size", "wgr")), 1, 1]
            items = [whole(row, column("grid_size", "grd")), 1, 1]
        if not group[0] or items[0] is None:
            return NONE
        vector = whole(row, column("vgpr_count", "arch_vgpr", "vgpr"))
        matrix = whole(row, column("accum_vgpr_count", "accum_vgpr"))
        shared = whole(
            row, column("lds_block_size", "group_segment_size", "lds_per_workgroup", "lds")
        )
        sizes = [(number or 0) for number in (*items, *group)]
        registers = None if vector is None else vector + (matrix or 0)
        return self.builder.launch(
            (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5]), registers, shared
        )

    def _copy(self, table: Table, row: list[str]) -> None:
        column = table.column
        to, of = (
            self._device(row, column(name)) for name in ("destination_agent_id", "source_agent_id")
        )
        name = copy_name(cell(row, column("direction")))
        device = of if to == NONE or (self.gpus is None and name.endswith("DtoH")) else to
        stream = whole(row, column("stream_id"))
        self.builder.add(
            Kind.MEMCPY,
            name,
            whole(row, column(*START)) or 0,
            whole(row, column(*END)) or 0,
            pid=device,
            tid=NONE if stream is None else stream,
            device=device,
            stream=NONE if stream is None else stream,
            correlation=whole(row, column("correlation_id")) or NONE,
        )

    def _call(self, table: Table, row: list[str]) -> None:
        column = table.column
        is_mark = cell(row, column("domain")).upper().startswith(("MARKER", "ROCTX"))
        self.builder.add(
            Kind.MARK if is_mark else Kind.RUNTIME,
            cell(row, column("function")) or "(no name)",
            whole(row, column(*START)) or 0,
            whole(row, column(*END)) or 0,
            pid=whole(row, column("process_id")) or 0,
            tid=whole(row, column("thread_id")) or 0,
            correlation=NONE if is_mark else whole(row, column("correlation_id")) or NONE,
        )

    def _device(self, row: list[str], index: int | None) -> int:
        number = last_number(row, index)
        if number is None or self.gpus is None:
            return NONE if number is None else number
        return self.gpus.get(number, NONE)


READER = Reader(is_mine=is_mine, read_trace=read, companions=companions)
