"""DeepSpeed's two tables: what its comms logger counted, and its flops profiler's summary.

    Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     ...
    broadcast
                        98.25 MB            1                   8317.12             8317.12             0.20                0.19

The comms logger waits for each collective, and its latency has the wait for later ranks in it; with
show_straggler a second table takes that apart. The flops profiler measures one step, with hooks on
every module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.recordings.training_log import Figure, LoggedCollective
from stepscope.protocol.untrusted import finite
from stepscope.readers.frameworks.lines import NUMBER, ns_of_ms, number

MAX_ROWS = 1024
MAX_OPS = 128
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
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6, "Z": 7, "Y": 8}

FLOPS = re.compile(r"^(?:\[\w{1,20}\]:\s?)?([a-zA-Z][^:]{1,90}):\s{2,80}(\S.{0,60}?)\s*$")
UNIT = re.compile(rf"({NUMBER}) ?([TGMKmu]?)(FLOPS|MACs|s)?\s*$")
FACTORS = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6}
SHOWN = (
    "params per GPU",
    "fwd MACs per GPU",
    "fwd flops per GPU",
    "fwd latency",
    "bwd latency",
    "step latency",
    "iter latency",
    "samples/second",
)


def size_of(text: str) -> int | None:
    """`98.25 MB` in bytes: DeepSpeed's MB are of 1024 x 1024."""
    found = SIZE.fullmatch(text.strip())
    value = number(found[1]) if found else None
    return (
        round(value * 1024 ** POWERS[found[2]])
        if found and value is not None and value < 1e9
        else None
    )


@dataclass(slots=True)
class _Counted:
    num: int
    total_ns: int
    mean_ns: int
    algbw: float | None = None
    busbw: float | None = None
    straggler_ns: int | None = None


@dataclass(slots=True)
class CommsTable:
    """The last table of its kind: a later one counts from the run's beginning too."""

    table: list[tuple[tuple[str, str], _Counted]] = field(default_factory=list)
    """Two sizes of an operation may be written alike: they are rounded."""
    counted: dict[tuple[str, str], _Counted] = field(default_factory=dict)
    """From single lines, where the logger is verbose."""
    mode: str | None = None
    op: str | None = None
    gap: int = 0
    num_left_out: int = 0

    def take(self, line: str) -> bool:
        if "Comm. Op" in line and (found := HEADER.search(line)):
            self.mode = "straggler" if "comm lat" in found[1] else "summary"
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

    def _take_row(self, op: str, row: re.Match[str]) -> None:
        key, total, third = (op, row[1]), ns_of_ms(row[3]), ns_of_ms(row[4])
        if self.mode == "straggler":
            twin = next(
                (row for name, row in self.table if name == key and row.straggler_ns is None), None
            )
            if twin is not None:
                twin.straggler_ns = third
        elif total is not None and third is not None:
            if len(self.table) < MAX_ROWS:
                self.table.append(
                    (key, _Counted(int(row[2]), total, third, number(row[5]), number(row[6])))
                )
            else:
                self.num_left_out += 1

    def count(self, op: str, size: str, ns: int) -> None:
        """One collective, of a line of its own."""
        row = self.counted.get((op, size))
        if row is None and len(self.counted) >= MAX_ROWS:
            self.num_left_out += 1
        elif row is None:
            self.counted[(op, size)] = _Counted(1, ns, ns)
        else:
            row.num, row.total_ns = row.num + 1, row.total_ns + ns
            row.mean_ns = row.total_ns // row.num

    def rows(self) -> tuple[LoggedCollective, ...]:
        """The longest first."""
        made = [
            LoggedCollective(
                op=op,
                size=size,
                size_bytes=size_of(size),
                num=row.num,
                total_ns=row.total_ns,
                mean_ns=row.mean_ns,
                algbw_gbit_s=row.algbw,
                busbw_gbit_s=row.busbw,
                straggler_ns=row.straggler_ns,
            )
            for (op, size), row in (self.table or list(self.counted.items()))
        ]
        return tuple(sorted(made, key=lambda row: (-row.total_ns, row.op, row.size)))

    def notes(self) -> tuple[str, ...]:
        return (
            (f"{self.num_left_out} further row(s) of the comms logger were left out",)
            if self.num_left_out
            else ()
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
        found = FLOPS.match(line)
        if found is not None and len(self.figures) < 64:
            self.figures[found[1].strip()] = found[2]
        return found is not None

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
            found = UNIT.match(value)
            if (
                name.startswith("FLOPS per GPU = ")
                and name.endswith("iter latency")
                and found
                and found[3] == "FLOPS"
            ):
                tera = finite(float(found[1]) * FACTORS[found[2]] / 1e12)
                words = f"TFLOP/s of one GPU, of the step that was profiled: {name[16:]}"
                return None if tera is None else Figure(value=tera, convention=words)
        return None
