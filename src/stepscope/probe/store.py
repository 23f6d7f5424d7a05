"""What was timed, kept in the user's cache folder: a second run of the same model times only what
is new."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec

from stepscope.core.hardware import ProbeFile
from stepscope.probe.process import Probed
from stepscope.readers import cache
from stepscope.readers.probe_file import MAX_ROWS, kept_path, read_kept


def keep(probed: Probed) -> None:
    """Add it to what is kept of this device and torch; where that cannot be written, not at all."""
    path = kept_path(probed.device, probed.torch, probed.driver)
    if path is None:
        return
    before = read_kept(path)
    rows = {row.case: row for row in (before.rows if before is not None else ())}
    for row in probed.rows:
        rows.pop(row.case, None)
        rows[row.case] = row
    file = ProbeFile(
        device=probed.device,
        torch=probed.torch,
        driver=probed.driver,
        date=f"{datetime.now(timezone.utc):%Y-%m-%d}",
        rows=tuple(rows.values())[-MAX_ROWS:],
    )
    cache.write(path, [msgspec.json.encode(file)])
