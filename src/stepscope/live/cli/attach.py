"""A job that stands still: whether it is hung or slow, and where.

PID is a training process, several, or a launcher: the ranks that it started are found. Each is
looked at a few times through py-spy, which stops it for some milliseconds each time. Where
PyTorch's flight recorder wrote dumps (TORCH_NCCL_DUMP_ON_TIMEOUT=1), these say which collective it
is. Processes must be on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.options import int_in_range, real
from stepscope.cli.printing import print_document
from stepscope.errors import InputError, UsageError
from stepscope.process.table import rank_of

if TYPE_CHECKING:
    from stepscope.live.shapes.triage import Frame, Stood
    from stepscope.process.table import Process

MAX_PROCESSES = 1024
LONG_S = 0.5
"""Seconds from which the pause before a second look is worth a bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    pids: list[int] = declare.option(
        "PID",
        "a training process, or what launched it",
        int_in_range("the number of a process", most=10**19),
        nargs="+",
    )
    looks: int = declare.option(
        "--looks N",
        "how often to look (default: 5)",
        int_in_range(
            "a number of looks; give 2 or more: one does not distinguish hung from running",
            2,
            1000,
        ),
        5,
    )
    every_s: float = declare.option(
        "--every S",
        "seconds between two looks (default: 0.2)",
        real("a number of seconds; give one from 0 to 600", lambda value: 0 <= value <= 600),
        0.2,
    )


def run(options: Options) -> int:
    from stepscope.live.cli.flight_dumps import find_hang_of
    from stepscope.live.cli.py_spy import NotPermittedError, dump, find_spy
    from stepscope.live.report.stacks import dumps_document, stacks_document
    from stepscope.live.stacks_compare import compare

    ranks = find_ranks(options.pids)
    hang, dumps = find_hang_of(ranks)
    try:
        spy = find_spy()
        stacks = look(ranks, lambda pid: dump(spy, pid), options.looks, options.every_s)
    except (NotPermittedError, UsageError) as problem:
        if hang is None:
            raise
        print_document(dumps_document(hang, dumps, str(problem)))
        return 0
    print_document(stacks_document(compare(stacks), hang, dumps))
    return 0


def find_ranks(pids: Sequence[int], running: dict[int, Process] | None = None) -> list[Process]:
    """The processes that train: those named, or what they started where that has ranks."""
    from stepscope.process.table import descendants, processes

    everyone = processes() if running is None else running
    if not everyone:
        raise InputError("processes are found through /proc, which this system does not have")
    chosen: dict[int, Process] = {}
    for pid in pids:
        if pid not in everyone:
            raise InputError(
                f"there is no process {pid} on this machine. Has it ended, or is it in another "
                "container?"
            )
        family = [everyone[pid], *descendants([pid], everyone)]
        ranks = ranks_among(family, everyone)
        python = [process for process in family if process.is_python]
        if not python:
            raise InputError(
                f"process {pid} ({everyone[pid].name}) is not Python, and has started none. Name "
                "a training process"
            )
        chosen |= {process.pid: process for process in (ranks or python[:1])[:MAX_PROCESSES]}
    return list(chosen.values())


def ranks_among(processes: Iterable[Process], everyone: Mapping[int, Process]) -> list[Process]:
    """Processes that train."""
    ranks = [
        process
        for process in processes
        if process.is_python and _is_rank(process, everyone.get(process.parent))
    ]
    # A launcher may have a number too, of its machine.
    launchers = {process.parent for process in ranks}
    return [process for process in ranks if process.pid not in launchers]


def _is_rank(process: Process, parent: Process | None) -> bool:
    """A rank has its number from its launcher; its loader's workers have it from the rank."""
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    mine = [process.environment.get(name) for name in names]
    theirs = [None if parent is None else parent.environment.get(name) for name in names]
    return rank_of(process) is not None and mine != theirs


def look(
    chosen: Sequence[Process], dumped: Callable[[int], tuple[Frame, ...]], num: int, every_s: float
) -> list[Stood]:
    """Each process's stacks, `num` times, all ranks before the next time."""
    from stepscope.core.timings import counted
    from stepscope.live.cli.py_spy import NotPermittedError
    from stepscope.live.shapes.triage import Stood
    from stepscope.process.table import read_process

    stacks: dict[int, list[tuple[Frame, ...]]] = {process.pid: [] for process in chosen}
    problems: dict[int, str] = {}
    first, begun = {process.pid: read_process(process.pid) for process in chosen}, time.monotonic()
    for number in counted("looking", range(num), num, is_long=every_s >= LONG_S):
        if number:
            time.sleep(every_s)
        for process in chosen:
            if process.pid not in problems:
                try:
                    stacks[process.pid].append(dumped(process.pid))
                except NotPermittedError:
                    raise
                except InputError as problem:
                    problems[process.pid] = str(problem)
    spent = time.monotonic() - begun
    seen = []
    for process in chosen:
        before, after, cpu_share = first[process.pid], read_process(process.pid), None
        if before is not None and after is not None and spent:
            cpu_share = (after.cpu_s - before.cpu_s) / spent
        seen.append(
            Stood(
                pid=process.pid,
                rank=rank_of(process),
                stacks=tuple(stacks[process.pid]),
                cpu_share=cpu_share,
                problem=problems.get(process.pid),
            )
        )
    return seen
