"""Runs each case in its own torchrun, so that one that fails or hangs costs its own time alone."""

from __future__ import annotations

import logging
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from lab.ranks.cases import CASES

log = logging.getLogger("lab.ranks")
FIRST_PORT = 29511
MAX_TAR_BYTES = 10 << 20
"""A tar that has grown past this is left, and the next one begun: none may come near 16 MiB."""


def launch(name: str, out: Path, port: int, limit_s: int) -> bool:
    """Whether the case came to its end. `timeout` is the second net: every rank ends itself after
    `limit_s`."""
    command = [
        "timeout",
        "-k",
        "5",
        str(limit_s + 25),
        sys.executable,
        "-m",
        "torch.distributed.run",
    ]
    command += [
        f"--nproc_per_node={CASES[name].world}",
        "--master_addr=127.0.0.1",
        f"--master_port={port}",
        "-m",
        "lab.ranks",
    ]
    command += ["--out", str(out), "--cases", name, "--limit", str(limit_s)]
    return subprocess.run(command, check=False).returncode == 0


def pack(out: Path, name: str) -> None:
    """Moves the case's traces from OUT/ranks into OUT/ranks.tar, or ranks2.tar and so on once that
    is full."""
    number = 1
    while (
        tar := out / f"ranks{'' if number == 1 else number}.tar"
    ).exists() and tar.stat().st_size > MAX_TAR_BYTES:
        number += 1
    with tarfile.open(tar, "a") as archive:
        for path in sorted((out / "ranks").glob(f"{name}.*.gz")):
            archive.add(path, f"ranks/{path.name}")
            path.unlink()


def drive(names: list[str], out: Path, seconds: float, limit_s: int) -> int:
    """Runs all cases, begins none that might not end within `seconds`, and returns how many did not
    end well."""
    begun, missed = time.monotonic(), []
    out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        if time.monotonic() - begun + limit_s / 2 > seconds:
            log.warning("no time left for %s", name)
            missed.append(name)
            continue
        since = time.monotonic()
        ended = launch(name, out, FIRST_PORT + number, limit_s)
        if not ended:
            missed.append(name)
        pack(out, name)
        log.info("%s %s, %.1f s", name, "done" if ended else "FAILED", time.monotonic() - since)
    log.info(
        "%d of %d cases done; missed: %s",
        len(names) - len(missed),
        len(names),
        ",".join(missed) or "none",
    )
    return len(missed)
