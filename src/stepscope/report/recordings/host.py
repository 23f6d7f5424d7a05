"""Stacks of the host's code in words: how many samples, and where they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.core.recordings.processes import HostUse
from stepscope.core.recordings.system import HostStacks, HotSpot, SystemRecording
from stepscope.report.recordings.text import Table, table


def lines(recording: SystemRecording) -> Iterator[tuple[str, str]]:
    for stacks in recording.stacks:
        yield from _lines(stacks)
    for host in recording.hosts:
        yield "looks", f"{host.num_looks:,}"
        if host.io_wait_share is not None:
            yield "idle for a disk", f"{host.io_wait_share:.1%} of the machine"


def tables(recording: SystemRecording) -> Iterator[Table]:
    for stacks in recording.stacks:
        yield from _tables(stacks)
    yield from map(_process_table, recording.hosts)


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
