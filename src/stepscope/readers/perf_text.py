"""Linux perf's texts: the stacks of `perf script`, and the counters of `perf stat` (its table, and -x, CSV).

    python 13889 [003] 57969.605462:     250000 cpu-clock:pppH:
            24f81b take_gil+0x6b (/usr/lib/libpython3.11.so.1.0)

    1385.22 msec task-clock                       #    0.503 CPUs utilized

perf samples threads that run: a thread that waits is not in its stacks. Python's own functions have names there (`py::`) when the
job runs with PYTHONPERFSUPPORT=1 (3.12 or newer).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from stepscope.core.recording import Recording
from stepscope.core.system_report import HostCounters, HostStacks, SystemReport
from stepscope.errors import FormatError
from stepscope.readers.host_profile import told_of
from stepscope.readers.host_profile_stacks import MAX_DEPTH, Call, StackCounts, StackTally, stack_tables
from stepscope.readers.source import Source
from stepscope.readers.text_lines import TextLines

SAMPLE = re.compile(
    r"\s{0,40}(?P<comm>\S.{0,40}?)\s{1,40}(?:(?P<pid>-?\d{1,10})/)?(?P<tid>-?\d{1,10})\s{1,40}(?:\[(?P<cpu>\d{1,5})\]\s{1,40})?(?P<time>\d{1,12}\.\d{3,9}):"
    r"\s{1,40}(?:(?P<period>\d{1,18})\s{1,40})?(?P<event>[\w:./=,@-]{1,100}?):[uUkKpPhHGDST]*\s*.{0,400}"
)
ADDRESS = re.compile(r"[0-9a-f]{1,16}")
SCRIPT_START = re.compile(
    rb"(?:^|\n)\S.{0,40}?[ \t]{1,40}(?:-?\d{1,10}/)?\d{1,10}[ \t]{1,40}(?:\[\d{1,5}\][ \t]{1,40})?"
    rb"\d{1,12}\.\d{3,9}:[ \t]{1,40}(?:\d{1,18}[ \t]{1,40})?"
    rb"[\w:./=,@-]{1,100}:[uUkKpPhHGDST]*[^\n]{0,400}\n[ \t]{1,40}[0-9a-f]{1,16} "
)
STAT_START = re.compile(
    rb"(?:^|\n)[ \t]{0,40}Performance counter stats for "
    rb"|(?:^|\n)[\d.<][^,\n]{0,40},[^,\n]{0,20},[\w:./-]{2,60},\d{1,18},\d{1,3}\.\d\d,"
)
STAT_LINE = re.compile(
    r"\s*([\d.,]{1,30}|<not (?:supported|counted)>)\s+(?:(msec|nsec|sec|ns|ms|s|Joules|MiB)\s+)?([\w:./=-]{2,80})\b.{0,400}"
)
STAT_TIME = re.compile(r"\s*([\d.,]{1,30})\s+(?:\+-\s+[\d.,]+\s+)?seconds (time elapsed|user|sys)\b.{0,200}")
STAT_FOR = re.compile(r"\s*Performance counter stats for (.{1,2000}?)(?: \(\d+ runs\))?:\s*")
NAMES = {
    "context-switches": "context_switches",
    "cs": "context_switches",
    "cpu-migrations": "migrations",
    "migrations": "migrations",
    "page-faults": "page_faults",
    "faults": "page_faults",
    "major-faults": "major_faults",
    "instructions": "instructions",
    "cycles": "cycles",
    "cpu-cycles": "cycles",
    "cache-references": "cache_references",
    "cache-misses": "cache_misses",
    "branches": "branches",
    "branch-instructions": "branches",
    "branch-misses": "branch_misses",
}
CLOCKS = ("task-clock", "cpu-clock")
MACHINE = re.compile(r"'(?:system wide|CPU\(s\) )")
TO_SECONDS = {"msec": 1e-3, "ms": 1e-3, "nsec": 1e-9, "ns": 1e-9, "sec": 1.0, "s": 1.0}
KERNEL = "[kernel"
FAULT_CALLS = frozenset(
    {"asm_exc_page_fault", "exc_page_fault", "handle_mm_fault", "do_user_addr_fault", "page_fault", "do_page_fault"}
)
READ_CALLS = re.compile(
    r"page_cache_(?:sync_|async_)?ra|filemap_read_folio|(?:__)?do_page_cache_readahead|read_pages$|io_schedule|folio_wait_bit"
)
"""The kernel fetches a file's pages that it did not hold."""
INTERPRETER = re.compile(r"(?:^|/)(?:libpython[\d.]+[a-z]*\.so[\d.]*|python\d?(?:\.\d+)?)$")
MAX_COUNTERS = 1000
MAX_EVENTS = 64


def is_mine(head: bytes, _name: str) -> bool:
    return STAT_START.search(head) is not None or SCRIPT_START.search(head) is not None


def read(sources: Sequence[Source]) -> SystemReport:
    """All files, one Recording each."""
    return reduce(lambda one, two: one.joined(two), [_read(source) for source in sources])


def _read(source: Source) -> SystemReport:
    start = b""
    for line in TextLines(source):
        start += line.encode("utf-8", "replace") + b"\n"
        if len(start) > 64 << 10:
            break
    return _read_stat(source) if STAT_START.search(start) else _read_script(source)


def _read_stat(source: Source) -> SystemReport:
    lines, values = TextLines(source, max_lines=1_000_000), _Counted()
    for line in lines:
        values.take(line)
    if not values.counts and values.times.get("time elapsed") is None:
        raise FormatError(f"{source.label}: no counter in it. Record with perf stat -d -o stat.txt -p PID -- sleep 30")
    counters = values.counters(source.label)
    notes = list(lines.notes)
    if values.not_counted:
        notes.append(f"not counted here: {', '.join(sorted(values.not_counted)[:8])} (a virtual machine may not have them)")
    if values.is_machine:
        notes.append(
            "of the whole machine (perf stat -a): its clock runs on idle cores too, so busy cores are not told; give -p PID"
        )
    recording = Recording(format="perf", paths=(source.label,), lines=_stat_lines(counters), notes=tuple(notes))
    return SystemReport(counters=(counters,), recordings=(recording,))


@dataclass(slots=True)
class _Counted:
    counts: dict[str, float] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    """Seconds on cores, by the clock that counted them."""
    busy_cores: float | None = None
    not_counted: set[str] = field(default_factory=set)
    command: str | None = None

    def take(self, line: str) -> None:
        told = STAT_FOR.fullmatch(line)
        if told is not None:
            self.command = told[1][:200]
            return
        told = STAT_TIME.fullmatch(line)
        if told is not None:
            self.times[told[2]] = _number(told[1]) or 0.0
            return
        cells = line.split(",")
        if len(cells) >= 5 and not line[:1].isspace():
            self._put(cells[0], cells[1], cells[2])
            if len(cells) >= 7 and cells[2] in CLOCKS and cells[6].strip() == "CPUs utilized":
                self.busy_cores = _number(cells[5])
            return
        told = STAT_LINE.fullmatch(line)
        if told is not None:
            self._put(told[1], told[2] or "", told[3])

    def _put(self, text: str, unit: str, event: str) -> None:
        """Counters of several lines (of unlike cores, of intervals) add up."""
        name = re.sub(r":[a-zA-Z]{1,6}$", "", event.split("/")[1] if event.count("/") >= 2 else event)
        value = _number(text)
        if value is None:
            if text.startswith("<not") and len(self.not_counted) < MAX_COUNTERS:
                self.not_counted.add(name[:80])
        elif name in CLOCKS:
            self.clocks[name] = self.clocks.get(name, 0.0) + value * TO_SECONDS.get(unit, 1e-3)
        elif name in self.counts or len(self.counts) < MAX_COUNTERS:
            self.counts[name] = self.counts.get(name, 0.0) + value

    @property
    def is_machine(self) -> bool:
        """`perf stat -a` or -C: no process's."""
        return self.command is not None and MACHINE.match(self.command) is not None

    def counters(self, path: str) -> HostCounters:
        known = {NAMES[name]: value for name, value in self.counts.items() if name in NAMES}
        elapsed = self.times.get("time elapsed") or None
        # Both clocks count the same time. Over all of a machine they count its idle cores too.
        cpu_s = None if self.is_machine else next((self.clocks[name] for name in CLOCKS if name in self.clocks), None)
        told = None if self.is_machine else self.busy_cores
        return replace(
            HostCounters(path=path, **known),  # type: ignore[arg-type]
            command=self.command,
            elapsed_s=elapsed,
            cpu_s=cpu_s,
            user_s=self.times.get("user"),
            system_s=self.times.get("sys"),
            busy_cores=told if elapsed is None or cpu_s is None else cpu_s / elapsed,
            others={name: value for name, value in self.counts.items() if name not in NAMES},
        )


def _stat_lines(one: HostCounters) -> tuple[tuple[str, str], ...]:
    per_s = one.switches_per_cpu_s
    told = (
        ("command", one.command),
        ("elapsed", None if one.elapsed_s is None else f"{one.elapsed_s:.2f} s"),
        ("on cores", None if one.cpu_s is None else f"{one.cpu_s:.2f} s"),
        ("busy cores", None if one.busy_cores is None else f"{one.busy_cores:.2f}"),
        ("instructions per cycle", None if one.instructions_per_cycle is None else f"{one.instructions_per_cycle:.2f}"),
        ("cache misses", None if one.cache_miss_share is None else f"{one.cache_miss_share:.1%} of references"),
        ("branch misses", None if one.branch_miss_share is None else f"{one.branch_miss_share:.1%}"),
        ("context switches", None if per_s is None else f"{per_s:,.0f} for each second on a core"),
        ("page faults", None if one.page_faults is None else f"{one.page_faults:,.0f}"),
        ("major faults", None if one.major_faults is None else f"{one.major_faults:,.0f}"),
    )
    return tuple((name, value) for name, value in told if value is not None)


@dataclass(slots=True)
class _Samples:
    """What the samples' first lines tell."""

    cores: set[int] = field(default_factory=set)
    first_s: float | None = None
    last_s: float | None = None
    clock_ns: int = 0
    num_clock: int = 0
    num: int = 0
    kernel: int = 0
    faults: int = 0
    page_reads: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def take(self, told: re.Match[str], calls: tuple[Call, ...]) -> None:
        self.num += 1
        if told["event"] in self.events or len(self.events) < MAX_EVENTS:
            self.events[told["event"]] += 1
        if told["cpu"] is not None and len(self.cores) < 65_536:
            self.cores.add(int(told["cpu"]))
        time_s = float(told["time"])
        self.first_s = time_s if self.first_s is None else min(self.first_s, time_s)
        self.last_s = time_s if self.last_s is None else max(self.last_s, time_s)
        if told["period"] is not None and told["event"].partition(":")[0] in CLOCKS:
            self.clock_ns += int(told["period"])
            self.num_clock += 1
        self.kernel += bool(calls) and (calls[-1].file or "").startswith(KERNEL)
        self.faults += any(call.name in FAULT_CALLS for call in calls)
        self.page_reads += any(READ_CALLS.match(call.name) for call in calls if (call.file or "").startswith(KERNEL))

    def added(self, stacks: HostStacks) -> HostStacks:
        span = None if self.first_s is None or self.last_s is None else self.last_s - self.first_s
        is_clock = self.num_clock == self.num and bool(span)
        return replace(
            stacks,
            span_s=span,
            num_cores=len(self.cores) or None,
            busy_cores=self.clock_ns * 1e-9 / span if is_clock and span else None,
            kernel_share=self.kernel / self.num if stacks.functions else None,
            page_fault_share=self.faults / self.num if stacks.functions else None,
            page_read_share=self.page_reads / self.num if stacks.functions else None,
        )


def _read_script(source: Source) -> SystemReport:
    lines, tally, samples = TextLines(source), StackTally(), _Samples()
    counts, interpreter = StackCounts(tally), 0
    for told, calls in _stacks(lines):
        samples.take(told, calls)
        interpreter += bool(calls) and (INTERPRETER.search(calls[-1].file or "") is not None or not calls[-1].is_native)
        counts.add(calls, 1.0, f"{told['comm']} {told['tid']}"[:80])
    counts.flush()
    if not samples.num:
        raise FormatError(
            f"{source.label}: no sample in it. Record with perf record -g -p PID -- sleep 10; perf script > perf.txt"
        )
    stacks = samples.added(tally.stacks(tool="perf", path=source.label, unit="samples"))
    has_stacks = bool(stacks.functions)
    stacks = replace(stacks, gil_wait_share=None, interpreter_share=interpreter / samples.num if has_stacks else None)
    stacks = replace(stacks, threads=tuple(replace(one, gil_wait_share=None) for one in stacks.threads))
    notes = [*lines.notes, *tally.notes(source.label)]
    if len(samples.events) > 1:
        named = ", ".join(f"{count:,} of {event}" for event, count in samples.events.most_common(4))
        notes.append(f"{source.label}: samples of several events are counted alike ({named}): record one, -e cpu-clock")
    if not has_stacks:
        notes.append(f"{source.label}: samples without stacks: record with perf record -g")
    elif not stacks.training:
        notes.append("Python's functions have no names here: PYTHONPERFSUPPORT=1 gives them (Python 3.12 or newer)")
    recording = Recording(
        format="perf", paths=(source.label,), lines=told_of(stacks), tables=stack_tables(stacks), notes=tuple(notes)
    )
    return SystemReport(stacks=(stacks,), recordings=(recording,))


def _stacks(lines: TextLines) -> Iterator[tuple[re.Match[str], tuple[Call, ...]]]:
    """Each sample's first line, and its calls, the innermost last."""
    told: re.Match[str] | None = None
    calls: list[Call] = []
    for line in lines:
        if line[:1].isspace() and told is not None:
            found = _call(line.strip()) if len(calls) < MAX_DEPTH else None
            if found is not None:
                calls.append(found)
            continue
        if told is not None:
            yield told, tuple(reversed(calls))
        told, calls = SAMPLE.fullmatch(line) if line else None, []
    if told is not None:
        yield told, tuple(reversed(calls))


def _call(line: str) -> Call | None:
    """`address name+0xoffset (file)`."""
    address, _, rest = line.partition(" ")
    rest = rest.removesuffix(" (deleted))") + ")" if rest.endswith(" (deleted))") else rest
    name, _, file = rest[:-1].rpartition(" (") if rest.endswith(")") else ("", "", "")
    if not name or ADDRESS.fullmatch(address) is None:
        return None
    symbol, plus, offset = name.rpartition("+0x")
    symbol = symbol if plus and ADDRESS.fullmatch(offset) else name
    python = symbol.removeprefix("py::")
    function, colon, script = python.partition(":")
    if python != symbol and colon:
        return Call(function[:300], script, None, is_native=False)
    return Call(symbol[:300], file, None, is_native=True)


def _number(text: str) -> float | None:
    text = text.replace(",", "")
    try:
        return float(text) if len(text) <= 30 and text[:1].isdigit() else None
    except ValueError:
        return None
