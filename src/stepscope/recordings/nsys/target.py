"""What an export of Nsight Systems says beside its events: processes, devices, threads, versions,
its own warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from stepscope.core.trace import NONE, DeviceProperties
from stepscope.recordings.nsys.database import Database
from stepscope.recordings.nsys.events import (
    DEVICE_TABLES,
    GRAPHS,
    KERNELS,
    THREAD_MASK,
    ProcessTraceBuilder,
)
from stepscope.recordings.nsys.nvtx import RANGES

MAX_PROCESSES = 64
"""Processes that are distinguished. A machine has some eight devices, and as many ranks."""
MIN_SHARE = 0.01
"""Share of the busiest process' device time that a rank has at least: ranks of one job work alike,
and a helper hardly at all."""
MAX_DEVICES = 1024
MAX_WARNINGS = 4
WARNING_LENGTH = 200
WARNING = re.compile(r"warn|error|fatal", re.IGNORECASE)


@dataclass(slots=True)
class Processes:
    """The processes of a file with work on a device; where no device worked, those with ranges."""

    work: dict[int, float] = field(default_factory=dict)
    """Work by global identifier, most first: nanoseconds of device work, or the number of
    ranges."""
    with_kernels: set[int] = field(default_factory=set)
    is_unowned: bool = False
    """Devices worked, and no process is told: everything is read as one."""

    def ranks(self) -> list[int]:
        """Processes that are ranks of a job, in the order of their numbers."""
        least = MIN_SHARE * max(self.work.values(), default=0.0)
        able = [
            process
            for process, ns in self.work.items()
            if process in self.with_kernels and ns >= least
        ]
        return sorted(able, key=lambda process: (process_number(process), process))


def find_processes(database: Database) -> Processes:
    processes = Processes()
    for table in DEVICE_TABLES:
        if not database.has(table, "globalPid", "start", "end"):
            continue
        for process, ns in _totals(database, table, '"globalPid"', '"end" - "start"').items():
            if process is None:
                processes.is_unowned = True
                continue
            processes.work[process] = processes.work.get(process, 0.0) + max(ns, 0.0)
            if table in (KERNELS, GRAPHS):
                processes.with_kernels.add(process)
    processes.is_unowned = processes.is_unowned and not processes.work
    if not processes.work and not processes.is_unowned and database.has(RANGES, "globalTid"):
        counts = _totals(database, RANGES, f'("globalTid" & {~THREAD_MASK})', "1")
        processes.work.update(
            (process, count) for process, count in counts.items() if process is not None
        )
    processes.work = dict(sorted(processes.work.items(), key=lambda pair: -pair[1]))
    return processes


def _totals(database: Database, table: str, owner: str, what: str) -> dict[int | None, float]:
    """The sum of `what` over each owner's rows. Two passes that keep nothing but the owners:
    grouping would sort all rows."""
    owners: list[int | None] = []
    with closing(database.query(f'SELECT DISTINCT {owner} FROM "{table}"')) as blocks:  # noqa: S608
        owners += [row[0] for row in next(blocks, []) if row[0] is None or isinstance(row[0], int)]
    named = [process for process in owners if process is not None]
    if len(named) > MAX_PROCESSES:
        database.notes.append(
            f"more than {MAX_PROCESSES} processes are in {table}: the first {MAX_PROCESSES} were "
            "looked at"
        )
        named = named[:MAX_PROCESSES]
    totals: dict[int | None, float] = {None: 0.0} if None in owners else {}
    if named:
        sums = ", ".join([f"total(CASE WHEN {owner} = ? THEN {what} END)"] * len(named))
        for rows in database.query(f'SELECT {sums} FROM "{table}"', named):  # noqa: S608
            totals.update(zip(named, rows[0], strict=True))
    return totals


def process_number(process: int) -> int:
    """The number by which the operating system knew a process."""
    return (process >> 24) & THREAD_MASK


def take_thread_names(builder: ProcessTraceBuilder) -> None:
    rows = builder.database.ints(
        "ThreadNames", ("nameId", "globalTid"), *builder.of_process("ThreadNames")
    )
    names = builder.database.strings(rows["nameId"])
    for number, thread in zip(rows["nameId"].tolist(), rows["globalTid"].tolist(), strict=True):
        if number in names and thread != NONE:
            tid = thread & THREAD_MASK
            builder.scanner.thread_names[str(process_number(thread)), str(tid)] = (
                f"thread {tid} ({names[number]})"
            )


def devices_of(database: Database, process: int) -> tuple[DeviceProperties, ...]:
    """The devices, by the number that the process' kernels have for them."""
    columns = (
        "id", "totalMemory", "smCount", "computeMajor", "computeMinor", "threadsPerWarp",
        "cuDevice",
    )  # fmt: skip
    table = "TARGET_INFO_GPU"
    if not database.has(table, "id", "name"):
        return ()
    names: list[str] = []
    for rows in database.rows(table, 'substr("name", 1, 256)'):
        names += [name if isinstance(name, str) else "" for (name,) in rows]
    cells = database.ints(table, columns)
    seen = cuda_numbers(database, process)
    devices = []
    for index, name in enumerate(names[:MAX_DEVICES]):
        row = {column: int(cells[column][index]) for column in columns}
        major, minor = row["computeMajor"], row["computeMinor"]
        own = row["cuDevice"] if row["cuDevice"] >= 0 else row["id"]
        devices.append(
            DeviceProperties(
                index=max(seen.get(row["id"], own), 0),
                name=name,
                memory_bytes=row["totalMemory"] if row["totalMemory"] > 0 else None,
                num_sms=row["smCount"] if row["smCount"] > 0 else None,
                compute_capability=(major, minor) if major > 0 and minor >= 0 else None,
                warp_size=row["threadsPerWarp"] if row["threadsPerWarp"] > 0 else None,
            )
        )
    chosen = [
        device
        for device, gpu in zip(devices, cells["id"].tolist(), strict=False)
        if not seen or gpu in seen
    ]
    return tuple(chosen or devices)


def cuda_numbers(database: Database, process: int) -> dict[int, int]:
    """Number that this process has for each device, by the machine's number of it."""
    table = "TARGET_INFO_CUDA_DEVICE"
    if not database.has(table, "gpuId", "cudaId", "pid"):
        return {}
    rows = database.ints(table, ("gpuId", "cudaId", "pid"))
    mine = rows["pid"] == process_number(process) if process != NONE else rows["pid"] >= 0
    return dict(zip(rows["gpuId"][mine].tolist(), rows["cudaId"][mine].tolist(), strict=True))


def base_ns_of(database: Database) -> int:
    """When the recording began, by the wall clock; 0 when that is not told."""
    times = database.ints("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
    return int(times[0]) if len(times) and 0 < times[0] < 2**62 else 0


def versions_of(database: Database) -> Mapping[str, str]:
    """What was used to record and to export."""
    wanted = {"EXPORT_PRODUCT_VERSION": "nsys", "EXPORT_SCHEMA_VERSION": "nsys_schema"}
    versions = {}
    if database.has("META_DATA_EXPORT", "name", "value"):
        for rows in database.rows(
            "META_DATA_EXPORT", 'substr("name", 1, 64), substr("value", 1, 64)'
        ):
            versions.update(
                {
                    wanted[name]: str(value)
                    for name, value in rows
                    if name in wanted and value is not None
                }
            )
    return versions


def warnings_of(database: Database) -> list[str]:
    """What Nsight itself warned of, such as events that it lost."""
    levels = "ENUM_DIAGNOSTIC_SEVERITY_LEVEL"
    if not database.has("DIAGNOSTIC_EVENT", "severity", "text") or not database.has(
        levels, "id", "label"
    ):
        return []
    bad = set()
    for rows in database.rows(levels, '"id", substr("label", 1, 32)'):
        bad |= {level for level, label in rows if isinstance(label, str) and WARNING.search(label)}
    texts: list[str] = []
    for rows in database.rows(
        "DIAGNOSTIC_EVENT", f'"severity", substr("text", 1, {WARNING_LENGTH})'
    ):
        texts += [
            " ".join(text.split()) for level, text in rows if level in bad and isinstance(text, str)
        ]
    unique = list(dict.fromkeys(texts))
    more = []
    if len(unique) > MAX_WARNINGS:
        more = [f"{len(unique) - MAX_WARNINGS} more warnings of nsys are in the report"]
    return [f"nsys warned: {text}" for text in unique[:MAX_WARNINGS]] + more
