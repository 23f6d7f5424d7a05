"""Waiting and transfer: a rank's exposed collectives, split at the moment the last rank arrived."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from stepscope.analyses.intervals import Intervals, bounds, empty, lengths_in, union
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.facts import RankFacts
from stepscope.core.trace import NONE, Int64


def waiting(records: CollectiveRecords, matched: Matched) -> Intervals:
    """When the rank waited in a collective for the last rank,
    with no compute at the same time. On its own clock."""
    if not len(records.exposed_of):
        return empty()
    number = matched.of[records.rank][records.exposed_of]
    return _until_last(
        number, records.exposed_start_ns, records.exposed_end_ns, matched, records.rank
    )


def until_all_came(records: CollectiveRecords, matched: Matched) -> Intervals:
    """When the rank was in a collective that others had not come to, whatever ran beside it. On its
    own clock."""
    number = matched.of[records.rank]
    return _until_last(number, records.start_ns, records.end_ns, matched, records.rank)


def _until_last(
    number: Int64, start_ns: Int64, end_ns: Int64, matched: Matched, rank: int
) -> Intervals:
    """Parts of these stretches before the last rank came to their collective."""
    has_id = number != NONE
    last = matched.last_ns[number[has_id]] - matched.offset_ns[rank]
    start, end = start_ns[has_id], np.minimum(end_ns[has_id], last)
    ahead = end > start
    return union(start[ahead], end[ahead])


def with_waits(facts: RankFacts, records: CollectiveRecords, matched: Matched) -> RankFacts:
    """The facts with their exposed communication split;
    as they are when nothing of it was matched."""
    if facts.partition is None or not facts.steps.windows or not len(records):
        return facts
    low, high = facts.steps.windows[0][0], facts.steps.windows[-1][1]
    inside = (records.end_ns > low) & (records.start_ns < high)
    if not bool((matched.of[records.rank][inside] != NONE).any()):
        return facts
    exposed = np.array(facts.partition.parts["comms_transfer"], np.int64)
    waited = np.minimum(
        lengths_in(*bounds(facts.steps.windows), waiting(records, matched)), exposed
    )
    parts = dict(facts.partition.parts)
    parts["comms_wait"] = tuple(waited.tolist())
    parts["comms_transfer"] = tuple((exposed - waited).tolist())
    return replace(facts, partition=replace(facts.partition, parts=parts, waits_split=True))
