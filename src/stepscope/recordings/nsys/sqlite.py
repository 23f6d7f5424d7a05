"""Nsight Systems' SQLite export (`nsys export --type sqlite`), schemas 2.x and 3.x: each process of
it as one Trace.

Which tables and columns there are decides, not the version: Nsight creates a table when it has
something to put in it, and has added columns ever since. The ranks of one machine may share a file
(one `nsys profile torchrun ...`): `parts` tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.api import FormatError, InputError, Kind, Reader, Source, Trace, TraceMeta
from stepscope.core.numbers import first_few, true_notes
from stepscope.core.trace import NONE
from stepscope.readers.format import Progress
from stepscope.readers.trace.assemble import assemble
from stepscope.recordings.nsys.database import AGAIN, MAGIC, Database, opened
from stepscope.recordings.nsys.events import (
    CALLS,
    DEVICE_TABLES,
    KERNELS,
    OS_CALLS,
    ProcessTraceBuilder,
    take_calls,
    take_device_work,
    take_os_calls,
    take_overheads,
    take_waits,
)
from stepscope.recordings.nsys.metrics import counters_of
from stepscope.recordings.nsys.nvtx import RANGES, Calls, take_ranges
from stepscope.recordings.nsys.target import (
    MIN_SHARE,
    Processes,
    base_ns_of,
    devices_of,
    find_processes,
    process_number,
    take_thread_names,
    versions_of,
    warnings_of,
)

OURS = (
    b"CUPTI_ACTIVITY_KIND", b"NVTX_EVENTS", b"StringIds", b"META_DATA_EXPORT", b"TARGET_INFO_",
    b"ENUM_NSYS",
)  # fmt: skip
LEAF_PAGE = 13
"""The first page's kind, at byte 100: a small database's whole list of tables stands on it."""
NAMED = re.compile(
    r"\.sqlite(?:\.(?:gz|zst|zstd))?$|\.(?:tar|tgz)(?:\.(?:gz|zst|zstd))?$", re.IGNORECASE
)
"""Name that Nsight gives; or an archive, of whose members the names are not told."""
READ = (*DEVICE_TABLES, CALLS, RANGES, OS_CALLS)
RECORD = (
    "nsys profile -t cuda,nvtx,osrt --cuda-graph-trace=node -o run python train.py; nsys export "
    "--type sqlite run.nsys-rep"
)


def is_mine(head: bytes, name: str) -> bool:
    """An SQLite file with Nsight's tables; where its first pages do not list them, one that is
    named as Nsight names it."""
    if not head.startswith(MAGIC) or b"rocpd_" in head:
        return False
    if any(word in head for word in OURS):
        return True
    lists_all = len(head) > 100 and head[100] == LEAF_PAGE
    return not lists_all and NAMED.search(name) is not None


def parts(source: Source) -> tuple[list[tuple[int, str]], list[str]]:
    """The ranks that share the file, each with words for it, and notes; none where it is of one
    rank."""
    with opened(source) as database:
        processes = find_processes(database)
        ranks = processes.ranks()
        if len(ranks) < 2:
            return [], []
        numbers = [process_number(process) for process in ranks]
        words = [f"process {number}" for number in numbers]
        if len(set(numbers)) < len(numbers):
            words = [
                f"{word} of machine {process >> 48}"
                for word, process in zip(words, ranks, strict=True)
            ]
        others = [process_number(process) for process in processes.work if process not in ranks]
        little = f"no kernels, or less than {MIN_SHARE:.0%} of the busiest one's device time"
        small = f"{_listed(others)} had {little}: taken for no rank"
        each = (
            f"each is read as one rank, in the order of their numbers ({first_few(numbers)}): nsys "
            "does not record a process' RANK"
        )
        notes = [
            f"{len(ranks)} processes ran kernels, and {each}",
            *([small] if others else []),
            *database.notes,
        ]
        return list(zip(ranks, words, strict=True)), notes


def _listed(numbers: Sequence[int]) -> str:
    return f"process{'es' if len(numbers) > 1 else ''} {first_few(numbers)}"


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one process: of the source's part, else of the one with the most device work."""
    with opened(source) as database:
        _refuse_others(database)
        processes = find_processes(database)
        builder = ProcessTraceBuilder(
            database=database,
            process=_chosen(database, processes, source.part),
            is_unowned=processes.is_unowned,
        )
        for take in (take_device_work, take_calls, take_waits, take_overheads, take_os_calls):
            take(builder)
        calls = take_ranges(builder)
        take_thread_names(builder)
        if progress is not None:
            progress(database.size_bytes)
        low, high = _span(builder)
        others = []
        if source.part is None:
            others = [
                process_number(process) for process in processes.work if process != builder.process
            ]
        counters = counters_of(builder, low, high)
        notes = [
            *database.notes,
            *_notes(builder, others, calls),
            *counters,
            *warnings_of(database),
        ]
        return assemble(builder.chunks, builder.scanner, _meta(source, builder), notes)


def _refuse_others(database: Database) -> None:
    stand_ins = [name for name in database.refused if name in READ or name == "StringIds"]
    if stand_ins:
        raise FormatError(
            f"{database.label} has views in place of tables ({', '.join(stand_ins[:4])}): a view "
            f"runs code of the file's, and nsys writes none. {AGAIN}"
        )
    if not any(database.has(table, "start") for table in READ):
        named = ", ".join(sorted(database.tables)[:4]) or "none"
        raise FormatError(
            f"{database.label} is an SQLite database without events of Nsight Systems (its "
            f"tables: {named[:200]}). Record: {RECORD}"
        )


def _chosen(database: Database, processes: Processes, part: int | None) -> int:
    if part is None:
        return next(iter(processes.work), NONE)
    if part not in processes.work:
        there = "none"
        if processes.work:
            there = _listed([process_number(process) for process in processes.work])
        raise InputError(
            f"{database.label}: no such process with work on a device (it has: {there}). {AGAIN}"
        )
    return part


def _span(builder: ProcessTraceBuilder) -> tuple[int, int]:
    """When the device had work."""
    work = [
        c
        for c in builder.chunks
        if len(c.kind) and c.kind[0] in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    ]
    if not work:
        return 0, 0
    return min(int(c.start_ns.min()) for c in work), max(
        int((c.start_ns + c.dur_ns).max()) for c in work
    )


def _meta(source: Source, builder: ProcessTraceBuilder) -> TraceMeta:
    database = builder.database
    return TraceMeta(
        path=source.label,
        rank=source.rank,
        rank_source=source.rank_source,
        devices=devices_of(database, builder.process),
        base_ns=base_ns_of(database),
        has_shapes=any(
            bool((chunk.detail[chunk.kind == Kind.OP] >= 0).any()) for chunk in builder.chunks
        ),
        versions=versions_of(database),
        size_bytes=database.size_bytes,
    )


def _notes(builder: ProcessTraceBuilder, others: Sequence[int], calls: Calls) -> list[str]:
    database, tally = builder.database, builder.scanner.tally
    kinds = {int(chunk.kind[0]) for chunk in builder.chunks if len(chunk.kind)}
    has_ops = any(bool((chunk.kind == Kind.OP).any()) for chunk in builder.chunks)
    group, (size, rank) = max(calls.sizes.items(), key=lambda item: item[1], default=(0, (0, 0)))
    waited = ", ".join(f"{name} {ns / 1e6:.1f} ms" for name, ns in builder.os_ns.items())
    unowned = ", ".join(f"{count} of {table}" for table, count in builder.unowned.items())
    return true_notes(
        (
            others,
            (
                f"process {process_number(builder.process)} was read, and not {_listed(others)}, "
                "which had less work or no kernels"
            ),
        ),
        (
            builder.process == NONE and builder.is_unowned,
            "the device work tells no process: whatever is in the file is read as one",
        ),
        (not kinds, "the file has no events of any kind that is read"),
        (
            builder.num_graphs,
            (
                "{n} CUDA graph(s) were recorded as one block each: what runs inside is not known "
                "(nsys profile --cuda-graph-trace=node)"
            ),
        ),
        (
            Kind.KERNEL in kinds and not has_ops,
            (
                "operators are not in the file: nsys profile --pytorch=autograd-shapes-nvtx, or "
                "torch.autograd.profiler.emit_nvtx()"
            ),
        ),
        (
            calls.num_sized,
            "{n} of NCCL's calls tell bytes and no type: their type is given as bytes",
        ),
        # A communicator of part of the job looks the same, so that neither becomes the rank or the
        # job's size.
        (
            calls.sizes,
            (
                f"the largest communicator that NCCL made, {group:#x}, has {size} ranks; this "
                f"process is number {rank} in it"
            ),
        ),
        (
            calls.num_across,
            (
                "{n} NVTX range(s) end on another thread than they began on: no launch is counted "
                "to them"
            ),
        ),
        (waited, f"calls into the operating system on the thread that launches: {waited}"),
        (unowned, f"rows that tell no process were left out: {unowned}"),
        (
            builder.num_unnamed,
            (
                "{n} name(s) are not in the file's StringIds: what they name is not recognised. "
                f"{AGAIN}"
            ),
        ),
        (tally.no_time, "{n} event(s) without a readable time were left out"),
        (tally.negative_duration, "{n} event(s) with a negative duration count as 0"),
        (not database.has(KERNELS, "start"), "no kernels were recorded: nsys profile -t cuda"),
        (database.refused, f"{len(database.refused)} view(s) in the file were not looked at"),
    )


READER = Reader(is_mine=is_mine, read_trace=read, parts=parts)
