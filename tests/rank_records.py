"""Ledgers of small made-up jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.core.comms import BACKWARD, Collective, CollectiveRecords, ProcessGroup
from stepscope.core.trace import NONE

MS = 1_000_000
EPOCH_NS = 1_760_000_000_000_000_000
STEP_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective on one rank; times are milliseconds into the step."""

    at: float
    end: float
    op: str = "all_reduce"
    group: str = "0"
    ranks: tuple[int, ...] = (0, 1)
    bytes: int | None = 1 << 20
    phase: int = BACKWARD
    exposed: float = 1.0
    """Share of it, from its start, with no compute beside it."""
    uneven: float = float("nan")
    size: int | None = None
    ahead: int = NONE


def collective_records(
    rank: int,
    calls: Sequence[Call],
    *,
    num_steps: int = 3,
    descriptions: dict[str, str] | None = None,
    world_size: int | None = None,
) -> CollectiveRecords:
    """The same calls in each step; all but the first step are measured."""
    rows = [(step, call) for step in range(num_steps) for call in sorted(calls, key=lambda c: c.at)]
    kinds: dict[Collective, int] = {}
    for _, call in rows:
        kinds.setdefault(_kind(call), len(kinds))
    start = np.array([_ns(step, call.at) for step, call in rows], np.int64)
    end = np.array([_ns(step, call.end) for step, call in rows], np.int64)
    alone = ((end - start) * np.array([call.exposed for _, call in rows])).astype(np.int64)
    none = np.full(len(rows), NONE, np.int64)
    groups = {call.group: call for call in calls}
    return CollectiveRecords(
        rank=rank,
        kinds=tuple(kinds),
        kind=np.array([kinds[_kind(call)] for _, call in rows], np.int64),
        event=np.arange(len(rows)),
        start_ns=start,
        end_ns=end,
        launch_ns=none,
        stream=none,
        sequence=none,
        step=np.array([step for step, _ in rows], np.int64),
        exposed_start_ns=start,
        exposed_end_ns=start + alone,
        exposed_of=np.arange(len(rows)),
        windows=tuple((_ns(step, 0), _ns(step + 1, 0)) for step in range(1, num_steps)),
        phase=np.array([call.phase for _, call in rows], np.int64),
        unevenness=np.array([call.uneven for _, call in rows], np.float64),
        ahead=np.array([call.ahead for _, call in rows], np.int64),
        backward=tuple((step, _ns(step, 5), _ns(step, 50)) for step in range(num_steps)),
        groups=tuple(
            ProcessGroup(
                name=name,
                description=(descriptions or {}).get(name, ""),
                ranks=call.ranks,
                size=len(call.ranks) or call.size,
            )
            for name, call in groups.items()
            if name
        ),
        world_size=world_size,
    )


def _kind(call: Call) -> Collective:
    return Collective(
        op=call.op,
        group=call.group,
        group_ranks=call.ranks,
        dtype="fp32",
        bytes=call.bytes,
        on_device=True,
        group_size=call.size or len(call.ranks) or None,
    )


def _ns(step: int, at_ms: float) -> int:
    return EPOCH_NS + step * STEP_MS * MS + round(at_ms * MS)
