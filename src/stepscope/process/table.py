"""Processes of this machine, from Linux's /proc: who started whom, their environment, the time they
used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

PROC = "/proc"
HAS_TABLE = os.path.exists(f"{PROC}/self/stat")
"""Whether this system tells its processes."""
MAX_BYTES = 8 << 20
"""Bytes of one process's environment or command line, at most."""


class Process(NamedTuple):
    """One process at one moment.

    No dataclass, and no paths below: the watchdog imports this, and must not be long in starting.
    """

    pid: int
    parent: int
    group: int
    name: str
    state: str
    """R runs, S sleeps, D waits for a device, T is stopped, Z has ended."""
    cpu_s: float
    started_ticks: int
    """Ticks since the machine started: with the number it tells a process from a later one of the
    same number."""
    command: tuple[str, ...]
    environment: dict[str, str]
    """Empty where we may not look."""

    @property
    def is_python(self) -> bool:
        words = [os.path.basename(word) for word in self.command[:1]]
        return self.name.startswith(("python", "pt_main_thread")) or any(
            word.startswith("python") for word in words
        )


def rank_of(process: Process) -> int | None:
    """Rank of a process in its job, where its environment has one."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        if process.environment.get(name, "").isdecimal():
            return int(process.environment[name])
    return None


def read_process(pid: int, *, with_words: bool = True) -> Process | None:
    """None where there is none of this number any more. Without words, neither its command nor its
    environment is read."""
    folder = f"{PROC}/{pid}"
    # A name may hold spaces and brackets: what counts begins after the last one.
    head, _, tail = _read(f"{folder}/stat").rpartition(b")")
    if not tail:
        return None
    words = tail.split()
    return Process(
        pid=pid,
        parent=int(words[1]),
        group=int(words[2]),
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=words[0].decode(),
        cpu_s=(int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"),
        started_ticks=int(words[19]),
        command=tuple(_words(f"{folder}/cmdline")) if with_words else (),
        environment=_environment(folder) if with_words else {},
    )


def processes(*, with_words: bool = True) -> dict[int, Process]:
    """All that are there; empty where there is no /proc."""
    try:
        pids = [int(name) for name in os.listdir(PROC) if name.isdecimal()]
    except OSError:
        return {}
    running = {pid: read_process(pid, with_words=with_words) for pid in pids}
    return {pid: process for pid, process in running.items() if process is not None}


def read_environment(pid: int) -> bytes:
    """Environment as the system has it; empty where we may not look."""
    return _read(f"{PROC}/{pid}/environ")


def descendants(pids: Iterable[int], running: dict[int, Process]) -> list[Process]:
    """Processes that these started, those they started, and so on; parents before their
    children."""
    children: dict[int, list[Process]] = {}
    for process in running.values():
        children.setdefault(process.parent, []).append(process)
    started, waiting = [], list(pids)
    while waiting:
        for child in sorted(children.pop(waiting.pop(0), []), key=lambda process: process.pid):
            started.append(child)
            waiting.append(child.pid)
    return started


def _environment(folder: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in _words(f"{folder}/environ") if "=" in word)


def _words(path: str) -> list[str]:
    return [word.decode(errors="replace") for word in _read(path).split(b"\0") if word]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return b""
