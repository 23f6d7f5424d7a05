"""MIOpen's find-db: convolutions that it timed its solvers on, one a line.

    256-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-BF16-F=ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC:0.081,0,\
miopenConvolutionFwdAlgoImplicitGEMM;GemmFwdRest:0.52,7225344,miopenConvolutionFwdAlgoGEMM

MIOpen writes a user's own to ~/.config/miopen/*.ufdb.txt (MIOPEN_USER_DB_PATH) whenever it
searches, which PyTorch asks for with torch.backends.cudnn.benchmark = True, and comes with one of
AMD's for some devices (share/miopen/db/*.fdb.txt, or .bz2 in its sources). Nothing tells which job
a line is of. Times are milliseconds, of five launches; some versions subtract the first ones more
than once, so that all are too small alike, and now and then below zero: ratios hold, what is not
above zero is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from stepscope.core.recordings.find_db import FindDb, Searched
from stepscope.core.recordings.kernels import KernelRecording, KernelReport
from stepscope.errors import FormatError
from stepscope.readers.format import Reader
from stepscope.readers.rocm.miopen_keys import FIND_DB_LINE, first_lines, problem_of, solvers_of
from stepscope.readers.source import Source
from stepscope.readers.text_lines import TextLines

MAX_PROBLEMS = 50_000
"""Of a file. A job's own has hundreds, AMD's for one device up to 200,000."""
MAX_LINE_BYTES = 64 << 10
"""Real ones are below 1 KiB."""
WANTED = (
    "Give the .ufdb.txt of ~/.config/miopen, after a run with torch.backends.cudnn.benchmark = "
    "True."
)
DEVICE = re.compile(r"(gfx9[0-9a-f]{2}|gfx1[0-2][0-9a-f]{2})(?:_(\d{1,3})|([0-9a-f]{2,3}))\.")
"""Its compute units in decimal after an underscore up to 64, else in hexadecimal: gfx90a6e has
110."""


@dataclass(slots=True)
class Left:
    """What was not read of one file."""

    odd_lines: int = 0
    odd_solvers: int = 0
    untimed: int = 0
    empty: int = 0
    repeated: int = 0
    beyond: int = 0
    notes: list[str] = field(default_factory=list)

    def words(self, path: str) -> Iterator[str]:
        yield from self.notes
        reasons = (
            (self.odd_lines, "line(s) that are no convolution were left out"),
            (self.odd_solvers, "solver(s) cut off or not understood were left out"),
            (self.untimed, "solver(s) whose time is not above zero, or no number, were left out"),
            (self.empty, "convolution(s) with no solver left were left out"),
            (
                self.repeated,
                "convolution(s) told again were left out: the first stands, as with MIOpen",
            ),
            (self.beyond, "line(s) beyond what is kept were left out"),
        )
        yield from (f"{path}: {count:,} {what}" for count, what in reasons if count)


def is_mine(head: bytes, _name: str) -> bool:
    return any(FIND_DB_LINE.match(line) for line in first_lines(head))


def read(sources: Sequence[Source]) -> KernelReport:
    """All files; nothing tells whether they are of one job."""
    files_read = [_read_file(source) for source in sources]
    files = tuple(file for file, _ in files_read)
    notes = tuple(note for file, left in files_read for note in left.words(file.path))
    paths = tuple(file.path for file in files)
    recording = KernelRecording(format="miopen-find-db", paths=paths, notes=notes, find_dbs=files)
    return KernelReport(recordings=(recording,))


def _read_file(source: Source) -> tuple[FindDb, Left]:
    lines = TextLines(source, max_line_bytes=MAX_LINE_BYTES)
    searched: dict[str, Searched] = {}
    left = Left()
    for line in lines:
        if not line.strip():
            continue
        if len(searched) >= MAX_PROBLEMS:
            left.beyond += 1
            continue
        key, _, values = line.partition("=")
        problem = problem_of(key.strip())
        solvers, odd, untimed = solvers_of(values.strip()) if problem is not None else ((), 0, 0)
        left.odd_solvers += odd
        left.untimed += untimed
        if problem is None:
            left.odd_lines += 1
        elif not solvers:
            left.empty += 1
        elif key in searched:
            left.repeated += 1
        else:
            searched[key] = Searched(problem=problem, solvers=solvers)
    left.notes += lines.notes
    if not searched:
        why = "no line of it tells a convolution with a solver's time"
        if lines.notes:
            why = lines.notes[-1]
        raise FormatError(
            f"{source.label} begins like MIOpen's find-db, and nothing of it can be read: {why}. "
            f"{WANTED}"
        )
    name = PurePosixPath(source.label.replace("\\", "/")).name
    device = DEVICE.match(name)
    units = None if device is None else int(device[2]) if device[2] else int(device[3], 16)
    file = FindDb(
        path=source.label,
        searched=tuple(searched.values()),
        is_system=".fdb.txt" in name,
        device=None if device is None else device[1],
        num_units=units,
    )
    return file, left


READER = Reader(is_mine=is_mine, read_together=read)
