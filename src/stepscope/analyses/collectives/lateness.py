"""How late each rank arrives at the collectives that all wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.keys import FIRM
from stepscope.core.comms import CollectiveRecords, Lateness, Matched
from stepscope.core.trace import NONE, Bool, Float64, Int64

_FLOOR_NS = 10_000
"""Arrivals closer than this are a tie on any clock: device timestamps and NCCL's own skew."""


class _Arrivals(Struct, frozen=True, kw_only=True):
    """Arrivals of all ranks, sorted by collective and, within one, by time."""

    number: Int64
    row: Int64
    """The rank's index."""
    step: Int64
    at_ns: Float64
    """Time from the collective's last arrival: nanoseconds since the epoch are too many for a
    float."""


def lateness(rank_records: Sequence[CollectiveRecords], matched: Matched) -> tuple[Lateness, ...]:
    """Arrival of each rank against the median arrival, over the complete collectives of the
    measured windows."""
    rank_records = sorted(rank_records, key=lambda records: records.rank)
    arrivals = _arrivals(rank_records, matched, matched.complete & _measured(rank_records, matched))
    late, is_last = _compared(arrivals, noise_ns(rank_records, matched))
    order = np.argsort(arrivals.row, kind="stable")
    cuts = np.searchsorted(arrivals.row[order], np.arange(len(rank_records) + 1))
    result = []
    for i, records in enumerate(rank_records):
        mine = order[cuts[i] : cuts[i + 1]]
        result.append(
            Lateness(
                rank=records.rank,
                median_ns=int(np.median(late[mine])) if len(mine) else 0,
                share_last=float(is_last[mine].mean()) if len(mine) else 0.0,
                per_step_ns=_per_step(arrivals.step[mine], late[mine]),
            )
        )
    return tuple(result)


def noise_ns(rank_records: Sequence[CollectiveRecords], matched: Matched) -> int:
    """How far ends of one collective lie apart over its ranks
    once the clocks are aligned: the 95th percentile."""
    some_firm = any(kind.op in FIRM for records in rank_records for kind in records.kinds)
    first = np.full(matched.num, np.iinfo(np.int64).max, np.int64)
    last = np.full(matched.num, np.iinfo(np.int64).min, np.int64)
    for records in rank_records:
        ids = matched.of[records.rank]
        firm = np.array([not some_firm or kind.op in FIRM for kind in records.kinds] or [False])
        chosen = (ids != NONE) & firm[records.kind]
        ends = records.end_ns[chosen] + matched.offset_ns[records.rank]
        np.minimum.at(first, ids[chosen], ends)
        np.maximum.at(last, ids[chosen], ends)
    apart = (last - first)[matched.complete & (last >= first)]
    return max(_FLOOR_NS, int(np.percentile(apart, 95))) if len(apart) else _FLOOR_NS


def _measured(rank_records: Sequence[CollectiveRecords], matched: Matched) -> Bool:
    """Collectives that lie, for every rank that took part, in one of its measured windows."""
    inside = np.ones(matched.num, np.bool_)
    for records in rank_records:
        ids = matched.of[records.rank]
        has_id = ids != NONE
        within = np.zeros(len(ids), np.bool_)
        for begin, end in records.windows:
            within |= (records.start_ns >= begin) & (records.start_ns < end)
        inside[ids[has_id & ~within]] = False
    return inside


def _arrivals(
    rank_records: Sequence[CollectiveRecords], matched: Matched, chosen: Bool
) -> _Arrivals:
    parts = [np.empty((4, 0), np.int64)]
    for i, records in enumerate(rank_records):
        ids = matched.of[records.rank]
        mine = np.flatnonzero(ids != NONE)
        mine = mine[chosen[ids[mine]]]
        arrival = matched.arrival_ns[records.rank][mine] - matched.last_ns[ids[mine]]
        parts.append(np.stack((ids[mine], np.full(len(mine), i), records.step[mine], arrival)))
    number, row, step, at_ns = np.concatenate(parts, axis=1)
    order = np.lexsort((row, at_ns, number))
    return _Arrivals(
        number=number[order],
        row=row[order],
        step=step[order],
        at_ns=at_ns[order].astype(np.float64),
    )


def _compared(arrivals: _Arrivals, noise: int) -> tuple[Float64, Bool]:
    """How much later than its collective's median each arrived,
    and whether it came last by more than the noise.

    Of two in the middle the median is the earlier: of two ranks, one is as late as the other waits.
    """
    fresh = np.ones(len(arrivals.number), np.bool_)
    fresh[1:] = np.diff(arrivals.number) != 0
    first = np.flatnonzero(fresh)
    count = np.diff(np.append(first, len(fresh)))
    middle = np.repeat(arrivals.at_ns[first + (count - 1) // 2], count)
    is_last = np.zeros(len(fresh), np.bool_)
    final = first + count - 1
    is_last[final] = (count > 1) & (
        arrivals.at_ns[final] - arrivals.at_ns[np.maximum(final - 1, 0)] > noise
    )
    return arrivals.at_ns - middle, is_last


def _per_step(step: Int64, late: Float64) -> tuple[int, ...]:
    """A rank's greatest lateness in each of its steps."""
    step, late = step[step != NONE], late[step != NONE]
    order = np.lexsort((late, step))
    final = np.append(np.diff(step[order]) != 0, True)[: len(order)]
    return tuple(late[order][final].astype(np.int64).tolist())
