"""How long a collective takes once every rank is ready for it.

Ready is not begun. A kernel that was launched, whose stream is free and whose inputs are there can
still stand outside: another process has the device (ranks that share one take turns of about 2 ms),
or earlier kernels leave it no room. Its rank is not late then, and a faster host would not begin it
sooner: that time belongs to the collective, in the unprofiled run as in the recording. So each rank
is followed through its recording with its launches and the ends of collectives as they were,
everything else as early as it could be, and the collective's time runs from the last rank that is
ready by that reckoning.

    kernel of rank 0   ....[================]      begun, waits for rank 1 in its own turns
    kernel of rank 1   ....ready     [======]      launched and free, begun a turn later
                           |<-- moving ---->|      not the six of the shorter kernel
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.trace import NONE, Float64
from stepscope.replay.simulate_job import RankGraph


def moving_ns(
    parts: Sequence[RankGraph], rank_records: Sequence[CollectiveRecords], matched: Matched
) -> Float64:
    """Per collective, the time from when the last rank was ready to the end: no less than from the
    last arrival, no more than its longest part took."""
    shortest, longest, early = (
        np.full(matched.num, np.inf),
        np.zeros(matched.num),
        np.full(matched.num, np.inf),
    )
    for part, records in zip(parts, rank_records, strict=True):
        ids = matched.of[records.rank]
        has_id = ids != NONE
        took = (records.end_ns - records.start_ns)[has_id].astype(np.float64)
        np.minimum.at(shortest, ids[has_id], took)
        np.maximum.at(longest, ids[has_id], took)
        delay = start_delay_ns(part, records, matched.num)[ids[has_id]]
        np.minimum.at(early, ids[has_id], matched.wait_ns(records)[has_id] + delay)
    after_last = np.maximum((matched.end_ns - matched.last_ns).astype(np.float64), 0.0)
    least = np.minimum(shortest, after_last)
    moving: Float64 = np.clip(
        after_last + np.where(np.isfinite(early), early, 0.0), least, np.maximum(longest, least)
    )
    return moving


def start_delay_ns(part: RankGraph, records: CollectiveRecords, num: int) -> Float64:
    """Per collective, how long after it could have begun it began on this rank;
    0 where the rank has no task in it."""
    graph, shared = part.graph, part.shared.tolist()
    origin = int(graph.call_start_ns[0]) if len(graph.call_start_ns) else 0
    began = dict(zip(records.event.tolist(), (records.start_ns - origin).tolist(), strict=True))
    ended = dict(zip(records.event.tolist(), (records.end_ns - origin).tolist(), strict=True))
    launched = (
        np.repeat((graph.call_start_ns - origin).astype(np.float64), np.diff(graph.call_first))
        + graph.task_latency_ns
    )
    stream, event, length = (
        graph.task_stream.tolist(),
        graph.task_event.tolist(),
        graph.task_ns.tolist(),
    )
    gap, after, lag = (
        graph.task_gap_ns.tolist(),
        graph.task_after.tolist(),
        graph.task_lag_ns.tolist(),
    )
    free, ends, delay = [-1e18] * graph.num_streams, [0.0] * len(event), np.zeros(num)
    for task, earliest in enumerate(launched.tolist()):
        begin = max(earliest, free[stream[task]] + gap[task])
        if after[task] != NONE:
            begin = max(begin, ends[after[task]] + lag[task])
        end = begin + length[task]
        if shared[task] != NONE:
            delay[shared[task]] = max(began[event[task]] - begin, 0.0)
            end = ended[event[task]]
        free[stream[task]] = ends[task] = end
    return delay
