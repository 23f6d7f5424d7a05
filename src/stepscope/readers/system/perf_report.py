"""The table of `perf report --stdio`: where cores spent their time, function by function.

    # Samples: 4K of event 'cycles'
    # Overhead  Command  Shared Object      Symbol
        31.02%  python   libpython3.11.so   [.] _PyEval_EvalFrameDefault

With call graphs there are two shares, with what a function calls (Children) and without (Self).
"""

from __future__ import annotations

import re

from stepscope.core.recordings.system import HostStacks, HotSpot, SystemRecording
from stepscope.errors import FormatError
from stepscope.readers.source import Source
from stepscope.readers.text_lines import TextLines

START = re.compile(rb"(?:^|\n)# (?:Overhead|Children {1,9}Self) [^\n]{0,200}Symbol")
SAMPLES = re.compile(r"# Samples: ([\d.]{1,12})([KMG]?)\s{1,4}of event")
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
ROW = re.compile(
    r"\s{1,20}(?P<first>\d{1,3}\.\d{1,4})%(?:\s{1,20}(?P<second>\d{1,3}\.\d{1,4})%)?\s{1,20}"
    r"(?P<command>\S{1,60})\s{1,60}(?P<object>\S.{0,200}?)\s{1,60}\[(?P<where>[.kguH])\]\s"
    r"(?P<symbol>\S.{0,300}?)\s*$"
)
MAX_FUNCTIONS = 1000


def is_report(head: bytes) -> bool:
    return START.search(head) is not None


def read_report(source: Source) -> SystemRecording:
    lines, spots, amount, kernel = TextLines(source), list[HotSpot](), 0.0, 0.0
    for line in lines:
        if match := SAMPLES.match(line):
            amount += float(match[1]) * SCALES[match[2]]
        elif (match := ROW.match(line)) and len(spots) < MAX_FUNCTIONS:
            total, own = match["first"], match["second"] or match["first"]
            kernel += float(own) / 100 if match["where"] == "k" else 0.0
            spots.append(
                HotSpot(
                    name=match["symbol"],
                    file=match["object"],
                    self_share=min(1.0, float(own) / 100),
                    total_share=min(1.0, float(total) / 100),
                    is_native=True,
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
        has_native=True,
        kernel_share=min(1.0, kernel),
    )
    return SystemRecording(
        format="perf", paths=(source.label,), notes=tuple(lines.notes), stacks=(stacks,)
    )
