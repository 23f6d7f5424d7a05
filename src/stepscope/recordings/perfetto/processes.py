"""The processes of a Perfetto trace: which of them a slice is of, and whether the file may hold
several ranks.

A process is a track with a process descriptor, and what stands below it. rocprofv3 writes a file
for each process; `rocpd` (convert, of several databases), Perfetto's system backend and `stepscope
export perfetto` write several into one. Two machines may have a process of the same number: their
tracks differ then.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from stepscope.api import Source, Stream
from stepscope.core.numbers import first_few
from stepscope.core.trace import NONE
from stepscope.recordings.perfetto.columns import DESCRIPTOR
from stepscope.recordings.perfetto.wire import Packets, WireError, fields

OURS = "stepscope"
"""The process, and the category of tracks, that an export of ours draws: nobody recorded them."""
MIN_SHARE = 0.01
"""Share of the busiest process' device time that a rank has at least: ranks of one job work alike,
and a helper hardly at all."""
MAX_PROCESSES = 1 << 16
MAX_RANKS = 64
"""The file is read once for each."""
NUMBER_BITS = 32
RANK = re.compile(r"rank \d{1,6}")
"""What our own export calls a process."""
UUID, PROCESS, THREAD = 1, 3, 4
"""TrackDescriptor"""
PID, PROCESS_NAME = 1, 6
"""ProcessDescriptor, and ThreadDescriptor's first"""
MARK = re.compile(re.escape(bytes([(DESCRIPTOR << 3 | 2) & 0x7F | 0x80, DESCRIPTOR >> 4])))
"""What a descriptor begins with. Other bytes may look the same: what is found is read."""


@dataclass(slots=True)
class Owners:
    """A number for each process: the one that the system gave it, and above that which of those
    with this number it is."""

    tracks: dict[int, list[int]] = field(default_factory=dict)
    """Tracks of processes by the system's number, in the order they were met."""
    names: dict[int, str] = field(default_factory=dict)

    def of(self, pid: int, track: int, name: str) -> int:
        """The number of a process; NONE where none is told. A thread whose process has no track of
        its own is the first one's."""
        if not 0 < pid < 1 << NUMBER_BITS:
            return NONE
        tracks = (
            self.tracks.setdefault(pid, [])
            if len(self.tracks) < MAX_PROCESSES
            else self.tracks.get(pid, [])
        )
        if track and track not in tracks and len(tracks) < MAX_PROCESSES:
            tracks.append(track)
        owner = (tracks.index(track) if track in tracks else 0) << NUMBER_BITS | pid
        if name and len(self.names) < MAX_PROCESSES:
            self.names[owner] = name[:80]
        return owner


def number_of(owner: int) -> int:
    """The number by which the operating system knew a process."""
    return owner & ((1 << NUMBER_BITS) - 1)


def words_of(ranks: Sequence[int], owners: Owners) -> list[str]:
    """What to call each: the rank that its name tells where each has its own, else its number."""
    names = [owners.names.get(rank, "") for rank in ranks]
    if all(RANK.fullmatch(name) for name in names) and len(set(names)) == len(names):
        return names
    return [f"process {_shown(rank)}" for rank in ranks]


def listed(ranks: Sequence[int]) -> str:
    return first_few(list(map(_shown, ranks)))


def _shown(owner: int) -> str:
    again = owner >> NUMBER_BITS
    return f"{number_of(owner)}" + (f" (number {again + 1} of them)" if again else "")


def described(source: Source) -> set[tuple[int, int]]:
    """The processes that a file describes, each with its track; found without a look at the events.
    None of them is ours."""
    processes: set[tuple[int, int]] = set()
    threads: set[int] = set()
    with (
        suppress(WireError),
        closing(Stream(source.path, source.offset, source.length).blocks()) as blocks,
    ):
        for block in Packets(blocks=blocks):
            for at in sorted(
                {bisect_right(block.starts, mark.start()) - 1 for mark in MARK.finditer(block.text)}
            ):
                with suppress(WireError):
                    packet = (
                        fields(block.text[block.starts[at] : block.ends[at]]) if at >= 0 else []
                    )
                    for message in (
                        value
                        for number, value in packet
                        if number == DESCRIPTOR and isinstance(value, bytes)
                    ):
                        _describe(message, processes, threads)
    return processes | {(pid, 0) for pid in threads - {pid for pid, _ in processes}}


def _describe(message: bytes, processes: set[tuple[int, int]], threads: set[int]) -> None:
    parts = dict(fields(message))
    uuid, process, thread = parts.get(UUID, 0), parts.get(PROCESS), parts.get(THREAD)
    descriptor = dict(
        fields(
            process if isinstance(process, bytes) else thread if isinstance(thread, bytes) else b""
        )
    )
    pid = descriptor.get(PID)
    if (
        not isinstance(pid, int)
        or not isinstance(uuid, int)
        or not pid
        or len(processes) + len(threads) >= MAX_PROCESSES
    ):
        return
    if descriptor.get(PROCESS_NAME) == OURS.encode() and isinstance(process, bytes):
        return
    if isinstance(process, bytes):
        processes.add((pid, uuid))
    else:
        threads.add(pid)
