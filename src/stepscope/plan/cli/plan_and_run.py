"""What `compare` asks where A may be a plan that `plan --format json` printed."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.cli.additions import PlanAndRun
from stepscope.pipeline.options import Options
from stepscope.protocol.untrusted import is_regular, read_regular

MAX_BYTES = 64 << 20
IS_PLAN = re.compile(rb'"schema"\s*:\s*"stepscope\.plan/')


def find(text: str) -> bytes | None:
    """The bytes of a plan that was kept as JSON; None where the path is something else."""
    path = Path(text)
    if path.suffix != ".json" or not is_regular(path):
        return None
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError:
        return None
    return data if IS_PLAN.search(data[:4096]) else None


def compare(
    paths: list[str], plan: bytes, reading: Options, style: str, out: Path | None, kept: Path | None
) -> int:
    from stepscope.plan.cli.learn import run_learned

    return run_learned(paths, plan, reading, style, out, kept)


ADDITION = PlanAndRun(find, compare)
