"""Times of operators that `stepscope probe` measured on this machine, in the user's cache folder.

probe-nvidia-h200-<digest>.json    one kind of device with one torch
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepscope.core.codec import decode_json
from stepscope.core.hardware import SCHEMA, MeasuredTime, ProbeCase, ProbedTimes, ProbeFile
from stepscope.errors import FormatError
from stepscope.readers import cache

MAX_BYTES = 64 << 20
MAX_ROWS = 20_000
"""Kept for one device; the newest stay."""
LARGEST_NS = 1e12
"""Nothing is timed for so long."""


def probe_files(device: str) -> tuple[ProbeFile, ...]:
    """What was measured here on devices of that name, the newest last."""
    paths = sorted(_kept(device), key=_modified)
    files = (read_kept(path) for path in paths)
    return tuple(file for file in files if file is not None and file.device == device)


class ProbedDevices:
    """The times of each kind of device, read when it is first asked for. What was measured here
    goes before what a hardware file brought."""

    def __init__(self, shared: Sequence[ProbeFile] = ()) -> None:
        self._shared = shared
        self.by_name: dict[str, ProbedTimes] = {}

    def of(self, device: str) -> ProbedTimes:
        if device not in self.by_name:
            times: dict[ProbeCase, MeasuredTime] = {}
            problems: dict[ProbeCase, str] = {}
            for file in (*self._shared, *probe_files(device)):
                times |= _times(device, file)
                problems |= _problems(device, file)
            self.by_name[device] = ProbedTimes(times=times, problems=problems)
        return self.by_name[device]


def kept_files() -> list[tuple[str, int]]:
    """Each file of them with when it was written: what a diagnosis follows from, too."""
    return sorted((path.name, int(_modified(path) * 1e9)) for path in _kept(""))


def kept_path(device: str, torch: str, driver: str | None) -> Path | None:
    """Where the times of such a device lie; None where there is no home to keep them in."""
    folder = cache.cache_folder()
    digest = hashlib.sha256(f"{device}\0{torch}\0{driver}".encode()).hexdigest()[:12]
    return None if folder is None else folder / f"probe-{_slug(device)}-{digest}.json"


def read_kept(path: Path) -> ProbeFile | None:
    """The file; None where it is absent, not this user's own, or damaged."""
    text = _own_text(path)
    with contextlib.suppress(FormatError):
        return None if text is None else parse_probe(text, str(path))
    return None


def parse_probe(text: bytes, where: str) -> ProbeFile:
    """The rows that make sense; FormatError where it is another kind of file."""
    try:
        file = decode_json(text, ProbeFile)
    except ValueError as problem:
        raise FormatError(f"{where} is no file that `stepscope probe` wrote: {problem}") from None
    if file.schema != SCHEMA:
        raise FormatError(
            f"{where} is of the kind {file.schema[:40]!r}; this version reads {SCHEMA!r}"
        )
    return file


def _times(device: str, file: ProbeFile) -> dict[ProbeCase, MeasuredTime]:
    if file.device != device:
        return {}
    return {
        row.case: row.time
        for row in file.rows[-MAX_ROWS:]
        if row.time is not None and 0 < row.time.ns < LARGEST_NS
    }


def _problems(device: str, file: ProbeFile) -> dict[ProbeCase, str]:
    if file.device != device:
        return {}
    return {row.case: row.problem for row in file.rows[-MAX_ROWS:] if row.problem}


def _kept(device: str) -> Iterator[Path]:
    folder = cache.cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            yield from folder.glob(f"probe-{_slug(device)}*.json")


def _own_text(path: Path) -> bytes | None:
    with contextlib.suppress(OSError, ValueError), cache.open_own(path) as file:
        text = file.read(MAX_BYTES + 1)
        return text if len(text) <= MAX_BYTES else None
    return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.casefold()).strip("-")[:60]
