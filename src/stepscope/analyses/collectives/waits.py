"""Waiting told from moving bytes: a rank's exposed collectives, split at the moment the last rank arrived."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.analyses.intervals import Intervals, lengths_in, union
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.facts import RankFacts
from stepscope.core.trace import NONE


def waiting(collective_records: CollectiveRecords, matched: Matched) -> Intervals:
    """When the rank stood in a collective, with no compute beside it, before the last rank had arrived. Its own clock."""
    number = (
        matched.of[collective_records.rank][collective_records.exposed_of]
        if len(collective_records.exposed_of)
        else np.empty(0, np.int64)
    )
    found = number != NONE
    last = matched.last_ns[number[found]] - matched.offset_ns[collective_records.rank]
    start = collective_records.exposed_start_ns[found]
    end = np.minimum(collective_records.exposed_end_ns[found], last)
    ahead = end > start
    return union(start[ahead], end[ahead])


def with_waits(facts: RankFacts, collective_records: CollectiveRecords, matched: Matched) -> RankFacts:
    """The facts with their exposed communication split; as they are when nothing of it was matched."""
    inside = np.zeros(len(collective_records), np.bool_)
    if facts.partition is None or not facts.steps.windows or not len(collective_records):
        return facts
    low, high = facts.steps.windows[0][0], facts.steps.windows[-1][1]
    inside = (collective_records.end_ns > low) & (collective_records.start_ns < high)
    if not bool((matched.of[collective_records.rank][inside] != NONE).any()):
        return facts
    start = np.array([w[0] for w in facts.steps.windows], np.int64)
    end = np.array([w[1] for w in facts.steps.windows], np.int64)
    exposed = np.array(facts.partition.parts["comms_transfer"], np.int64)
    waited = np.minimum(lengths_in(start, end, waiting(collective_records, matched)), exposed)
    parts = dict(facts.partition.parts)
    parts["comms_wait"] = tuple(waited.tolist())
    parts["comms_transfer"] = tuple((exposed - waited).tolist())
    return replace(facts, partition=replace(facts.partition, parts=parts, waits_split=True))
