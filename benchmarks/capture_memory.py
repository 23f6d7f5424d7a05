"""Memory and folder of the capture over many steps: see `benchmarks.capture --memory`."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.stalls import saved
from stepscope.capture.session import Session
from stepscope.protocol.options import Options

NEVER = 10**12
"""The step a recording begins with: none does."""
TOLD_AT = (100_000, 500_000, 1_000_000, 2_000_000)
STEP_NS = 2_000_000


def remember(num_steps: int) -> list[dict[str, Any]]:
    """Memory and folder after so many steps, told to the hooks one by one."""
    folder = Path(tempfile.mkdtemp())
    session = Session(folder, Options(start_step=NEVER, sample_s=1e6), Guard())
    optimizer, now, told = object(), time.perf_counter_ns(), []
    try:
        for step in range(1, num_steps + 1):
            now += STEP_NS
            session.stepped(optimizer, now - 300_000, now)
            if step % 50_000 == 0:
                saved(session, now, now + 50_000_000)
            if step % (10**9 // STEP_NS) == 0 and session.writer is not None:
                session.writer._turn()  # noqa: SLF001 - what its thread calls once a second
            if step in TOLD_AT or step == num_steps:
                size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                told.append(
                    {
                        "steps": step,
                        "seconds": step * STEP_NS // 10**9,
                        "rss_bytes": rss_bytes(),
                        "folder_bytes": size,
                    }
                )
        session.finish()
    finally:
        shutil.rmtree(folder)
    return told


def rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
