"""What a machine's cores, memory and disks did: vmstat, iostat, free; and strace -c, which counts a
process' calls into its system.

    procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu-----
     r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st
     2 14 8123456 201234  1201 901234 4012 9021 21012  9901 41012 81201  9  6 44 41  0

Columns are known by their names: releases have more of them, in another order. The first look of
vmstat and of iostat is of all the time since the machine started: where there are several, it is
left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from stepscope.api import FormatError, Reader, Source, SystemRecording, TextLines
from stepscope.core.recordings.host_load import DiskLoad, HostLoad, SystemCall
from stepscope.protocol.untrusted import finite_text

MAX_LINES = 1_000_000
MAX_LINE_BYTES = 4096
MAX_DISKS = 1024
MAX_CALLS = 1000
MAX_NAME = 80
KIB = 1024
Row = Mapping[str, float]
Rows = Sequence[Sequence[str]]

VMSTAT = re.compile(r"^\s*r\s+b\s+swpd\s+free\s", re.MULTILINE)
IOSTAT = re.compile(
    r"^\s*Device:?\s[^\n]{0,400}(?:r/s|rkB/s|rMB/s|kB_read/s|MB_read/s)", re.MULTILINE
)
CORES = re.compile(r"^\s*avg-cpu:\s+%user\s", re.MULTILINE)
FREE = re.compile(r"^\s*total\s+used\s+free\s[^\n]{0,200}\n\s*Mem:\s", re.MULTILINE)
STRACE = re.compile(r"^\s*% time\s+seconds\s+usecs/call\s+calls\s", re.MULTILINE)
SIGNS = (VMSTAT, IOSTAT, CORES, FREE, STRACE)
SIZE = re.compile(r"([\d.]{1,20})([KMGTP]?)(?:i?B?)")
STEPS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
HINT = "Record with: vmstat 1 30 > vmstat.txt; iostat -x 1 30 > iostat.txt"


def is_mine(head: bytes, _name: str) -> bool:
    text = head.decode("utf-8", "replace").replace("\r\n", "\n")
    return any(sign.search(text) for sign in SIGNS)


def read_file(source: Source) -> SystemRecording:
    given = TextLines(source, max_line_bytes=MAX_LINE_BYTES, max_lines=MAX_LINES)
    lines = [line.split() for line in given]
    loads = [load for read in (_vmstat, _iostat, _free, _strace) for load in read(source, lines)]
    if not loads:
        raise FormatError(f"{source.label}: a header without a row that could be read. {HINT}")
    return SystemRecording(
        format="host-load", paths=(source.label,), notes=tuple(given.notes), loads=tuple(loads)
    )


def _under(
    lines: Rows, is_header: Callable[[Sequence[str]], bool], num_text: int = 0
) -> Iterator[tuple[str, Row]]:
    """The rows below each such header, by its names: the first cells that are text, as one, and
    the numbers. A line that is no row ends them."""
    header: Sequence[str] = ()
    for line in lines:
        if is_header(line):
            header = line[num_text:]
            continue
        numbers = [finite_text(cell.rstrip("%"), 0, 1e18) for cell in line[num_text:]]
        # What stands behind the numbers, a time of the day, is two words.
        if not header or len(numbers) < len(header) or None in numbers[: len(header) - 1]:
            header = header if header and not line and num_text == 0 else ()
            continue
        row = {
            name: number
            for name, number in zip(header, numbers, strict=False)
            if number is not None
        }
        yield " ".join(line[:num_text])[:MAX_NAME], row


def _later(rows: list[Row]) -> list[Row]:
    """Rows without the first, which is of all the time before, where there are others."""
    return rows[1:] or rows


def _mean(rows: Iterable[Row], *names: str, unit: float = 1.0) -> float | None:
    """Mean of the sums of these columns; None where a row lacks one."""
    sums = [sum(row[name] for name in names) for row in rows if all(name in row for name in names)]
    return unit * fmean(sums) if sums else None


def _vmstat(source: Source, lines: Rows) -> Iterator[HostLoad]:
    rows = [row for _, row in _under(lines, lambda line: line[:4] == ["r", "b", "swpd", "free"])]
    if rows:
        rows = _later(rows)
        yield HostLoad(
            path=source.label,
            tool="vmstat",
            num_looks=len(rows),
            work_share=_mean(rows, "us", "sy", unit=0.01),
            idle_share=_mean(rows, "id", unit=0.01),
            io_wait_share=_mean(rows, "wa", unit=0.01),
            runnable=_mean(rows, "r"),
            blocked=_mean(rows, "b"),
            swapped_bytes_per_s=_mean(rows, "si", "so", unit=KIB),
        )


def _iostat(source: Source, lines: Rows) -> Iterator[HostLoad]:
    cores = _core_rows(lines)
    disks: dict[str, list[Row]] = {}
    for name, row in _under(lines, lambda line: line[:1] in (["Device"], ["Device:"]), 1):
        if name in disks or len(disks) < MAX_DISKS:
            disks.setdefault(name, []).append(row)
    if not (cores or disks):
        return
    cores = _later(cores)
    yield HostLoad(
        path=source.label,
        tool="iostat",
        num_looks=max(len(cores), *(len(_later(rows)) for rows in disks.values()), 1),
        work_share=_mean(cores, "%user", "%nice", "%system", unit=0.01),
        idle_share=_mean(cores, "%idle", unit=0.01),
        io_wait_share=_mean(cores, "%iowait", unit=0.01),
        disks=tuple(_disk(name, _later(rows)) for name, rows in disks.items()),
    )


def _core_rows(lines: Rows) -> list[Row]:
    """The line below each `avg-cpu: %user ...`, which has a word less."""
    found = []
    for header, line in pairwise(lines):
        if header[:2] == ["avg-cpu:", "%user"]:
            numbers = [finite_text(cell, 0, 100) for cell in line]
            pairs = zip(header[1:], numbers, strict=False)
            found.append({name: number for name, number in pairs if number is not None})
    return [row for row in found if row]


def _disk(name: str, rows: Sequence[Row]) -> DiskLoad:
    def first(*columns: tuple[str, float]) -> float | None:
        means = (_mean(rows, column, unit=unit) for column, unit in columns)
        return next((mean for mean in means if mean is not None), None)

    kib, mib = KIB, KIB * KIB
    return DiskLoad(
        name=name,
        busy_share=first(("%util", 0.01)),
        reads_per_s=first(("r/s", 1.0)),
        read_bytes_per_s=first(
            ("rkB/s", kib), ("rMB/s", mib), ("kB_read/s", kib), ("MB_read/s", mib)
        ),
        written_bytes_per_s=first(
            ("wkB/s", kib), ("wMB/s", mib), ("kB_wrtn/s", kib), ("MB_wrtn/s", mib)
        ),
        read_wait_ms=first(("r_await", 1.0), ("await", 1.0)),
        queue=first(("aqu-sz", 1.0), ("avgqu-sz", 1.0)),
    )


def _free(source: Source, lines: Rows) -> Iterator[HostLoad]:
    header: Sequence[str] = ()
    memory: list[Row] = []
    swap: list[Row] = []
    for line in lines:
        if line[:3] == ["total", "used", "free"]:
            header = line
        elif header and line and line[0] in ("Mem:", "Swap:"):
            sizes = zip(header, map(_size, line[1:]), strict=False)
            row = {name: size for name, size in sizes if size is not None}
            (memory if line[0] == "Mem:" else swap).append(row)
    if not memory or not memory[-1].get("total"):
        return
    last = memory[-1]
    older = sum(last.get(name, 0.0) for name in ("free", "buffers", "cached"))
    of_swap = swap[-1] if swap else {}
    yield HostLoad(
        path=source.label,
        tool="free",
        num_looks=len(memory),
        memory_free_share=min(1.0, last.get("available", older) / last["total"]),
        swap_used_share=of_swap["used"] / of_swap["total"]
        if of_swap.get("total") and "used" in of_swap
        else None,
    )


def _size(text: str) -> float | None:
    """Size in the file's own unit: only shares are made of it."""
    match = SIZE.fullmatch(text)
    number = None if match is None else finite_text(match[1], 0, 1e18)
    return None if match is None or number is None else number * 1024.0 ** STEPS[match[2]]


def _strace(source: Source, lines: Rows) -> Iterator[HostLoad]:
    calls: dict[str, tuple[int, float]] = {}
    is_below = False
    for line in lines:
        if line[:3] == ["%", "time", "seconds"]:
            is_below = True
        elif line[:1] == ["100.00"] and "total".startswith(line[-1]):
            is_below = False  # The sum, of which a cut text may have the first letters alone.
        elif is_below and len(line) >= 5 and line[-1] != "total" and len(calls) < MAX_CALLS:
            seconds, num = finite_text(line[1], 0, 1e9), finite_text(line[3], 0, 1e15)
            if seconds is not None and num is not None and finite_text(line[0], 0, 100) is not None:
                before = calls.get(line[-1], (0, 0.0))
                calls[line[-1][:MAX_NAME]] = (before[0] + int(num), before[1] + seconds)
    whole = sum(seconds for _, seconds in calls.values())
    if whole > 0:
        ordered = sorted(calls.items(), key=lambda item: -item[1][1])
        yield HostLoad(
            path=source.label,
            tool="strace",
            num_looks=1,
            calls=tuple(
                SystemCall(name=name, num=num, seconds=seconds, share=seconds / whole)
                for name, (num, seconds) in ordered
            ),
        )


READER = Reader(is_mine=is_mine, read_file=read_file)
