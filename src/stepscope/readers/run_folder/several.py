"""Run folders of one job: a job on several machines leaves one for each `stepscope run`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.protocol.untrusted import whole
from stepscope.readers.run_folder.folder import RunRecord

STARTED, ENDED, CODE = "started_wall_ns", "ended_wall_ns", "exit_code"


def one_job(runs: Sequence[RunRecord]) -> RunRecord | None:
    """The run, or the job that several recorded together; None where they are not of one job."""
    if len(runs) == 1:
        return runs[0]
    if not runs or not _are_one_job(runs):
        return None
    return RunRecord(
        path=_folder_of([run.path for run in runs]),
        metadata=_metadata([run.metadata for run in runs]),
        ranks=tuple(sorted((rank for run in runs for rank in run.ranks), key=lambda r: r.rank)),
        notes=tuple(note for run in runs for note in run.notes),
        of_alerts=frozenset().union(*(run.of_alerts for run in runs)),
        failures=tuple(failure for run in runs for failure in run.failures),
    )


def _folder_of(paths: Sequence[Path]) -> Path:
    """Folder that holds them all; as they were named, where they were named alike."""
    if any(path.is_absolute() for path in paths):
        paths = [path.absolute() for path in paths]
    return Path(os.path.commonpath(paths))


def _are_one_job(runs: Sequence[RunRecord]) -> bool:
    """Each holds ranks that the others lack, of a job of one width, and all ran at one time."""
    ranks = [rank for run in runs for rank in run.ranks]
    widths = {whole(rank.metadata.get("world_size")) for rank in ranks}
    if not all(run.ranks for run in runs) or len({rank.rank for rank in ranks}) < len(ranks):
        return False
    width = widths.pop()
    if widths or width is None or width < len(ranks):
        return False
    begun = [at for run in runs if (at := whole(run.metadata.get(STARTED))) is not None]
    ended = [at for run in runs if (at := whole(run.metadata.get(ENDED))) is not None]
    return not begun or not ended or max(begun) < min(ended)


def _metadata(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Metadata of the whole: the first start, the last end, and the exit code of whichever failed.
    No command: none of them starts the others."""
    metadata: dict[str, Any] = {}
    begun = [whole(one.get(STARTED)) for one in each]
    ended = [whole(one.get(ENDED)) for one in each]
    codes = [whole(one.get(CODE)) for one in each]
    metadata[STARTED] = min((at for at in begun if at is not None), default=None)
    metadata[ENDED] = None if None in ended else max(at for at in ended if at is not None)
    failed = next((code for code in codes if code), None)
    metadata[CODE] = None if failed is None and None in codes else failed or 0
    return metadata
