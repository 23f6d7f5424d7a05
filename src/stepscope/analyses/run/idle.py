"""When a job does nothing, by what its ranks sampled of themselves once a second.

A rank rests while no thread of its process, no child and no device of it works. All ranks at once:
the job is idle. One alone: it waits for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from stepscope.analyses.run.samples import Sample, gpu_util
from stepscope.protocol.untrusted import finite, whole
from stepscope.readers.run_folder.folder import RankRecord

MEASURED = ("cpu_user_cores", "cpu_sys_cores")
WORKS = (*MEASURED, "children_cores", "main_thread_queued_share")
"""Fields of work, in cores. A thread that is queued for one would work."""
IO = ("disk_read_bytes_s", "disk_write_bytes_s", "children_disk_read_bytes_s")
MIN_IO = 1_000_000
"""Bytes a second from which a process that uses no core reads or writes."""
MAX_BUSY = 0.5
"""Share of a core up to which some of the time between two samples is rest."""


class Interval(Struct, frozen=True, kw_only=True):
    """Interval between two samples, on the wall's clock."""

    begin_ns: int
    end_ns: int
    busy: float
    """Share of a core that was used, up to 1."""
    is_in_step: bool
    """Whether no step ended meanwhile."""

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def rest_ns(self) -> int:
        return round(self.dur_ns * (1 - self.busy))


class Rest(Struct, frozen=True, kw_only=True):
    """One rank's intervals, and those of the others."""

    offset_ns: int = 0
    """Offset of the wall's clock from the rank's own."""
    mine: Sequence[Interval] = ()
    others: Sequence[Sequence[Interval]] = ()

    def in_step(self, begin_ns: int, end_ns: int) -> tuple[float, float]:
        """Shares of a part of one step, or of what follows the last: in which all ranks rest, and
        in which this one alone does. 0 where no two samples lie in it."""
        inside = self._inside(begin_ns, end_ns)
        total = sum(each.dur_ns for each in inside)
        if not total:
            return 0.0, 0.0
        together, alone = self._sums(inside)
        return together / total, alone / total

    def in_steps(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        """Nanoseconds of several steps, likewise; in none that is shorter than from one sample to
        the next."""
        inside = self._inside(begin_ns, end_ns)
        return self._sums([each for each in inside if each.is_in_step])

    def _inside(self, begin_ns: int, end_ns: int) -> list[Interval]:
        begin_ns, end_ns = begin_ns + self.offset_ns, end_ns + self.offset_ns
        return [each for each in self.mine if begin_ns <= each.begin_ns and each.end_ns <= end_ns]

    def _sums(self, intervals: Sequence[Interval]) -> tuple[int, int]:
        alone = sum(each.rest_ns for each in intervals if self._is_waiting(each))
        return sum(each.rest_ns for each in intervals) - alone, alone

    def _is_waiting(self, interval: Interval) -> bool:
        """Whether another rank works all the while."""
        for rank in self.others:
            meanwhile = [
                each
                for each in rank
                if each.begin_ns < interval.end_ns and each.end_ns > interval.begin_ns
            ]
            if meanwhile and min(each.busy for each in meanwhile) > MAX_BUSY:
                return True
        return False


def rests(records: Sequence[RankRecord]) -> dict[int, Rest]:
    """Rests by rank."""
    offsets = {record.rank: _offset_ns(record.metadata) for record in records}
    intervals = {record.rank: _intervals(record, offsets[record.rank]) for record in records}
    return {
        rank: Rest(
            offset_ns=offsets[rank],
            mine=mine,
            others=[theirs for other, theirs in intervals.items() if other != rank],
        )
        for rank, mine in intervals.items()
    }


def _intervals(record: RankRecord, offset_ns: int) -> list[Interval]:
    machine = record.metadata.get("machine")
    has_device = isinstance(machine, dict) and bool(machine.get("devices"))
    samples = [(whole(sample.get("at_ns")), sample) for sample in record.samples]
    known = [(at_ns + offset_ns, sample) for at_ns, sample in samples if at_ns is not None]
    return [
        Interval(
            begin_ns=before_ns,
            end_ns=after_ns,
            busy=_busy(after, has_device),
            is_in_step=before.get("step") == after.get("step"),
        )
        for (before_ns, before), (after_ns, after) in pairwise(known)
        if after_ns > before_ns
    ]


def _busy(sample: Sample, has_device: bool) -> float:
    """1 where it was not measured: nothing is said to rest that may work."""
    if any(finite(sample.get(name)) is None for name in MEASURED):
        return 1.0
    used = gpu_util(sample)
    if used or (has_device and used is None):
        return 1.0
    if sum(finite(sample.get(name)) or 0.0 for name in IO) >= MIN_IO:
        return 1.0
    busy = sum(finite(sample.get(name)) or 0.0 for name in WORKS)
    return 1.0 if busy > MAX_BUSY else max(busy, 0.0)


def _offset_ns(metadata: Mapping[str, Any]) -> int:
    perf_ns, wall_ns = whole(metadata.get("perf_ns")), whole(metadata.get("wall_ns"))
    return 0 if perf_ns is None or wall_ns is None else wall_ns - perf_ns
