"""The user's own ranges of the host (record_function, NVTX): what each holds, the ranges of single
steps as one, and on a host alone by the host's time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from stepscope.analyses.host.activity import call_rows
from stepscope.analyses.steps.projection import mark_ranges
from stepscope.core.facts import RangeRow
from stepscope.core.trace import Bool, Trace

NUMBERED = re.compile(r"(?P<stem>.*?[^\s#_:/-])?[\s#_:/-]{0,8}\d{1,12}")
WHOLE = 0.8
"""Share of what was measured from which ranges that differ by a number are the steps themselves:
those of layers hold the forward pass, a third of it (a judgement)."""


def host_mark_rows(trace: Trace, inside: Bool) -> tuple[RangeRow, ...]:
    """Rows of marks by the host's time, where no device has any."""
    rows = call_rows(trace, inside & mark_ranges(trace))
    return tuple(
        RangeRow(name=row.name, count=row.count, device_ns=0, host_ns=row.total_ns) for row in rows
    )


def with_steps_joined(rows: Sequence[RangeRow], whole_ns: int) -> tuple[RangeRow, ...]:
    """`step 1`, `step 2`, ... as `step *`: they say nothing that the steps do not.

    Before  step 1: 50 ms, step 2: 50 ms, forward: 60 ms    After  step *: 100 ms, forward: 60 ms
    """
    by_stem: dict[str, list[RangeRow]] = defaultdict(list)
    for row in rows:
        match = NUMBERED.fullmatch(row.name)
        if match is not None:
            by_stem[match["stem"] or ""].append(row)
    joined: dict[str, RangeRow] = {}
    for stem, several in by_stem.items():
        if len(several) > 1 and sum(map(_ns, several)) >= WHOLE * whole_ns > 0:
            one = _joined(f"{stem} *".strip(), several)
            joined |= dict.fromkeys((row.name for row in several), one)
    kept = dict.fromkeys(joined.get(row.name, row).name for row in rows)
    by_name = {joined.get(row.name, row).name: joined.get(row.name, row) for row in rows}
    return tuple(sorted((by_name[name] for name in kept), key=lambda row: -_ns(row)))


def _ns(row: RangeRow) -> int:
    return row.device_ns or row.host_ns or 0


def _joined(name: str, rows: Sequence[RangeRow]) -> RangeRow:
    host = [row.host_ns for row in rows if row.host_ns is not None]
    return replace(
        rows[0],
        name=name,
        count=sum(row.count for row in rows),
        device_ns=sum(row.device_ns for row in rows),
        host_ns=sum(host) if host else None,
        projected_ns=max((row.projected_ns for row in rows if row.projected_ns), default=None),
    )
