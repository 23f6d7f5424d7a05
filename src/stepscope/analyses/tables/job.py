"""The tables that look at ranks as a whole, or at several of them: collectives, steps, ranks, findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.lateness import lateness
from stepscope.analyses.naming import matching
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.windows import PROFILER_STEP
from stepscope.analyses.tables.columns import Rows, Values, coded, flags, floats, ints, named, plain, texts, told
from stepscope.analyses.tables.device import PHASES
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.numbers import number_ranges
from stepscope.core.trace import NONE, Int64, Kind, TraceMeta

_NUMBER = re.compile(r"#\s*(\d{1,18})")


def collective_rows(found: RankContext, collective_records: CollectiveRecords) -> Rows:
    """A rank's collectives, as far as it can tell alone."""
    trace = found.trace
    on_device = np.array([kind.on_device for kind in collective_records.kinds], np.bool_)[collective_records.kind]
    exposed = np.zeros(len(collective_records), np.int64)
    np.add.at(exposed, collective_records.exposed_of, collective_records.exposed_end_ns - collective_records.exposed_start_ns)
    launched = found.links.launch[collective_records.event] != NONE
    return {
        "event": plain(collective_records.event),
        "op": _of_kind(collective_records, texts(kind.op for kind in collective_records.kinds)),
        "name": named(collective_records.event, trace.name, trace.names),
        "group_name": _of_kind(collective_records, texts(kind.group or None for kind in collective_records.kinds)),
        "group_size": _of_kind(
            collective_records, ints(kind.group_size or len(kind.group_ranks) or None for kind in collective_records.kinds)
        ),
        "group_ranks": _of_kind(
            collective_records, texts(number_ranges(kind.group_ranks) or None for kind in collective_records.kinds)
        ),
        "peer": _of_kind(collective_records, ints(kind.peer for kind in collective_records.kinds)),
        "dtype": _of_kind(collective_records, texts(kind.dtype for kind in collective_records.kinds)),
        "size_bytes": _of_kind(collective_records, ints(kind.bytes for kind in collective_records.kinds)),
        "sequence": told(collective_records.sequence),
        "on_device": plain(on_device),
        "phase": coded(collective_records.phase, PHASES),
        "step": told(np.maximum(collective_records.step, NONE)),
        "start_ns": plain(collective_records.start_ns),
        "dur_ns": plain(collective_records.end_ns - collective_records.start_ns),
        "launch_ns": Values(data=collective_records.launch_ns, missing=~launched),
        "stream": told(collective_records.stream),
        "exposed_ns": Values(data=exposed, missing=~on_device),
    }


def meeting_rows(collective_records: CollectiveRecords, matched: Matched | None) -> Rows:
    """What the other ranks' recordings add to a rank's collectives; `matched` is None where there are none."""
    alone = np.full(len(collective_records), NONE, np.int64)
    meeting = alone if matched is None else matched.of[collective_records.rank]
    waited = alone if matched is None else matched.wait_ns(collective_records)
    return {"meeting": told(meeting), "wait_ns": Values(data=waited, missing=meeting == NONE)}


def _of_kind(collective_records: CollectiveRecords, values: Values) -> Values:
    """A figure of each kind of collective, for each collective."""
    missing = None if values.missing is None else values.missing[collective_records.kind]
    return Values(data=values.data[collective_records.kind], missing=missing, words=values.words)


def window_rows(found: RankContext) -> Rows:
    """Which step each measured window is of, and how long the host was in it."""
    step = window_steps(found)
    host: Int64 = np.append(found.cut.host_end - found.cut.host_start, 0)
    return {
        "step": told(step),
        "number": told(step_numbers(found)[step]),
        "host_ns": Values(data=host[step], missing=step == NONE),
    }


def step_rows(facts: RankFacts) -> Rows:
    """A rank's measured windows and their parts."""
    steps, split = facts.steps, facts.partition
    num = len(steps.windows)
    on_device = steps.where == "device"
    median = set(steps.median_windows)
    parts = {part: None if split is None else split.parts[part] for part in PARTS}
    waits_known = split is not None and split.waits_split
    return {
        "start_ns": ints(start for start, _ in steps.windows),
        "end_ns": ints(end for _, end in steps.windows),
        "pitch_ns": ints(steps.step_intervals),
        "is_pitch": flags([steps.is_pitch] * num),
        "is_median": flags(i in median for i in range(num)),
        "busy_ns": ints(facts.busy_ns if on_device else [None] * num),
        "comms_hidden_ns": ints(facts.comms_hidden_ns if on_device else [None] * num),
        **{
            f"{part}_ns": ints(
                [None] * num if lengths is None else _told_waits(part, lengths, parts["comms_transfer"], waits_known)
            )
            for part, lengths in parts.items()
        },
    }


def _told_waits(part: str, lengths: Sequence[int], moved: Sequence[int] | None, waits_known: bool) -> list[int | None]:
    """Where waiting could not be told from moving bytes, it is not 0 but not known."""
    if part != "comms_wait" or waits_known or moved is None:
        return list(lengths)
    return [None if also else length for length, also in zip(lengths, moved, strict=True)]


def window_steps(found: RankContext) -> Int64:
    """The step that each measured window is of; NONE where a window is of several, or of none."""
    steps, num = found.cut.steps, len(found.cut.steps.windows)
    nothing = np.full(num, NONE, np.int64)
    if not steps.is_pitch:
        return nothing
    if steps.where == "host":
        return np.arange(num, dtype=np.int64) + int(steps.source == "Optimizer.step")
    seen = np.unique(found.cut.step_of[found.trace.device_work])
    seen = seen[seen >= 0]
    # A window reaches from the end of one step's work to that of the next; one step alone has the one that was running before.
    ends = seen[1:][np.diff(seen) == 1] if len(seen) > 1 else seen
    return ends if len(ends) == num else nothing


def step_numbers(found: RankContext) -> Int64:
    """Per step, the number in its ProfilerStep mark; NONE where it has none, and last for what is in no step."""
    trace, cut = found.trace, found.cut
    numbers = np.full(len(cut.host_start) + 1, NONE, np.int64)
    if cut.steps.source == "ProfilerStep":
        marks = np.flatnonzero(trace.is_kind(Kind.MARK) & matching(trace, PROFILER_STEP))
        found_in = [_NUMBER.search(trace.names[name]) for name in trace.name[marks].tolist()]
        numbers[:-1] = [NONE if one is None else int(one[1]) for one in found_in]
    return numbers


def rank_rows(
    metas: Sequence[TraceMeta], facts: Sequence[RankFacts], rank_records: Sequence[CollectiveRecords], matched: Matched | None
) -> Rows:
    """The ranks, in the order of `facts`; `matched` is None where their collectives were not compared."""
    offsets = {} if matched is None else {r: ns for r, ns in matched.offset_ns.items() if r not in matched.unaligned}
    # A rank none of whose collectives was matched in a measured step has no lateness, not one of 0.
    late = {} if matched is None else {one.rank: one for one in lateness(rank_records, matched) if one.per_step_ns}
    on_device = [one.steps.where == "device" for one in facts]
    totals = [one.device if there else None for one, there in zip(facts, on_device, strict=True)]
    return {
        "rank": ints(one.rank for one in facts),
        "path": texts(one.path for one in facts),
        "device_name": texts(one.device_name for one in facts),
        "world_size": ints(meta.world_size for meta in metas),
        "num_events": ints(one.num_events for one in facts),
        "num_steps": ints(len(one.steps.windows) if one.steps.is_pitch else None for one in facts),
        "step_source": texts(one.steps.source for one in facts),
        "step_ns": ints(_whole(one.steps.step_interval_ns if one.steps.is_pitch else None) for one in facts),
        "busy_ns": ints(
            _whole(one.steps.typical(one.busy_ns) if there else None) for one, there in zip(facts, on_device, strict=True)
        ),
        "mfu": floats(one.roofline.mfu for one in facts),
        "span_ns": ints(None if one is None else one.span for one in totals),
        "device_busy_ns": ints(None if one is None else one.busy for one in totals),
        "device_compute_ns": ints(None if one is None else one.compute for one in totals),
        "device_comms_ns": ints(None if one is None else one.comms for one in totals),
        "device_copy_ns": ints(None if one is None else one.copy for one in totals),
        "late_ns": ints(late[one.rank].median_ns if one.rank in late else None for one in facts),
        "share_last": floats(late[one.rank].share_last if one.rank in late else None for one in facts),
        "base_ns": ints(meta.base_ns or None for meta in metas),
        "offset_ns": ints(offsets.get(one.rank) for one in facts),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def finding_rows(diagnosis: Diagnosis) -> Rows:
    """The findings, in the order they are reported."""
    found = diagnosis.findings
    first = [one.places[0] if one.places else None for one in found]
    return {
        "rank": ints(one.ranks[0] if len(one.ranks) == 1 else None for one in found),
        "code": texts(one.code for one in found),
        "bound": texts(one.bound for one in found),
        "summary": texts(one.summary for one in found),
        "action": texts(one.action for one in found),
        "evidence": texts("\n".join(one.evidence) for one in found),
        "about_ranks": texts(number_ranges(one.ranks) or None for one in found),
        "predicted_speedup": floats(one.predicted_speedup for one in found),
        "predicted_low": floats(one.predicted_low for one in found),
        "predicted_high": floats(one.predicted_high for one in found),
        "predicted_step_ns": ints(_whole(one.predicted_step_ms * 1e6) for one in found),
        "changes_numerics": flags(one.changes_numerics for one in found),
        "line": texts(None if place is None else place.line for place in first),
        "module": texts(None if place is None else place.module for place in first),
    }
