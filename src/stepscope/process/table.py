"""Processes of this machine, from Linux's /proc: who started whom, their environment, the time they used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MOST_BYTES = 1 << 20
"""Of one process's environment or command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at one moment."""

    pid: int
    parent: int
    name: str
    state: str
    """R runs, S sleeps, D waits for a device, T is stopped, Z has ended."""
    cpu_s: float
    started_ticks: int
    """Since the machine started: with the number it tells a process from a later one of the same number."""
    command: tuple[str, ...]
    environment: dict[str, str]
    """Empty where we may not look."""

    @property
    def is_python(self) -> bool:
        words = [os.path.basename(word) for word in self.command[:1]]
        return self.name.startswith(("python", "pt_main_thread")) or any(word.startswith("python") for word in words)


def read_process(pid: int, root: Path = PROC) -> Process | None:
    """None where there is none of this number any more."""
    folder = root / str(pid)
    try:
        data = (folder / "stat").read_bytes()
    except OSError:
        return None
    # A name may hold spaces and brackets: what counts begins after the last one.
    head, _, tail = data.rpartition(b")")
    words = tail.split()
    return Process(
        pid=pid,
        parent=int(words[1]),
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=words[0].decode(),
        cpu_s=(int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"),
        started_ticks=int(words[19]),
        command=tuple(_words(folder / "cmdline")),
        environment=dict(word.split("=", 1) for word in _words(folder / "environ") if "=" in word),
    )


def processes(root: Path = PROC) -> dict[int, Process]:
    """All that are there; empty where there is no /proc."""
    try:
        numbers = [int(folder.name) for folder in root.iterdir() if folder.name.isdecimal()]
    except OSError:
        return {}
    return {number: process for number in numbers if (process := read_process(number, root)) is not None}


def descendants(pid: int, known: dict[int, Process]) -> list[Process]:
    """Those it started, those they started, and so on; parents before their children."""
    children: dict[int, list[Process]] = {}
    for process in known.values():
        children.setdefault(process.parent, []).append(process)
    found, waiting = [], [pid]
    while waiting:
        for child in sorted(children.pop(waiting.pop(0), []), key=lambda process: process.pid):
            found.append(child)
            waiting.append(child.pid)
    return found


def _words(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES)
    except OSError:
        return []
    return [word.decode(errors="replace") for word in data.split(b"\0") if word]
