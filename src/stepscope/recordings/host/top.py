"""What `top -b` wrote: the machine's processes, once or many times over.

    top - 16:27:12 up  2:11,  0 user,  load average: 7.78, 9.36, 7.35
    %Cpu(s): 60.0 us, 20.0 sy, 20.0 ni,  0.0 id,  0.0 wa,  0.0 hi,  0.0 si,  0.0 st
      PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
     4327 root      20   0 1809372 322164 100464 R  50.0   1.3   0:04.36 python

The first screen tells of processes' whole lives, those after it of the time since the one before:
where there are several, the first is left out. top knows neither who started whom nor how many
cores there are; the names that torch gives its processes tell ranks from loader workers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from stepscope.api import FormatError, Reader, Source, SystemRecording, TextLines
from stepscope.core.recordings.system import PROCESS, RANK, WORKER, HostUse, ProcessUse
from stepscope.protocol.untrusted import finite_text

SCREEN = re.compile(r"top - (\d\d):(\d\d):(\d\d) up ")
START = re.compile(rb"(?:^|\n)top - \d\d:\d\d:\d\d up [^\n]{0,200}\n(?:Tasks|Threads):")
CPU = re.compile(r"%?Cpu\(s\):.{0,200}?([\d.]{1,6})[ %]id,\s{0,9}([\d.]{1,6})[ %]wa")
ROLES = {"pt_main_thread": RANK, "pt_data_worker": WORKER}
"""Roles by the names that torch 2.6 and later gives processes; top cuts a long one off with a +."""
MAX_PROCESSES = 4096
MAX_SCREENS = 100_000
MIN_CORES = 0.02
DAY_S = 86_400
HINT = "Record with: top -b -d 2 -n 15 -w 200 > top.txt"


def is_mine(head: bytes, _name: str) -> bool:
    return START.search(head) is not None


@dataclass(slots=True)
class _Screen:
    time_s: int
    columns: list[str] = field(default_factory=list)
    wait_share: float | None = None
    rows: dict[int, tuple[str, str, float]] = field(default_factory=dict)
    """Rows by number: name, state, cores."""

    def take(self, line: str) -> bool:
        """Whether a row of processes could be read, where it is one."""
        words = line.split()
        if match := CPU.match(line):
            wait = finite_text(match[2])
            self.wait_share = None if wait is None else wait / 100
        elif "PID" in words and "%CPU" in words and "COMMAND" in words:
            self.columns = words
        elif self.columns and words and words[0].isdecimal():
            return self._take_row(words)
        return True

    def _take_row(self, words: list[str]) -> bool:
        row = dict(zip(self.columns, words, strict=False))
        cores = finite_text(row.get("%CPU", ""))
        if len(words) < len(self.columns) or cores is None or not row["PID"].isdecimal():
            return False
        if len(self.rows) < MAX_PROCESSES and len(row["PID"]) < 10:
            # With -c it is the whole command, with the program's path.
            name = os.path.basename(row["COMMAND"])[:80]
            self.rows[int(row["PID"])] = (name, row.get("S", "?"), cores / 100)
        return True


def read_file(source: Source) -> SystemRecording:
    lines, screens, num_bad = TextLines(source), list[_Screen](), 0
    for line in lines:
        if match := SCREEN.match(line):
            hours, minutes, seconds = map(int, match.groups())
            if len(screens) >= MAX_SCREENS:
                break
            screens.append(_Screen(hours * 3600 + minutes * 60 + seconds))
        elif screens:
            num_bad += not screens[-1].take(line)
    if not any(screen.rows for screen in screens):
        raise FormatError(f"{source.label}: no process in it. {HINT}")
    notes = [*lines.notes]
    if num_bad:
        notes.append(f"{source.label}: {num_bad:,} line(s) could not be read as processes")
    return SystemRecording(
        format="top", paths=(source.label,), notes=tuple(notes), hosts=(_host(screens),)
    )


def _host(screens: Sequence[_Screen]) -> HostUse:
    missing = [
        "waits for a core, bytes read, threads: top does not tell them",
        "how many cores the job may use: top does not tell it",
    ]
    judged = screens[1:]
    if not judged:
        judged = screens
        missing.append("what goes on now: a single screen of top is of processes' whole lives")
    waits = [screen.wait_share for screen in judged if screen.wait_share is not None]
    return HostUse(
        seconds=float((screens[-1].time_s - screens[0].time_s) % DAY_S) or None,
        num_looks=len(judged),
        processes=_processes(judged),
        io_wait_share=fmean(waits) if waits else None,
        not_measured=tuple(missing),
    )


def _processes(screens: Sequence[_Screen]) -> tuple[ProcessUse, ...]:
    """The Python ones; those that do nothing are left out where others do something."""
    pids = dict.fromkeys(pid for screen in screens for pid in screen.rows)
    uses = []
    for pid in pids:
        rows = [screen.rows[pid] for screen in screens if pid in screen.rows]
        name = rows[-1][0]
        if not name.startswith(("python", "pt_")):
            continue
        waiting = sum(state == "D" for _, state, _ in rows)
        uses.append(
            ProcessUse(
                pid=pid,
                role=_role(name),
                name=name,
                cores=sum(cores for _, _, cores in rows) / len(screens),
                io_wait_share=waiting / len(rows),
            )
        )
    active = [
        process for process in uses if (process.cores or 0.0) >= MIN_CORES or process.io_wait_share
    ]
    return tuple(active or uses)


def _role(name: str) -> str:
    for known, role in ROLES.items():
        if name == known or (name.endswith("+") and known.startswith(name[:-1]) and len(name) > 5):
            return role
    return PROCESS


READER = Reader(is_mine=is_mine, read_file=read_file)
