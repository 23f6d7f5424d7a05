"""Linux perf's texts: the stacks of `perf script`, the counters of `perf stat` (perf_stat.py) and
the table of `perf report --stdio`.

    python 13889 [003] 57969.605462:     250000 cpu-clock:pppH:
            24f81b take_gil+0x6b (/usr/lib/libpython3.11.so.1.0)

    # Samples: 4K of event 'cycles'
    # Overhead  Command  Shared Object      Symbol
        31.02%  python   libpython3.11.so   [.] _PyEval_EvalFrameDefault

perf samples threads that run: a thread that waits is not in its stacks. Python's own functions have
names there (`py::`) when the job runs with PYTHONPERFSUPPORT=1 (3.12 or newer).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from stepscope.api import FormatError, Reader, Source, SystemRecording, TextLines
from stepscope.core.recordings.system import HostStacks, HostThread, HotSpot
from stepscope.recordings.host.perf_stat import CLOCKS, is_stat, read_stat
from stepscope.recordings.host.profile_stacks import MAX_DEPTH, Call, StackCounts, StackTally

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
KERNEL = "[kernel"
FAULT_CALLS = frozenset({
    "asm_exc_page_fault", "exc_page_fault", "handle_mm_fault", "do_user_addr_fault", "page_fault",
    "do_page_fault",
})  # fmt: skip
READ_CALLS = re.compile(
    r"page_cache_(?:sync_|async_)?ra|filemap_read_folio|(?:__)?do_page_cache_readahead|read_pages$|io_schedule|folio_wait_bit"
)
"""The kernel fetches a file's pages that it did not hold."""
INTERPRETER = re.compile(r"(?:^|/)(?:libpython[\d.]+[a-z]*\.so[\d.]*|python\d?(?:\.\d+)?)$")
MAX_EVENTS = 64


def is_mine(head: bytes, _name: str) -> bool:
    return is_stat(head) or is_report(head) or SCRIPT_START.search(head) is not None


def read_file(source: Source) -> SystemRecording:
    start = b""
    for line in TextLines(source):
        start += line.encode("utf-8", "replace") + b"\n"
        if len(start) > 64 << 10:
            break
    if is_report(start):
        return read_report(source)
    return read_stat(source) if is_stat(start) else _read_script(source)


@dataclass(slots=True)
class _Samples:
    """What the samples' first lines say."""

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

    def take(self, sample: re.Match[str], calls: tuple[Call, ...]) -> None:
        self.num += 1
        if sample["event"] in self.events or len(self.events) < MAX_EVENTS:
            self.events[sample["event"]] += 1
        if sample["cpu"] is not None and len(self.cores) < 65_536:
            self.cores.add(int(sample["cpu"]))
        time_s = float(sample["time"])
        self.first_s = time_s if self.first_s is None else min(self.first_s, time_s)
        self.last_s = time_s if self.last_s is None else max(self.last_s, time_s)
        if sample["period"] is not None and sample["event"].partition(":")[0] in CLOCKS:
            self.clock_ns += int(sample["period"])
            self.num_clock += 1
        self.kernel += bool(calls) and (calls[-1].file or "").startswith(KERNEL)
        self.faults += any(call.name in FAULT_CALLS for call in calls)
        self.page_reads += any(
            READ_CALLS.match(call.name) for call in calls if (call.file or "").startswith(KERNEL)
        )

    def added(self, stacks: HostStacks) -> HostStacks:
        span = None if self.first_s is None or self.last_s is None else self.last_s - self.first_s
        is_clock = self.num_clock == self.num and bool(span)
        return replace(
            stacks,
            num_cores=len(self.cores) or None,
            busy_cores=self.clock_ns * 1e-9 / span if is_clock and span else None,
            kernel_share=self.kernel / self.num if stacks.functions else None,
            page_fault_share=self.faults / self.num if stacks.functions else None,
            page_read_share=self.page_reads / self.num if stacks.functions else None,
        )


def _read_script(source: Source) -> SystemRecording:
    lines, tally, samples = TextLines(source), StackTally(), _Samples()
    counts, interpreter = StackCounts(tally), 0
    for sample, calls in _stacks(lines):
        samples.take(sample, calls)
        interpreter += bool(calls) and (
            INTERPRETER.search(calls[-1].file or "") is not None or not calls[-1].is_native
        )
        counts.add(calls, 1.0, f"{sample['comm']} {sample['tid']}"[:80])
    counts.flush()
    if not samples.num:
        raise FormatError(
            f"{source.label}: no sample in it. Record with perf record -g -p PID -- sleep 10; "
            "perf script > perf.txt"
        )
    stacks = samples.added(tally.stacks(tool="perf", path=source.label, unit="samples"))
    has_stacks = bool(stacks.functions)
    stacks = replace(
        stacks,
        gil_wait_share=None,
        interpreter_share=interpreter / samples.num if has_stacks else None,
    )
    stacks = replace(
        stacks, threads=tuple(replace(thread, gil_wait_share=None) for thread in stacks.threads)
    )
    notes = [*lines.notes, *tally.notes(source.label)]
    if len(samples.events) > 1:
        named = ", ".join(f"{count:,} of {event}" for event, count in samples.events.most_common(4))
        notes.append(
            f"{source.label}: samples of several events are counted alike ({named}): record one, "
            "-e cpu-clock"
        )
    if not has_stacks:
        notes.append(f"{source.label}: samples without stacks: record with perf record -g")
    elif not stacks.training:
        notes.append(
            "Python's functions have no names here: PYTHONPERFSUPPORT=1 gives them (Python 3.12 "
            "or newer)"
        )
    return SystemRecording(
        format="perf", paths=(source.label,), notes=tuple(notes), stacks=(stacks,)
    )


def _stacks(lines: TextLines) -> Iterator[tuple[re.Match[str], tuple[Call, ...]]]:
    """Each sample's first line, and its calls, the innermost last."""
    sample: re.Match[str] | None = None
    calls: list[Call] = []
    for line in lines:
        if line[:1].isspace() and sample is not None:
            call = _call(line.strip()) if len(calls) < MAX_DEPTH else None
            if call is not None:
                calls.append(call)
            continue
        if sample is not None:
            yield sample, tuple(reversed(calls))
        sample, calls = SAMPLE.fullmatch(line) if line else None, []
    if sample is not None:
        yield sample, tuple(reversed(calls))


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


START = re.compile(rb"(?:^|\n)# (?:Overhead|Children {1,9}Self) [^\n]{0,200}Symbol")
COLUMNS = re.compile(r"# {1,4}(?:Overhead|Children {1,9}Self) .{0,200}Symbol")
SAMPLES = re.compile(r"# Samples: ([\d.]{1,12})([KMG]?)\s{1,4}of event")
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
ROW = r"\s{1,20}(?P<first>\d{1,3}\.\d{1,4})%(?:\s{1,20}(?P<second>\d{1,3}\.\d{1,4})%)?\s{1,20}"
REST = (
    r"(?P<command>\S{1,60})\s{1,60}(?P<object>\S.{0,200}?)\s{1,60}\[(?P<where>[.kguH])\]\s"
    r"(?P<symbol>\S.{0,300}?)\s*$"
)
COUNTED = r"\d{1,12}\s{1,20}"
"""Column of -n: how many samples a row is."""
PLAIN_ROW, COUNTED_ROW = re.compile(ROW + REST), re.compile(ROW + COUNTED + REST)
MAX_FUNCTIONS = 1000
MAX_COMMANDS = 40


def is_report(head: bytes) -> bool:
    return START.search(head) is not None


def read_report(source: Source) -> SystemRecording:
    lines, spots, amount, kernel = TextLines(source), list[HotSpot](), 0.0, 0.0
    interpreter = 0.0
    commands: dict[str, float] = {}
    row = PLAIN_ROW
    for line in lines:
        if match := SAMPLES.match(line):
            amount += float(match[1]) * SCALES[match[2]]
        elif COLUMNS.match(line):
            row = COUNTED_ROW if " Samples " in line else PLAIN_ROW
        elif (match := row.match(line)) and len(spots) < MAX_FUNCTIONS:
            total, own = match["first"], match["second"] or match["first"]
            kernel += float(own) / 100 if match["where"] == "k" else 0.0
            interpreter += float(own) / 100 if INTERPRETER.search(match["object"]) else 0.0
            name = match["command"]
            commands[name] = commands.get(name, 0.0) + float(own) / 100
            spots.append(
                HotSpot(
                    name=match["symbol"],
                    file=match["object"],
                    self_share=min(1.0, float(own) / 100),
                    total_share=min(1.0, float(total) / 100),
                )
            )
    if not spots:
        raise FormatError(
            f"{source.label}: no row of perf report in it. Record with: perf report --stdio "
            "--no-children > report.txt"
        )
    stacks = HostStacks(
        tool="perf report",
        path=source.label,
        unit="samples",
        amount=amount,
        functions=tuple(spots),
        threads=tuple(
            HostThread(name=name, share=min(1.0, share))
            for name, share in sorted(commands.items(), key=lambda item: -item[1])[:MAX_COMMANDS]
        ),
        has_native=True,
        kernel_share=min(1.0, kernel),
        interpreter_share=min(1.0, interpreter),
    )
    return SystemRecording(
        format="perf", paths=(source.label,), notes=tuple(lines.notes), stacks=(stacks,)
    )


READER = Reader(is_mine=is_mine, read_file=read_file)
