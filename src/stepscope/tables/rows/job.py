"""The tables that look at ranks as a whole, or at several of them:
collectives, steps, ranks, findings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.lateness import lateness
from stepscope.analyses.collectives.step_parts import PHASES
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.windows import step_numbers
from stepscope.core.comms import CollectiveRecords, Lateness, Matched
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.numbers import number_ranges
from stepscope.core.trace import NONE, Int64, TraceMeta
from stepscope.tables.rows.columns import (
    Rows,
    Values,
    coded,
    flags,
    floats,
    ints,
    named,
    plain,
    recorded_ints,
    texts,
)


def collective_rows(context: RankContext, records: CollectiveRecords) -> Rows:
    """A rank's collectives, without the other ranks."""
    trace = context.trace
    on_device = np.array([kind.on_device for kind in records.kinds], np.bool_)[records.kind]
    exposed = np.zeros(len(records), np.int64)
    np.add.at(exposed, records.exposed_of, records.exposed_end_ns - records.exposed_start_ns)
    launched = context.links.launch[records.event] != NONE
    return {
        "event": plain(records.event),
        "op": _of_kind(records, texts(kind.op for kind in records.kinds)),
        "name": named(records.event, trace.name, trace.names),
        "group_name": _of_kind(records, texts(kind.group or None for kind in records.kinds)),
        "group_size": _of_kind(
            records,
            ints(kind.group_size or len(kind.group_ranks) or None for kind in records.kinds),
        ),
        "group_ranks": _of_kind(
            records, texts(number_ranges(kind.group_ranks) or None for kind in records.kinds)
        ),
        "peer": _of_kind(records, ints(kind.peer for kind in records.kinds)),
        "dtype": _of_kind(records, texts(kind.dtype for kind in records.kinds)),
        "size_bytes": _of_kind(records, ints(kind.bytes for kind in records.kinds)),
        "sequence": recorded_ints(records.sequence),
        "on_device": plain(on_device),
        "phase": coded(records.phase, PHASES),
        "step": recorded_ints(np.maximum(records.step, NONE)),
        "start_ns": plain(records.start_ns),
        "dur_ns": plain(records.end_ns - records.start_ns),
        "launch_ns": Values(data=records.launch_ns, missing=~launched),
        "stream": recorded_ints(records.stream),
        "exposed_ns": Values(data=exposed, missing=~on_device),
    }


def meeting_rows(records: CollectiveRecords, matched: Matched | None) -> Rows:
    """What the other ranks' recordings add to a rank's collectives;
    `matched` is None where there are none."""
    alone = np.full(len(records), NONE, np.int64)
    meeting = alone if matched is None else matched.of[records.rank]
    waited = alone if matched is None else matched.wait_ns(records)
    return {
        "meeting": recorded_ints(meeting),
        "wait_ns": Values(data=waited, missing=meeting == NONE),
    }


def _of_kind(records: CollectiveRecords, values: Values) -> Values:
    """A figure of each kind of collective, for each collective."""
    missing = None if values.missing is None else values.missing[records.kind]
    return Values(data=values.data[records.kind], missing=missing, words=values.words)


def window_rows(context: RankContext) -> Rows:
    """Rows of the measured windows: which step each is of, and how long the host was in it."""
    step = window_steps(context)
    host: Int64 = np.append(context.cut.host_end - context.cut.host_start, 0)
    return {
        "step": recorded_ints(step),
        "number": recorded_ints(step_numbers(context.trace, context.cut)[step]),
        "host_ns": Values(data=host[step], missing=step == NONE),
    }


def step_rows(facts: RankFacts) -> Rows:
    """A rank's measured windows and their parts."""
    steps, split = facts.steps, facts.partition
    num = len(steps.windows)
    on_device = steps.where == "device"
    median = set(steps.median_windows)
    parts: dict[str, Sequence[int | None]] = dict.fromkeys(PARTS, [None] * num)
    if split is not None:
        parts |= split.parts
        if not split.waits_split:
            # Where waiting could not be split from moving bytes, it is not 0 but not known.
            moved = split.parts["comms_transfer"]
            parts["comms_wait"] = [
                None if ns else waited
                for waited, ns in zip(split.parts["comms_wait"], moved, strict=True)
            ]
    return {
        "start_ns": ints(start for start, _ in steps.windows),
        "end_ns": ints(end for _, end in steps.windows),
        "step_interval_ns": ints(steps.step_intervals),
        "is_step_interval": flags([steps.is_step_interval] * num),
        "is_median": flags(i in median for i in range(num)),
        "busy_ns": ints(facts.busy_ns if on_device else [None] * num),
        "comms_hidden_ns": ints(facts.comms_hidden_ns if on_device else [None] * num),
        **{f"{part}_ns": ints(lengths) for part, lengths in parts.items()},
    }


def window_steps(context: RankContext) -> Int64:
    """The step that each measured window is of; NONE where a window is of several, or of none."""
    steps, num = context.cut.steps, len(context.cut.steps.windows)
    nothing = np.full(num, NONE, np.int64)
    if not steps.is_step_interval:
        return nothing
    if steps.where == "host":
        return np.arange(num, dtype=np.int64) + int(steps.source == "Optimizer.step")
    seen = np.unique(context.cut.step_of[context.trace.device_work])
    seen = seen[seen >= 0]
    # A window reaches from the end of one step's work to that of the next;
    # one step alone has the one that was running before.
    ends = seen[1:][np.diff(seen) == 1] if len(seen) > 1 else seen
    return ends if len(ends) == num else nothing


def rank_rows(
    metas: Sequence[TraceMeta],
    facts: Sequence[RankFacts],
    rank_records: Sequence[CollectiveRecords],
    matched: Matched | None,
) -> Rows:
    """The ranks, in the order of `facts`;
    `matched` is None where their collectives were not compared."""
    offsets: dict[int, int] = {}
    late: dict[int, Lateness] = {}
    if matched is not None:
        offsets = {
            rank: ns for rank, ns in matched.offset_ns.items() if rank not in matched.unaligned
        }
        # A rank none of whose collectives was matched in
        # a measured step has no lateness, not one of 0.
        late = {row.rank: row for row in lateness(rank_records, matched) if row.per_step_ns}
    on_device = [rank if rank.steps.where == "device" else None for rank in facts]
    totals = [None if rank is None else rank.device for rank in on_device]
    return {
        "rank": ints(rank.rank for rank in facts),
        "path": texts(rank.path for rank in facts),
        "device_name": texts(rank.device_name for rank in facts),
        "world_size": ints(meta.world_size for meta in metas),
        "num_events": ints(rank.num_events for rank in facts),
        "num_steps": ints(
            len(rank.steps.windows) if rank.steps.is_step_interval else None for rank in facts
        ),
        "step_source": texts(rank.steps.source for rank in facts),
        "step_ns": ints(
            _rounded(rank.steps.step_interval_ns if rank.steps.is_step_interval else None)
            for rank in facts
        ),
        "busy_ns": ints(
            None if rank is None else _rounded(rank.steps.typical(rank.busy_ns))
            for rank in on_device
        ),
        "mfu": floats(rank.roofline.mfu for rank in facts),
        "span_ns": ints(None if total is None else total.span for total in totals),
        "device_busy_ns": ints(None if total is None else total.busy for total in totals),
        "device_compute_ns": ints(None if total is None else total.compute for total in totals),
        "device_comms_ns": ints(None if total is None else total.comms for total in totals),
        "device_copy_ns": ints(None if total is None else total.copy for total in totals),
        "late_ns": ints(late[rank.rank].median_ns if rank.rank in late else None for rank in facts),
        "share_last": floats(
            late[rank.rank].share_last if rank.rank in late else None for rank in facts
        ),
        "base_ns": ints(meta.base_ns or None for meta in metas),
        "offset_ns": ints(offsets.get(rank.rank) for rank in facts),
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def finding_rows(diagnosis: Diagnosis) -> Rows:
    """The findings, in the order they are reported."""
    findings = diagnosis.findings
    first = [
        finding.source_locations[0] if finding.source_locations else None for finding in findings
    ]
    return {
        "rank": ints(finding.ranks[0] if len(finding.ranks) == 1 else None for finding in findings),
        "code": texts(finding.code for finding in findings),
        "bound": texts(finding.bound for finding in findings),
        "summary": texts(finding.summary for finding in findings),
        "action": texts(finding.action for finding in findings),
        "evidence": texts("\n".join(finding.evidence) for finding in findings),
        "about_ranks": texts(number_ranges(finding.ranks) or None for finding in findings),
        "predicted_speedup": floats(finding.predicted_speedup for finding in findings),
        "predicted_low": floats(finding.predicted_low for finding in findings),
        "predicted_high": floats(finding.predicted_high for finding in findings),
        "predicted_step_ns": ints(
            _rounded(finding.predicted_step_ms * 1e6) for finding in findings
        ),
        "changes_numerics": flags(finding.changes_numerics for finding in findings),
        "line": texts(None if location is None else location.line for location in first),
        "module": texts(None if location is None else location.module for location in first),
    }
