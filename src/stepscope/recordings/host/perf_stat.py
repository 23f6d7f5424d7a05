"""The counters of Linux `perf stat`: its table, its CSV (-x,), and either of them by intervals
(-I).

    1385.22 msec task-clock                       #    0.503 CPUs utilized

    #           time             counts unit events
         0.203745190              48.62 msec task-clock                  #    0.243 CPUs utilized
         0.203745190    <not supported>      cycles

An interval's counts are those since the one before it: they add up to the run's. A summary of the
run may follow them (--summary), and is then taken instead of them. A counter that was not counted
in an interval in which others were has no sum; an interval in which nothing was counted is one in
which the process did not run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from stepscope.api import FormatError, Source, SystemRecording, TextLines
from stepscope.core.recordings.system import HostCounters
from stepscope.protocol.untrusted import finite_text

STAT_START = re.compile(
    rb"(?:^|\n)[ \t]{0,40}Performance counter stats for "
    rb"|(?:^|\n)[\d.<][^,\n]{0,40},[^,\n]{0,20},[\w:./-]{2,60},\d{1,18},\d{1,3}\.\d\d,"
    rb"|(?:^|\n)# {2,40}time [^\n]{2,60} counts (?:unit )?events"
    rb"|(?:^|\n) {0,9}\d{1,9}\.\d{9},(?:[\d.]{1,30}|<not "
    rb"\w{7,9}>),[^,\n]{0,20},[\w:./-]{2,60},\d{1,18},\d{1,3}\.\d\d"
)
STAT_LINE = re.compile(
    r"\s*([\d.,]{1,30}|<not "
    r"(?:supported|counted)>)\s+(?:(msec|nsec|sec|ns|ms|s|Joules|MiB)\s+)?([\w:./=-]{2,80})\b.{0,400}"
)
STAT_TIME = re.compile(
    r"\s*([\d.,]{1,30})\s+(?:\+-\s+[\d.,]+\s+)?seconds (time elapsed|user|sys)\b.{0,200}"
)
STAT_FOR = re.compile(r"\s*Performance counter stats for (.{1,2000}?)(?: \(\d+ runs\))?:\s*")
INTERVAL = re.compile(r"(?:\^C)?\s*(\d{1,9}\.\d{9})(,|\s+)(.{1,1000})")
"""Seconds since the beginning, and the counter: perf writes no count with nine decimals."""
SUMMARY = re.compile(r"\s*summary,(.{1,1000})")
NAMES = {
    "context-switches": "context_switches", "cs": "context_switches",
    "cpu-migrations": "migrations", "migrations": "migrations", "page-faults": "page_faults",
    "faults": "page_faults", "major-faults": "major_faults", "instructions": "instructions",
    "cycles": "cycles", "cpu-cycles": "cycles", "cache-references": "cache_references",
    "cache-misses": "cache_misses", "branches": "branches", "branch-instructions": "branches",
    "branch-misses": "branch_misses", "c2c read": "c2c_read_bytes",
    "c2c written": "c2c_written_bytes", "c2c both": "c2c_bytes",
}  # fmt: skip
C2C = re.compile(r"nvidia_nvlink_c2c\d{0,2}_pmu_\d{1,3}/(\w{1,60})/?.{0,40}")
"""Counters of the link between a Grace CPU and its GPU: `total_bytes_rd`, `wr_bytes_loc`."""
CLOCKS = ("task-clock", "cpu-clock")
MACHINE = re.compile(r"'(?:system wide|CPU\(s\) )")
WHOLE = 0.005
"""How near to a whole number of cores, two or more, the clock of a machine is in intervals, which
do not say whose they are."""
TO_SECONDS = {"msec": 1e-3, "ms": 1e-3, "nsec": 1e-9, "ns": 1e-9, "sec": 1.0, "s": 1.0}
MAX_COUNTERS = 1000
MAX_NAMED = 8


def is_stat(text: bytes) -> bool:
    return STAT_START.search(text) is not None


def read_stat(source: Source) -> SystemRecording:
    lines, values = TextLines(source, max_lines=1_000_000), _Counted()
    for line in lines:
        values.take(line)
    values.intervals.close()
    if not values.sums.is_any and values.times.get("time elapsed") is None:
        how = "Record with perf stat -d -o stat.txt -p PID -- sleep 30"
        raise FormatError(
            f"{source.label}: no counter in it. {how} (with -I 1000, if you like; not with -A or "
            "--per-socket and the like)"
        )
    counters = values.counters(source.label)
    notes = (*lines.notes, *values.notes())
    return SystemRecording(format="perf", paths=(source.label,), notes=notes, counters=(counters,))


@dataclass(slots=True)
class _Sums:
    counts: dict[str, float] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    """Seconds on cores, by the clock that counted them."""
    not_counted: set[str] = field(default_factory=set)

    def put(self, text: str, unit: str, event: str) -> None:
        """Counters of several lines (of unlike cores) add up."""
        name = re.sub(
            r":[a-zA-Z]{1,6}$", "", event.split("/")[1] if event.count("/") >= 2 else event
        )[:80]
        link = C2C.match(event)
        if link is not None:
            name = f"c2c {_way(link[1])}" if "bytes" in link[1] else f"c2c {link[1]}"
        value = _number(text)
        if value is None:
            if text.startswith("<not") and len(self.not_counted) < MAX_COUNTERS:
                self.not_counted.add(name)
        elif name in CLOCKS:
            self.clocks[name] = self.clocks.get(name, 0.0) + value * TO_SECONDS.get(unit, 1e-3)
        elif name in self.counts or len(self.counts) < MAX_COUNTERS:
            self.counts[name] = self.counts.get(name, 0.0) + value

    def add(self, other: _Sums) -> None:
        for mine, theirs in ((self.counts, other.counts), (self.clocks, other.clocks)):
            for name, value in theirs.items():
                if name in mine or len(mine) < MAX_COUNTERS:
                    mine[name] = mine.get(name, 0.0) + value

    @property
    def is_any(self) -> bool:
        return bool(self.counts or self.clocks)


@dataclass(slots=True)
class _Intervals:
    """The sums over all intervals, one after the other."""

    sums: _Sums = field(default_factory=_Sums)
    num: int = 0
    num_still: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """Number of intervals in which a counter was not counted, with others counted."""
    _before_s: float = 0.0
    """Seconds of the runs before this one in the same file."""
    _time: str = ""
    _interval: _Sums = field(default_factory=_Sums)

    def put(self, time: str, text: str, unit: str, event: str) -> None:
        if time != self._time:
            self.close()
            self._before_s += (
                float(self._time) if self._time and float(time) < float(self._time) else 0.0
            )
            self._time = time
        self._interval.put(text, unit, event)

    @property
    def elapsed_s(self) -> float | None:
        """Seconds to the end of the last one."""
        return self._before_s + float(self._time) if self._time else None

    def close(self) -> None:
        """The interval that was being read is whole."""
        interval, self._interval = self._interval, _Sums()
        if not interval.is_any and not interval.not_counted:
            return
        self.num += 1
        self.num_still += not interval.is_any
        if interval.is_any:
            self.missing.update(
                interval.not_counted - interval.counts.keys() - interval.clocks.keys()
            )
        self.sums.add(interval)

    def whole(self) -> _Sums:
        """The sums of what was counted in every interval in which the process ran."""
        counts = {name: value for name, value in self.sums.counts.items() if not self.missing[name]}
        clocks = {name: value for name, value in self.sums.clocks.items() if not self.missing[name]}
        return _Sums(counts=counts, clocks=clocks, not_counted=set(self.missing))


@dataclass(slots=True)
class _Counted:
    table: _Sums = field(default_factory=_Sums)
    """Counts of the whole run."""
    intervals: _Intervals = field(default_factory=_Intervals)
    times: dict[str, float] = field(default_factory=dict)
    busy_cores: float | None = None
    command: str | None = None

    def take(self, line: str) -> None:
        match = STAT_FOR.fullmatch(line)
        if match is not None:
            self.command = match[1][:200]
            return
        match = STAT_TIME.fullmatch(line)
        if match is not None:
            self.times[match[2]] = _number(match[1]) or 0.0
            return
        match = INTERVAL.fullmatch(line)
        if match is not None:
            self._take_interval(match[1], match[3], is_csv=match[2] == ",")
            return
        match = SUMMARY.fullmatch(line)
        cells = (line if match is None else match[1]).split(",")
        if len(cells) >= 5 and (match is not None or not line[:1].isspace()):
            self.table.put(cells[0], cells[1], cells[2])
            if len(cells) >= 7 and cells[2] in CLOCKS and cells[6].strip() == "CPUs utilized":
                self.busy_cores = _number(cells[5])
            return
        match = STAT_LINE.fullmatch(line)
        if match is not None:
            self.table.put(match[1], match[2] or "", match[3])

    def _take_interval(self, time: str, rest: str, *, is_csv: bool) -> None:
        cells = rest.split(",") if is_csv else []
        match = None if is_csv else STAT_LINE.fullmatch(rest)
        if len(cells) >= 4:
            self.intervals.put(time, cells[0], cells[1], cells[2])
        elif match is not None:
            self.intervals.put(time, match[1], match[2] or "", match[3])

    @property
    def sums(self) -> _Sums:
        """A summary counts the same again as the intervals before it."""
        return self.table if self.table.is_any or not self.intervals.num else self.intervals.whole()

    @property
    def elapsed_s(self) -> float | None:
        return self.times.get("time elapsed") or self.intervals.elapsed_s

    @property
    def is_machine(self) -> bool:
        """`perf stat -a` or -C: no process's."""
        return self.command is not None and MACHINE.match(self.command) is not None

    @property
    def may_be_machine(self) -> bool:
        """Intervals do not say whose they are: -a counts the clock of cores (cpu-clock), all of
        them at all times."""
        if self.command is not None or not self.intervals.num or not self.elapsed_s:
            return False
        clocks = self.sums.clocks
        cores = max(clocks.values(), default=0.0) / self.elapsed_s
        return set(clocks) == {"cpu-clock"} or (
            cores > 1.5 and abs(cores / round(cores) - 1) < WHOLE
        )

    def counters(self, path: str) -> HostCounters:
        sums, elapsed = self.sums, self.elapsed_s
        is_machine = self.is_machine or self.may_be_machine
        counts = {NAMES[name]: value for name, value in sums.counts.items() if name in NAMES}
        # Both clocks count the same time. Over all of a machine they count its idle cores too.
        cpu_s = None
        if not is_machine:
            cpu_s = next((sums.clocks[name] for name in CLOCKS if name in sums.clocks), None)
        busy_cores = None if is_machine else self.busy_cores
        return replace(
            HostCounters(path=path, **counts),  # type: ignore[arg-type]
            command=self.command,
            elapsed_s=elapsed,
            cpu_s=cpu_s,
            busy_cores=busy_cores if elapsed is None or cpu_s is None else cpu_s / elapsed,
        )

    def notes(self) -> Iterator[str]:
        intervals, sums = self.intervals, self.sums
        never = sums.not_counted - intervals.sums.counts.keys() - intervals.sums.clocks.keys()
        if never:
            yield f"not counted here: {_named(never)} (a virtual machine may not have them)"
        if self.is_machine:
            yield (
                "of the whole machine (perf stat -a): its clock runs on idle cores too, so busy "
                "cores are not known; give -p PID"
            )
        if not intervals.num:
            return
        taken = "the summary after them was read" if self.table.is_any else "their sums were read"
        still = f", in {intervals.num_still:,} of them nothing ran" if intervals.num_still else ""
        yield f"{intervals.num:,} intervals (perf stat -I){still}: {taken}"
        if sums is not self.table and (some := sums.not_counted - never):
            yield f"not counted in some of the intervals, so they have no sum: {_named(some)}"
        if self.may_be_machine and not self.is_machine:
            yield (
                "these may be of the whole machine (perf stat -a), with its idle cores: busy "
                "cores are not known; give -p PID"
            )


def _way(event: str) -> str:
    parts = event.split("_")
    return "read" if "rd" in parts else "written" if "wr" in parts else "both"


def _named(names: set[str]) -> str:
    return ", ".join(sorted(names)[:MAX_NAMED])


def _number(text: str) -> float | None:
    return finite_text(text.replace(",", ""), 0)
