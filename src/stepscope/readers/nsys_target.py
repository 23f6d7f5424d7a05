"""What an export of Nsight Systems says beside its events: processes, devices, threads, versions, counters, its own warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepscope.core.trace import NONE, DeviceProperties
from stepscope.readers.nsys_database import Database
from stepscope.readers.nsys_events import DEVICE_TABLES, THREAD_MASK, Draft
from stepscope.readers.nsys_nvtx import RANGES

MAX_PROCESSES = 4096
MAX_DEVICES = 1024
MAX_WARNINGS = 4
WARNING_LENGTH = 200
WARNING = re.compile(r"warn|error|fatal", re.IGNORECASE)
COUNTERS = re.compile(r"^(?:GR Active|SMs? Active|SM Issue|Tensor Active|DRAM (?:Read|Write) Bandwidth)\b", re.IGNORECASE)
MAX_COUNTERS = 8


def find_processes(database: Database) -> dict[int, float]:
    """Global identifiers of the processes with work on a device, and its nanoseconds, most first; else of those with ranges."""
    work: dict[int, float] = {}
    for table in DEVICE_TABLES:
        if not database.has(table, "globalPid", "start", "end"):
            continue
        query = f'SELECT "globalPid", total("end" - "start") FROM "{table}" GROUP BY "globalPid"'  # noqa: S608
        for rows in database.query(query):
            for process, ns in rows[:MAX_PROCESSES]:
                if isinstance(process, int):
                    work[process] = work.get(process, 0.0) + max(ns, 0.0)
    if not work and database.has(RANGES, "globalTid"):
        owner = f'"globalTid" & {~THREAD_MASK}'
        query = f'SELECT {owner}, count(*) FROM "{RANGES}" GROUP BY {owner}'  # noqa: S608
        for rows in database.query(query):
            work.update((process, float(count)) for process, count in rows[:MAX_PROCESSES] if isinstance(process, int))
    return dict(sorted(work.items(), key=lambda pair: -pair[1]))


def process_number(process: int) -> int:
    """The number by which the operating system knew a process."""
    return (process >> 24) & THREAD_MASK


def take_thread_names(draft: Draft) -> None:
    rows = draft.database.ints("ThreadNames", ("nameId", "globalTid"), *draft.of_process("ThreadNames"))
    names = draft.database.strings(rows["nameId"])
    for number, thread in zip(rows["nameId"].tolist(), rows["globalTid"].tolist(), strict=True):
        if number in names and thread != NONE:
            tid = thread & THREAD_MASK
            draft.scanner.thread_names[str(process_number(thread)), str(tid)] = f"thread {tid} ({names[number]})"


def devices_of(database: Database, process: int) -> tuple[DeviceProperties, ...]:
    """The devices, by the number that the process' kernels have for them."""
    columns = ("id", "totalMemory", "smCount", "computeMajor", "computeMinor", "threadsPerWarp", "cuDevice")
    table = "TARGET_INFO_GPU"
    if not database.has(table, "id", "name"):
        return ()
    names: list[str] = []
    for rows in database.rows(table, 'substr("name", 1, 256)'):
        names += [name if isinstance(name, str) else "" for (name,) in rows]
    found = database.ints(table, columns)
    seen = _cuda_numbers(database, process)
    devices = []
    for at, name in enumerate(names[:MAX_DEVICES]):
        row = {column: int(found[column][at]) for column in columns}
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
    chosen = [device for device, gpu in zip(devices, found["id"].tolist(), strict=False) if not seen or gpu in seen]
    return tuple(chosen or devices)


def _cuda_numbers(database: Database, process: int) -> dict[int, int]:
    """By the machine's number of a device, the number that this process has for it."""
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
    found = {}
    if database.has("META_DATA_EXPORT", "name", "value"):
        for rows in database.rows("META_DATA_EXPORT", 'substr("name", 1, 64), substr("value", 1, 64)'):
            found.update({wanted[name]: str(value) for name, value in rows if name in wanted and value is not None})
    return found


def warnings_of(database: Database) -> list[str]:
    """What Nsight itself warned of, such as events that it lost."""
    levels = "ENUM_DIAGNOSTIC_SEVERITY_LEVEL"
    if not database.has("DIAGNOSTIC_EVENT", "severity", "text") or not database.has(levels, "id", "label"):
        return []
    bad = set()
    for rows in database.rows(levels, '"id", substr("label", 1, 32)'):
        bad |= {level for level, label in rows if isinstance(label, str) and WARNING.search(label)}
    said: list[str] = []
    for rows in database.rows("DIAGNOSTIC_EVENT", f'"severity", substr("text", 1, {WARNING_LENGTH})'):
        said += [" ".join(text.split()) for level, text in rows if level in bad and isinstance(text, str)]
    unique = list(dict.fromkeys(said))
    more = [f"{len(unique) - MAX_WARNINGS} more warnings of nsys are in the report"] if len(unique) > MAX_WARNINGS else []
    return [f"nsys warned: {text}" for text in unique[:MAX_WARNINGS]] + more


def counters_of(database: Database, low: int, high: int) -> list[str]:
    """Means of the device's counters that were sampled (--gpu-metrics-devices) while it had work."""
    if not database.has("GPU_METRICS", "timestamp", "typeId", "metricId", "value"):
        return []
    if not database.has("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName"):
        return []
    names: dict[tuple[int, int], str] = {}
    for rows in database.rows("TARGET_INFO_GPU_METRICS", '"typeId", "metricId", substr("metricName", 1, 96)'):
        names.update({(kind, metric): name for kind, metric, name in rows if isinstance(name, str) and COUNTERS.match(name)})
    query = (
        'SELECT "typeId", "metricId", avg("value") FROM "GPU_METRICS" WHERE "timestamp" BETWEEN ? AND ? '
        'GROUP BY "typeId", "metricId"'
    )
    told = []
    for rows in database.query(query, (low, high)):
        for kind, metric, mean in rows:
            if (kind, metric) in names and isinstance(mean, float):
                # The lowest byte of a type is the device's number (exporter manual, GENERIC_EVENTS).
                told.append((kind & 0xFF, f"{names[kind, metric].split(' [')[0]} {mean:.0f} %"))
    devices = {device for device, _ in told}
    words = [text if len(devices) == 1 else f"GPU {device} {text}" for device, text in told]
    return [f"GPU metrics, mean over the recorded device work: {', '.join(words[:MAX_COUNTERS])}"] if words else []
