"""How late each rank arrives at the collectives that all wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.analyses.matching import FIRM
from stepscope.core.comms import Lateness, Ledger, Matched
from stepscope.core.trace import NONE, Bool, Int64

_FLOOR_NS = 10_000
"""Arrivals closer than this are a tie on any clock: device timestamps and NCCL's own skew."""


def lateness(ledgers: Sequence[Ledger], matched: Matched) -> tuple[Lateness, ...]:
    """Per rank, its arrival against the median arrival, over the complete collectives of the measured windows."""
    ledgers = sorted(ledgers, key=lambda one: one.rank)
    chosen = matched.complete & _measured(ledgers, matched)
    numbers = np.flatnonzero(chosen)
    if not len(numbers):
        return tuple(Lateness(rank=one.rank, median_ns=0, share_last=0.0) for one in ledgers)
    whole = np.stack([matched.arrival_ns[one.rank][numbers] for one in ledgers])
    took = whole != NONE
    # From each collective's last arrival: nanoseconds since the epoch are too many for a float.
    arrivals = np.where(took, (whole - matched.last_ns[numbers]).astype(np.float64), np.nan)
    late = arrivals - np.nanmedian(arrivals, axis=0)
    last = _last(arrivals, noise_ns(ledgers, matched))
    result = []
    for i, ledger in enumerate(ledgers):
        mine = late[i][took[i]]
        median = int(np.median(mine)) if len(mine) else 0
        share = float((last[took[i]] == i).mean()) if len(mine) else 0.0
        result.append(
            Lateness(
                rank=ledger.rank, median_ns=median, share_last=share, per_step_ns=_per_step(ledger, matched, numbers, late[i])
            )
        )
    return tuple(result)


def noise_ns(ledgers: Sequence[Ledger], matched: Matched) -> int:
    """How far ends of one collective lie apart over its ranks once the clocks are aligned: the 95th percentile."""
    some_firm = any(kind.op in FIRM for ledger in ledgers for kind in ledger.kinds)
    first = np.full(matched.num, np.iinfo(np.int64).max, np.int64)
    last = np.full(matched.num, np.iinfo(np.int64).min, np.int64)
    for ledger in ledgers:
        ids = matched.of[ledger.rank]
        firm = np.array([not some_firm or kind.op in FIRM for kind in ledger.kinds] or [False])
        found = (ids != NONE) & firm[ledger.kind]
        ends = ledger.end_ns[found] + matched.offset_ns[ledger.rank]
        np.minimum.at(first, ids[found], ends)
        np.maximum.at(last, ids[found], ends)
    apart = (last - first)[matched.complete & (last >= first)]
    return max(_FLOOR_NS, int(np.percentile(apart, 95))) if len(apart) else _FLOOR_NS


def _measured(ledgers: Sequence[Ledger], matched: Matched) -> Bool:
    """Collectives that lie, for every rank that took part, in one of its measured windows."""
    inside = np.ones(matched.num, np.bool_)
    for ledger in ledgers:
        ids = matched.of[ledger.rank]
        found = ids != NONE
        within = np.zeros(len(ids), np.bool_)
        for begin, end in ledger.windows:
            within |= (ledger.start_ns >= begin) & (ledger.start_ns < end)
        inside[ids[found & ~within]] = False
    return inside


def _last(arrivals: np.ndarray[tuple[int, ...], np.dtype[np.float64]], noise: int) -> Int64:
    """Per collective, the row that came last by more than the noise; NONE for a tie."""
    order = np.sort(np.where(np.isnan(arrivals), -np.inf, arrivals), axis=0)
    who = np.nanargmax(arrivals, axis=0)
    if len(order) < 2:
        return np.full(arrivals.shape[1], NONE, np.int64)
    return np.where(order[-1] - order[-2] > noise, who, NONE).astype(np.int64)


def _per_step(
    ledger: Ledger, matched: Matched, numbers: Int64, late: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> tuple[int, ...]:
    ids = matched.of[ledger.rank]
    place = np.full(matched.num, NONE, np.int64)
    place[numbers] = np.arange(len(numbers))
    found = np.flatnonzero(ids != NONE)
    found = found[(place[ids[found]] != NONE) & (ledger.step[found] != NONE)]
    value = late[place[ids[found]]]
    steps = ledger.step[found]
    return tuple(int(value[steps == step].max()) for step in np.unique(steps).tolist())
