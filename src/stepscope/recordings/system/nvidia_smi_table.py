"""The table that `nvidia-smi` prints when nothing is asked of it: one look at each device.

    |   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
    | N/A   41C    P0            119W /  700W |   78000MiB /  81559MiB |     35%      Default |

Two lines are a device, whatever stands around them; a later table has the next look.
"""

from __future__ import annotations

import re

from stepscope.api import Reader, Source, SystemRecording, TextLines
from stepscope.protocol.untrusted import finite_text
from stepscope.recordings.system.device_samples import DeviceSamples, MonitorSamples

MAX_HEAD_CHARS = 65_536
MAX_LINE_CHARS = 400
TITLE = "NVIDIA-SMI"
MIB = 1 << 20
DEVICE = re.compile(r"^\|\s{0,8}(\d{1,5})\s{1,8}(\S.{0,80}?)\s{1,60}(?:On|Off|N/A)\s{0,8}\|")
FIGURES = re.compile(
    r"^\|\s{0,8}\S{1,6}\s{1,8}(\d{1,4}|N/A)C?\s{1,8}\S{1,4}\s{1,20}(\d{1,6}|N/A)W?\s{0,4}/"
    r"\s{0,4}(\d{1,6}|N/A)W?\s{1,8}\|\s{0,20}(\d{1,9})MiB\s{0,4}/\s{0,8}(\d{1,9})MiB\s{0,4}\|"
    r"\s{0,20}(\d{1,4}|N/A)%?\s"
)
HINT = (
    "For a whole run: nvidia-smi dmon -s pucvmet -o DT > dmon.txt, or stepscope run -- COMMAND, "
    "which samples by itself"
)


def is_mine(head: bytes, _name: str) -> bool:
    """By its title and a device's line; or, of a part of it, by both lines of a device."""
    text = head[:MAX_HEAD_CHARS].decode("utf-8", "replace")
    lines = [line[:MAX_LINE_CHARS] for line in text.splitlines()]
    return any(map(DEVICE.match, lines)) and (TITLE in text or any(map(FIGURES.match, lines)))


def read_file(source: Source) -> SystemRecording:
    lines, samples = TextLines(source), MonitorSamples()
    device: DeviceSamples | None = None
    for line in lines:
        row = line[:MAX_LINE_CHARS]
        if match := DEVICE.match(row):
            device = samples.device(int(match[1]))
            if device is not None and device.name is None:
                device.name = match[2].rstrip(". ")
        elif device is not None and (match := FIGURES.match(row)):
            device.add(_values(match))
            device = None
    return samples.recording("nvidia-smi-table", source, (*lines.notes, *samples.notes()), HINT)


def _values(match: re.Match[str]) -> dict[str, float]:
    """What the cells have; N/A is not recorded."""
    cells = {
        "temperature_c": (match[1], 1.0),
        "power_w": (match[2], 1.0),
        "power_limit_w": (match[3], 1.0),
        "memory_used_bytes": (match[4], MIB),
        "memory_total_bytes": (match[5], MIB),
        "busy_share": (match[6], 0.01),
    }
    numbers = {name: (finite_text(text, 0, 1e9), unit) for name, (text, unit) in cells.items()}
    return {name: number * unit for name, (number, unit) in numbers.items() if number is not None}


READER = Reader(is_mine=is_mine, read_file=read_file)
