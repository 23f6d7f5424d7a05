"""DeepSpeed's two tables: what its comms logger counted, and its flops profiler's summary.

    Comm. Op     Message Size    Count    Total Latency(ms)    Avg Latency(ms)    tput_avg (Gbps)...
    broadcast
                 98.25 MB        1        8317.12              8317.12            0.20           ...

The comms logger waits for each collective, and its latency has the wait for later ranks in it; with
show_straggler a second table takes that apart. The flops profiler measures one step, with hooks on
every module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from msgspec.structs import replace

from stepscope.core.recordings.training_log import Figure, LoggedCollective
from stepscope.protocol.untrusted import finite
from stepscope.readers.text_lines import NUMBER, ns_of_ms, number

MAX_ROWS = 1024
MAX_GAP = 2
"""Lines of others inside a table after which it has ended: ranks write into one file."""

HEADER = re.compile(r"Comm\. Op\s+Message Size\s+Count\s+Total (Latency\(ms\)|comm lat\(ms\))\s+")
OP = re.compile(
    r"^\s{0,4}(?:\[\w{1,20}\]:\s?)?([A-Za-z_][\w.:<>-]{1,79}(?: \| \[Caller Func: "
    r"[\w.<>-]{1,80}\])?)\s*$"
)
ROW = re.compile(
    rf"\s{{4,40}}(\d[\d.]{{0,19}} "
    rf"?[KMGTPEZY]?B)\s+(\d{{1,15}})\s+({NUMBER})\s+({NUMBER})\s+({NUMBER})\s+({NUMBER})\s*$"
)
SIZE = re.compile(r"([\d.]{1,20}) ?([KMGTPEZY]?)B")
POWERS = {letter: 1024.0**power for power, letter in enumerate(("", *"KMGTPEZY"))}

FLOPS = re.compile(r"^(?:\[\w{1,20}\]:\s?)?([a-zA-Z][^:]{1,90}):\s{2,80}(\S.{0,60}?)\s*$")
UNIT = re.compile(rf"({NUMBER}) ?([TGMKmu]?)(FLOPS|MACs|s)?\s*$")
FACTORS = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6}
SHOWN = (
    "params per GPU", "fwd MACs per GPU", "fwd flops per GPU", "fwd latency", "bwd latency",
    "step latency", "iter latency", "samples/second",
)  # fmt: skip


def size_of(text: str) -> int | None:
    """`98.25 MB` in bytes: DeepSpeed's MB are of 1024 x 1024."""
    match = SIZE.fullmatch(text.strip())
    value = number(match[1]) if match else None
    if match is None or value is None or value >= 1e9:
        return None
    return round(value * POWERS[match[2]])


@dataclass(slots=True)
class CommsTable:
    """The last table of its kind: a later one counts from the run's beginning too."""

    table: list[LoggedCollective] = field(default_factory=list)
    """Two sizes of an operation may be written alike: they are rounded."""
    counted: dict[tuple[str, str], LoggedCollective] = field(default_factory=dict)
    """Counts from single lines, where the logger is verbose."""
    mode: str | None = None
    op: str | None = None
    gap: int = 0
    num_left_out: int = 0

    def take(self, line: str) -> bool:
        if "Comm. Op" in line and (header := HEADER.search(line)):
            self.mode = "straggler" if "comm lat" in header[1] else "summary"
            if self.mode == "summary":
                self.table.clear()
            self.op, self.gap = None, 0
            return True
        if self.mode is None:
            return False
        row = ROW.search(line)
        if row is not None and self.op is not None:
            self.gap = 0
            self._take_row(self.op, row)
            return True
        if op := OP.match(line):
            self.op, self.gap = op[1], 0
            return True
        self.gap += 1
        if self.gap > MAX_GAP:
            self.mode = None
        return False

    def _take_row(self, op: str, match: re.Match[str]) -> None:
        size, total, third = match[1], ns_of_ms(match[3]), ns_of_ms(match[4])
        if self.mode == "straggler":
            for index, row in enumerate(self.table):
                if (row.op, row.size, row.straggler_ns) == (op, size, None):
                    self.table[index] = replace(row, straggler_ns=third)
                    return
        elif total is not None and third is not None:
            row = _collective(op, size, int(match[2]), total, third)
            row = replace(row, busbw_gbit_s=number(match[6]))
            if len(self.table) < MAX_ROWS:
                self.table.append(row)
            else:
                self.num_left_out += 1

    def count(self, op: str, size: str, ns: int) -> None:
        """One collective, of a line of its own."""
        row = self.counted.get((op, size)) or _collective(op, size, 0, 0, 0)
        if not row.num and len(self.counted) >= MAX_ROWS:
            self.num_left_out += 1
            return
        num, total_ns = row.num + 1, row.total_ns + ns
        self.counted[op, size] = _collective(op, size, num, total_ns, total_ns // num)

    def rows(self) -> tuple[LoggedCollective, ...]:
        """The longest first."""
        rows = self.table or list(self.counted.values())
        return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.op, row.size)))

    def notes(self) -> tuple[str, ...]:
        if not self.num_left_out:
            return ()
        return (f"{self.num_left_out} further row(s) of the comms logger were left out",)


def _collective(op: str, size: str, num: int, total_ns: int, mean_ns: int) -> LoggedCollective:
    return LoggedCollective(
        op=op, size=size, size_bytes=size_of(size), num=num, total_ns=total_ns, mean_ns=mean_ns
    )


@dataclass(slots=True)
class FlopsBlock:
    """The summary of the flops profiler; the last one, where there are several."""

    figures: dict[str, str] = field(default_factory=dict)
    is_open: bool = False

    def take(self, line: str) -> bool:
        if "DeepSpeed Flops Profiler" in line:
            self.is_open = True
            self.figures.clear()
            return True
        if not self.is_open:
            return False
        if "Aggregated Profile" in line or "Detailed Profile" in line:
            self.is_open = False
            return True
        match = FLOPS.match(line)
        if match is not None and len(self.figures) < 64:
            self.figures[match[1].strip()] = match[2]
        return match is not None

    @property
    def world_size(self) -> int | None:
        value = number(self.figures.get("world size", ""))
        return int(value) if value is not None and 0 < value < 1e7 else None

    def remarks(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, f"{self.figures[name]} (flops profiler, one step)")
            for name in SHOWN
            if name in self.figures
        )

    def tflops(self) -> Figure | None:
        for name, value in self.figures.items():
            is_whole_step = name.startswith("FLOPS per GPU = ") and name.endswith("iter latency")
            match = UNIT.match(value) if is_whole_step else None
            if match and match[3] == "FLOPS":
                tera = finite(float(match[1]) * FACTORS[match[2]] / 1e12)
                words = f"TFLOP/s of one GPU, of the step that was profiled: {name[16:]}"
                return None if tera is None else Figure(value=tera, convention=words)
        return None
