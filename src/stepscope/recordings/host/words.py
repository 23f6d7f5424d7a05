"""The host in words: stacks of its code, its processes, its counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stepscope.api import SystemRecording, Table, table
from stepscope.core.recordings.host_load import DiskLoad, HostLoad, SystemCall
from stepscope.core.recordings.system import HostCounters, HostStacks, HostUse, HotSpot


def lines(recording: SystemRecording) -> Iterator[tuple[str, str]]:
    for stacks in recording.stacks:
        yield from _lines(stacks)
    for host in recording.hosts:
        yield "looks", f"{host.num_looks:,}"
        if host.io_wait_share is not None:
            yield "idle for a disk", f"{host.io_wait_share:.1%} of the machine"
    for counters in recording.counters:
        yield from _counter_lines(counters)
    for load in recording.loads:
        yield from _load_lines(load)


def tables(recording: SystemRecording) -> Iterator[Table]:
    for stacks in recording.stacks:
        yield from _tables(stacks)
    yield from map(_process_table, recording.hosts)
    for load in recording.loads:
        if load.disks:
            yield _disk_table(load.disks)
        if load.calls:
            yield _call_table(load.calls)


def _load_lines(load: HostLoad) -> Iterator[tuple[str, str]]:
    yield "looks", f"{load.num_looks:,}"
    shares = (
        ("cores at work", load.work_share),
        ("cores idle", load.idle_share),
        ("cores waiting for a disk", load.io_wait_share),
        ("memory left for programs", load.memory_free_share),
        ("swap in use", load.swap_used_share),
    )
    yield from ((name, f"{share:.1%}") for name, share in shares if share is not None)
    counts = (("threads running or ready", load.runnable), ("threads blocked", load.blocked))
    yield from ((name, f"{count:.1f}") for name, count in counts if count is not None)
    if load.swapped_bytes_per_s is not None:
        yield "to the swap and back", f"{load.swapped_bytes_per_s / 1e6:.2f} MB/s"


def _disk_table(disks: Sequence[DiskLoad]) -> Table:
    def cell(value: float | None, unit: float = 1.0, digits: int = 1) -> str:
        return "-" if value is None else f"{value / unit:,.{digits}f}"

    rows = tuple(
        (
            disk.name,
            "-" if disk.busy_share is None else f"{disk.busy_share:.0%}",
            cell(disk.reads_per_s, digits=0),
            cell(disk.read_bytes_per_s, 1e6),
            cell(disk.written_bytes_per_s, 1e6),
            cell(disk.read_wait_ms, digits=2),
            cell(disk.queue),
        )
        for disk in sorted(disks, key=lambda disk: -(disk.busy_share or 0.0))[:12]
    )
    return table("Disks", "disk|>busy|>reads/s|>MB/s read|>MB/s written|>ms a read|>queue", rows)


def _call_table(calls: Sequence[SystemCall]) -> Table:
    rows = tuple(
        (call.name, f"{call.seconds:.2f}", f"{call.share:.1%}", f"{call.num:,}")
        for call in calls[:12]
    )
    return table("Calls into the system", "call|>s|>share|>calls", rows)


def _process_table(host: HostUse) -> Table:
    busiest = sorted(host.processes, key=lambda process: -(process.cores or 0.0))[:12]
    rows = tuple(
        (
            process.name,
            str(process.pid),
            "-" if process.cores is None else f"{process.cores:.2f}",
            "-" if process.io_wait_share is None else f"{process.io_wait_share:.0%}",
        )
        for process in busiest
    )
    return table("Processes, the busiest first", "process|>pid|>cores|>io wait", rows)


def _lines(stacks: HostStacks) -> tuple[tuple[str, str], ...]:
    """What the report says of stacks before its tables."""
    lines = [("recorded by", stacks.tool), (stacks.unit, f"{stacks.amount:,.4g}")]
    if stacks.num_threads is not None:
        lines.append(("threads", f"{stacks.num_threads:,}"))
    if stacks.busy_cores is not None:
        seen = "" if stacks.num_cores is None else f" of {stacks.num_cores} seen"
        lines.append(("busy cores", f"{stacks.busy_cores:.2f}{seen}"))
    named = (
        ("the interpreter itself", stacks.interpreter_share),
        ("waiting for the GIL", stacks.gil_wait_share),
        ("the kernel", stacks.kernel_share),
        ("page faults", stacks.page_fault_share),
        ("reading pages", stacks.page_read_share),
    )
    lines += [(name, f"{share:.1%}") for name, share in named if share is not None]
    return tuple(lines)


def _tables(stacks: HostStacks) -> tuple[Table, ...]:
    """The hottest functions, the training code's own, and the threads."""
    by_own = sorted(stacks.functions, key=lambda spot: -spot.self_share)[:12]
    by_own = [spot for spot in by_own if spot.self_share >= 0.0005]
    tables = [_table(f"Innermost calls, share of the {stacks.unit}", by_own)]
    if stacks.training:
        tables.append(
            _table(
                "Functions outside the libraries, with all they call in these", stacks.training[:12]
            )
        )
    if len(stacks.threads) > 1:
        rows = tuple(
            (
                thread.name,
                f"{thread.share:.1%}",
                "-" if thread.gil_wait_share is None else f"{thread.gil_wait_share:.0%}",
            )
            for thread in stacks.threads[:12]
        )
        tables.append(table("Threads", "thread|>share|>waits for the GIL", rows))
    return tuple(tables)


def _table(title: str, spots: Iterable[HotSpot]) -> Table:
    rows = tuple(
        (spot.label, f"{spot.self_share:.1%}", f"{spot.total_share:.1%}") for spot in spots
    )
    return table(title, "function|>own|>with callees", rows)


def _counter_lines(counters: HostCounters) -> tuple[tuple[str, str], ...]:
    figures = (
        ("elapsed", counters.elapsed_s, "{:.2f} s"),
        ("on cores", counters.cpu_s, "{:.2f} s"),
        ("busy cores", counters.busy_cores, "{:.2f}"),
        ("instructions per cycle", counters.instructions_per_cycle, "{:.2f}"),
        ("cache misses", counters.cache_miss_share, "{:.1%} of references"),
        ("cache misses for 1,000 instructions", counters.misses_per_1000, "{:.1f}"),
        ("branch misses", counters.branch_miss_share, "{:.1%}"),
        ("context switches", counters.switches_per_cpu_s, "{:,.0f} for each second on a core"),
        ("page faults", counters.page_faults, "{:,.0f}"),
        ("major faults", counters.major_faults, "{:,.0f}"),
    )
    links = tuple(
        (f"NVLink-C2C, {way}", _per_s(size, counters.elapsed_s), "{:.3g} GB/s")
        for way, size in (
            ("read", counters.c2c_read_bytes),
            ("written", counters.c2c_written_bytes),
            ("both ways", counters.c2c_bytes),
        )
    )
    measured = tuple(
        (name, form.format(n)) for name, n, form in (*figures, *links) if n is not None
    )
    return measured if counters.command is None else (("command", counters.command), *measured)


def _per_s(size_bytes: float | None, elapsed_s: float | None) -> float | None:
    return None if size_bytes is None or not elapsed_s else size_bytes / elapsed_s / 1e9
