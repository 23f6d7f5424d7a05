"""The flight recorder's dumps of running processes: where they lie, and asking for new ones.

PyTorch writes them when a collective timed out, under a name that the environment gives; and at any
time when something is written into the pipe of TORCH_NCCL_DEBUG_INFO_PIPE_FILE.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.process.table import PROC, Process, rank_of

if TYPE_CHECKING:
    from stepscope.core.recordings.nccl import Hang

PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DEFAULTS = ("nccl_trace_rank_", "comm_lib_trace_rank_")
"""Names of dumps in /tmp, in newer versions in ~/.cache/torch."""
ANSWER_S = 3.0
"""Seconds that all ranks together may take to write what the pipe asked for."""


def find_hang_of(ranks: Sequence[Process]) -> tuple[Hang | None, str]:
    """What the ranks' dumps show, and of which dumps; None and an empty text where there are
    none."""
    asked = [process for process in ranks if _ask(process)]
    if asked:
        _await(asked)
    paths = [path for process in ranks if (path := dump_of(process)) is not None]
    if not paths:
        return None, ""

    from stepscope.core.recordings.auxiliary import Auxiliary
    from stepscope.core.recordings.training_log import TrainingLog
    from stepscope.readers.format import Source
    from stepscope.readers.formats import BY_NAME

    reader = BY_NAME["flight-recorder"].reader()
    assert reader.read_together is not None
    assert reader.complete is not None
    try:
        read = reader.read_together([Source(path=path, label=str(path)) for path in paths])
    except StepscopeError as problem:
        return None, f"its dumps could not be read: {problem}"
    age = time.time() - max(path.stat().st_mtime for path in paths)
    words = f"{len(paths)} of {len(ranks)} ranks dumped, the last {max(age, 0):,.0f} s ago"
    assert isinstance(read, TrainingLog)
    hang = reader.complete(Auxiliary(training=read)).hang
    return hang, words if hang is not None else f"no collective is open ({words})"


def dump_of(process: Process) -> Path | None:
    """The newest file that this process wrote; one from before it started is another's."""
    rank = rank_of(process)
    if rank is None:
        return None
    began = started_at(process)
    files = []
    for prefix in _prefixes(process):
        path = Path(f"{prefix}{rank}")
        try:
            status = path.stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_mtime >= began:
            files.append((status.st_mtime, path))
    return max(files)[1] if files else None


def started_at(process: Process) -> float:
    """Seconds since 1970; 0 where the system does not say when it started itself."""
    try:
        lines = Path(f"{PROC}/stat").read_text().splitlines()
    except OSError:
        return 0.0
    booted = next((line.split()[1] for line in lines if line.startswith("btime ")), "0")
    return int(booted) + process.started_ticks / os.sysconf("SC_CLK_TCK")


def _prefixes(process: Process) -> list[str]:
    given = [process.environment[name] for name in PREFIXES if process.environment.get(name)]
    if given:
        return given
    home = process.environment.get("HOME", "/tmp")  # noqa: S108 - where PyTorch writes them
    cache = process.environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    folders = ("/tmp", f"{cache}/torch")  # noqa: S108
    return [f"{folder}/{name}" for folder in folders for name in DEFAULTS]


def _ask(process: Process) -> bool:
    """Whether the rank's recorder was asked through its pipe; nothing that is no pipe is written
    to."""
    stem, rank = process.environment.get(PIPE), rank_of(process)
    if not stem or rank is None:
        return False
    path = f"{stem}{rank}.pipe"
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode):
            return False
        # Without a reader this fails at once, instead of waiting for one.
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(pipe, b"1\n")
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


def _await(asked: Sequence[Process]) -> None:
    """Wait until each has written since now, or the time is over."""
    begun = time.time()
    while time.time() < begun + ANSWER_S:
        paths = [dump_of(process) for process in asked]
        if all(path is not None and path.stat().st_mtime >= begun - 0.01 for path in paths):
            return
        time.sleep(0.1)
