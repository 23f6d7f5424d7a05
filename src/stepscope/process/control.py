"""Asking a running job for a recording, through its run folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.protocol.run_folder import (
    CONTROL_FILE,
    LIVE_FILE,
    RANK_FOLDER,
    SAMPLES_FILE,
    write_json,
)
from stepscope.protocol.untrusted import open_regular, parse_json_object, whole

TAIL_BYTES = 16_384
AHEAD_S = 3.0
"""Seconds between the request and the step it begins with: every rank looks once a second, and all
must begin with the same step."""
RECORD_NOW = "record-now"
"""A file of this name in the run folder asks for a recording too."""


@dataclass(frozen=True)
class Progress:
    """Where a rank stands, by its last two samples."""

    rank: int
    step: int
    at_ns: int
    steps_per_s: float | None


def progress(run: Path) -> list[Progress]:
    """Each rank that has written a sample, in order."""
    ranks = []
    for folder in run.glob("rank-*"):
        match = RANK_FOLDER.match(folder.name)
        # A long run writes few samples to their own file, and all others to the other.
        files = folder / SAMPLES_FILE, folder / LIVE_FILE
        samples = sorted(part for file in files for part in _tail(file))[-12:] if match else []
        if match and samples:
            ranks.append(_progress(int(match[1]), samples))
    return sorted(ranks, key=lambda rank: rank.rank)


def _progress(rank: int, samples: list[tuple[int, int]]) -> Progress:
    (first_ns, first), (last_ns, last) = samples[0], samples[-1]
    steps_per_s = (last - first) / ((last_ns - first_ns) / 1e9) if last_ns > first_ns else None
    return Progress(rank=rank, step=last, at_ns=last_ns, steps_per_s=steps_per_s)


def _tail(path: Path) -> list[tuple[int, int]]:
    """(at_ns, step) of the last samples."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except OSError:
        return []
    samples = [
        (whole(value.get("at_ns"), 0), whole(value.get("step"), 0))
        for value in map(parse_json_object, lines)
    ]
    return [(at_ns, step) for at_ns, step in samples if at_ns is not None and step is not None]


def ask_recording(run: Path, only: Sequence[int] | None = None) -> int | None:
    """Asks every rank, or those alone, to record from one step on, a little ahead of the furthest;
    returns it.

    None when no rank steps yet.
    """
    ranks = progress(run)
    if not ranks:
        return None
    fastest = max((rank.steps_per_s or 0.0 for rank in ranks), default=0.0)
    now = time.perf_counter_ns()
    furthest = max(
        rank.step + (rank.steps_per_s or 0.0) * max(0.0, (now - rank.at_ns) / 1e9) for rank in ranks
    )
    step = int(furthest + fastest * AHEAD_S) + 2
    asked: dict[str, object] = {"record_from": step}
    if only is not None:
        asked["ranks"] = list(only)
    write_json(run / CONTROL_FILE, asked)
    return step


class Requests:
    """Recordings asked for by signal or by file, held until a rank steps."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._is_asked = False

    def ask(self) -> None:
        self._is_asked = True

    def look(self) -> None:
        """Passes on what was asked for; called now and then."""
        path = self._run / RECORD_NOW
        if (self._is_asked or path.exists()) and ask_recording(self._run) is not None:
            self._is_asked = False
            path.unlink(missing_ok=True)
