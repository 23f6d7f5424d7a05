"""What rocm-bandwidth-test prints of all pairs of a machine's devices.

          Device: 0,  AMD EPYC 7763 64-Core Processor
          Device: 1,  AMD Instinct MI250X,  GPU-1,  c1:0.0

          Unidirectional copy peak bandwidth GB/s

          D/D       0           1
          0         N/A         28.000
          1         28.200      1230.000

Copies both ways at once stand in a second table, which is not read: one way alone says what a link
gives.
"""

from __future__ import annotations

import re

from stepscope.api import FormatError, Reader, Source, SystemRecording, TextLines
from stepscope.core.recordings.system import CopyRate, CopyTest
from stepscope.protocol.untrusted import finite_text

FORMAT = "rocm-bandwidth-test"
START = re.compile(
    rb"RocmBandwidthTest Version|Unidirectional (?:copy )?peak bandwidth GB/s", re.IGNORECASE
)
DEVICE = re.compile(r"\s{0,40}Device(?: Index)?:\s{1,40}(\d{1,4})(?:,\s{1,20}(.{1,200}?))?\s*")
TYPE = re.compile(r"\s{0,40}Device Type:\s{1,40}(CPU|GPU)\s*")
ONE_WAY = re.compile(r"\s{0,40}Unidirectional (?:copy )?peak bandwidth GB/s\s*", re.IGNORECASE)
OTHER = re.compile(
    r"\s{0,40}(?:Bidirectional|Inter-Device|Data Path Validation)\b.{0,80}", re.IGNORECASE
)
GPU = re.compile(r"\bGPU\b|Instinct|Radeon|\bMI\d{2,3}\w?\b")
INDEX = re.compile(r"[0-9]{1,4}")
MAX_DEVICES = 256
HINT = "Record with rocm-bandwidth-test > bandwidth.txt"


def is_mine(head: bytes, _name: str) -> bool:
    return START.search(head) is not None


def read_file(source: Source) -> SystemRecording:
    lines = TextLines(source)
    names: dict[int, str] = {}
    gpus: set[int] = set()
    rates: dict[tuple[int, int], float] = {}
    columns: list[int] | None = None
    is_table, last = False, None
    for line in lines:
        if device := DEVICE.fullmatch(line):
            last = int(device[1])
            names[last] = (device[2] or names.get(last, "")).partition(",")[0]
            if GPU.search(device[2] or ""):
                gpus.add(last)
        elif (kind := TYPE.fullmatch(line)) and last is not None:
            gpus |= {last} if kind[1] == "GPU" else set()
        elif ONE_WAY.fullmatch(line):
            is_table, columns = True, None
        elif OTHER.fullmatch(line):
            is_table = False
        elif is_table:
            columns = _take(line.split(), columns, rates)
    if not rates:
        raise FormatError(f"{source.label}: no table of copies one way in it. {HINT}")
    labels = {index: f"{index} ({name})" if name else str(index) for index, name in names.items()}
    copies = tuple(
        CopyRate(
            source=labels.get(first, str(first)),
            target=labels.get(second, str(second)),
            bytes_per_s=rate,
            is_from_host=first not in gpus,
            is_to_host=second not in gpus,
        )
        for (first, second), rate in sorted(rates.items())
        if first != second and (first in gpus or second in gpus or not gpus)
    )
    test = CopyTest(path=source.label, tool=FORMAT, copies=copies)
    return SystemRecording(
        format=FORMAT, paths=(source.label,), notes=tuple(lines.notes), copy_tests=(test,)
    )


def _take(
    cells: list[str], columns: list[int] | None, rates: dict[tuple[int, int], float]
) -> list[int] | None:
    """The columns that hold from this line on; rates of a row are added."""
    if cells[:1] == ["D/D"]:
        numbers = [int(cell) for cell in cells[1:] if INDEX.fullmatch(cell)]
        return numbers[:MAX_DEVICES]
    if columns is not None and len(cells) == len(columns) + 1 and INDEX.fullmatch(cells[0]):
        row = int(cells[0])
        for column, cell in zip(columns, cells[1:], strict=True):
            rate = finite_text(cell, 0, 1e6)
            if rate:
                rates[row, column] = rate * 1e9
    return columns


READER = Reader(is_mine=is_mine, read_file=read_file)
