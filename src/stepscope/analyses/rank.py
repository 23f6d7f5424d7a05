"""One rank: Trace in, RankFacts out."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from stepscope.analyses.grouping import distinct
from stepscope.analyses.host.activity import copy_rows, host_facts
from stepscope.analyses.intervals import Intervals, bounds, intersect, lengths_in
from stepscope.analyses.kernels.compute_split import compute_split
from stepscope.analyses.kernels.launches import DeviceSets, device_sets, device_totals, launch_facts
from stepscope.analyses.kernels.roofline import roofline
from stepscope.analyses.kernels.tables import category_rows, kernel_rows
from stepscope.analyses.known_bugs import bug_notes
from stepscope.analyses.links import Links, library_collectives
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.partition import partition
from stepscope.analyses.steps.projection import (
    Charges,
    host_mark_rows,
    host_op_rows,
    inclusive,
    inclusive_rows,
    mark_ranges,
    median_lengths,
    module_ranges,
    op_rows,
    phases,
    project,
    with_steps_joined,
)
from stepscope.analyses.steps.windows import WHOLE_TRACE
from stepscope.core.facts import RangeRow, RankFacts, Steps
from stepscope.core.memory import MemoryUse
from stepscope.core.recorders import recorder_of
from stepscope.core.trace import NONE, Int64, Kind, Trace

MAX_ROWS = 200
"""Rows kept of each table: facts travel between processes, and nobody reads further."""


def measure_rank(
    context: RankContext, rank: int, step_ns: int | None = None, *, is_run: bool = False
) -> RankFacts:
    """Everything the analyses measure of one rank.
    `step_ns` is the unprofiled step time, when known; `is_run` whether `stepscope run` recorded
    it."""
    trace, links, steps = context.trace, context.links, context.cut.steps
    low, high = context.window
    measured = _within(trace, context.charges.work, low, high)
    charges, origins = context.charges.only(measured), context.origins.only(measured)
    kernels = context.kernels.only(_within(trace, context.kernels.kernels, low, high))
    step = step_ns or (steps.step_interval_ns if steps.is_step_interval else None)
    launches = launch_facts(
        trace, links, context.sets.busy, charges.work, context.host, (low, high)
    )
    marks, modules = _range_rows(context, charges, origins)
    return RankFacts(
        rank=rank,
        path=trace.meta.path,
        device_name=None if context.device is None else context.device.name,
        num_events=trace.num_raw_events,
        device=device_totals(_library_sets(context)),
        steps=steps,
        partition=partition(trace, steps, context.parts),
        launches=launches,
        categories=category_rows(trace, kernels),
        kernels=kernel_rows(trace, origins, kernels)[:MAX_ROWS],
        ops=_op_rows(context, origins),
        modules=modules,
        marks=_marks(context, charges, marks),
        phases=phases(trace, origins),
        copies=copy_rows(trace, links, context.host, charges.work),
        host=host_facts(trace, links, context.host, *context.cut.host_window),
        roofline=roofline(trace, charges, kernels, context.roofs, len(steps.windows), step),
        busy_ns=_in_windows(steps, context.sets.busy),
        comms_hidden_ns=_in_windows(steps, intersect(context.sets.comms, context.sets.compute)),
        compute_split=compute_split(context),
        memory=None if trace.memory is None else _memory_use(context),
        has_marks=bool(trace.is_kind(Kind.MARK).any()),
        unknown=trace.unknown,
        notes=trace.notes
        + _notes(context, charges.work, 0 if launches is None else launches.num_lost, is_run=is_run)
        + bug_notes(context.trace, 0 if launches is None else launches.num_lost)
        + _step_time_notes(steps, context, step_ns),
    )


def _memory_use(context: RankContext) -> MemoryUse | None:
    from stepscope.analyses.memory.use import memory_use

    return memory_use(context)


def _marks(
    context: RankContext, charges: Charges, rows: tuple[RangeRow, ...]
) -> tuple[RangeRow, ...]:
    """The user's own ranges: by the device's time, or by the host's where it did the work."""
    trace = context.trace
    if context.cut.steps.where == "device":
        whole = int(trace.dur_ns[charges.work].sum())
        return with_steps_joined(_projected(trace, context.links, rows), whole)
    low, high = context.cut.host_window
    inside = (trace.start_ns >= low) & (trace.start_ns < high) & context.host.driving
    return with_steps_joined(host_mark_rows(trace, inside), high - low)[:MAX_ROWS]


def _range_rows(
    context: RankContext, charges: Charges, origins: Charges
) -> tuple[tuple[RangeRow, ...], tuple[RangeRow, ...] | None]:
    """Rows of the marks, and of the modules where stacks were recorded. What is inside each range
    is as large as the trace, and is let go of here."""
    trace, links = context.trace, context.links
    inside = inclusive(trace, links, charges)
    marks = inclusive_rows(trace, links, inside, mark_ranges(trace))[:MAX_ROWS]
    if not trace.meta.has_stacks:
        return marks, None
    if context.origins is not context.charges:
        inside = inclusive(trace, links, origins)
    return marks, inclusive_rows(trace, links, inside, module_ranges(trace))[:MAX_ROWS]


def _within(trace: Trace, events: Int64, low: int, high: int) -> slice:
    """Slice of the events, which are in order of time, that begin in the window."""
    begin, end = np.searchsorted(trace.start_ns, (low, high))
    return slice(*np.searchsorted(events, (begin, max(begin, end))).tolist())


def _library_sets(context: RankContext) -> DeviceSets:
    """Sets with the libraries' own kernels alone for communication: mostly the same sets."""
    library = library_collectives(context.trace)
    if np.array_equal(library, context.collective):
        return context.sets
    return device_sets(context.trace, library)


def _op_rows(context: RankContext, charges: Charges) -> tuple[RangeRow, ...]:
    if context.cut.steps.where == "device":
        return op_rows(context.trace, charges)[:MAX_ROWS]
    rows = host_op_rows(context.trace, context.links, context.host.input, *context.cut.host_window)
    return rows[:MAX_ROWS]


def _in_windows(steps: Steps, covered: Intervals) -> tuple[int, ...]:
    return tuple(lengths_in(*bounds(steps.windows), covered).tolist())


def _step_time_notes(steps: Steps, context: RankContext, step_ns: int | None) -> tuple[str, ...]:
    """Says when the given step time cannot be this run's."""
    busy = steps.typical(_in_windows(steps, context.sets.busy))
    if step_ns is None or busy is None or not steps.is_step_interval or step_ns >= 0.9 * busy:
        return ()
    return (
        (
            f"the given step time, {step_ns / 1e6:g} ms, is less than the {busy / 1e6:.1f} ms that "
            "the device works in each step"
        ),
    )


def _projected(trace: Trace, links: Links, rows: tuple[RangeRow, ...]) -> tuple[RangeRow, ...]:
    """The rows of marks with their extent on the device."""
    if not rows:
        return rows
    lengths = median_lengths(trace, project(trace, links, trace.is_kind(Kind.MARK)))
    projected = {name: round(length) for name, length in lengths.items()}
    return tuple(replace(row, projected_ns=projected.get(row.name)) for row in rows)


def _graph_notes(links: Links, work: Int64) -> list[tuple[int, str]]:
    """Notes on whose the work of CUDA graphs is, as far as that can be told."""
    in_graphs = links.shared[work] | (links.captured[work] != NONE)
    graphs, known = int(in_graphs.sum()), int((links.captured[work] != NONE).sum())
    return [
        (
            known,
            (
                f"{known} of {graphs} device events inside CUDA graphs are charged to the "
                "operators of the captured run, kernel by kernel in its order"
            ),
        ),
        (
            graphs - known,
            (
                f"{graphs - known} device events ran inside CUDA graphs: charged to the graph's "
                "launch, not to operators"
                + (
                    ""
                    if known
                    else " (record the eager run before the capture too: kernels are then "
                    "matched with it by name and order)"
                )
            ),
        ),
    ]


def _notes(context: RankContext, work: Int64, lost: int, *, is_run: bool) -> tuple[str, ...]:
    trace, links, steps, device = context.trace, context.links, context.cut.steps, context.device
    unlinked = int((links.launch[work] == NONE).sum())
    devices = len(distinct(trace.device[work]))
    name = "the device" if device is None else repr(device.name)
    recorder = recorder_of(trace.meta.versions, is_run=is_run)
    record_more = f"record two steps or more: {recorder.more_steps}"
    notes = [
        (len(trace) == 0, "the trace holds no events: nothing could be measured"),
        (
            len(trace) and steps.where == "host" and trace.is_kind(Kind.OP).any(),
            "no device work was recorded: operators on the host are taken for the work",
        ),
        (
            len(trace) and steps.where == "host" and not trace.is_kind(Kind.OP).any(),
            f"neither device work nor operators were recorded ({recorder.operators})",
        ),
        (
            steps.windows and steps.source == WHOLE_TRACE,
            f"no steps could be detected: all that was recorded is taken as one ({record_more})",
        ),
        (
            steps.windows and not steps.is_step_interval and steps.source != WHOLE_TRACE,
            (
                f"the trace shows too few steps by {steps.source}: the span of what ran stands in "
                f"for the step time ({record_more})"
            ),
        ),
        (
            steps.is_step_interval and steps.num_seen == 1,
            f"one step was recorded: no gain can be predicted ({record_more})",
        ),
        (
            0 < steps.num_seen < steps.num_marked,
            (
                f"{steps.num_marked - steps.num_seen} of {steps.num_marked} steps launched no "
                "device work; the others were measured"
            ),
        ),
        (devices > 1, f"work of {devices} devices in one trace: busy means that any of them was"),
        (
            len(work) and not trace.is_kind(Kind.RUNTIME).any(),
            (
                "no runtime calls were recorded: what the device waited for is not known "
                f"({recorder.calls})"
            ),
        ),
        (
            len(work) and not trace.is_kind(Kind.OP).any(),
            f"no operators were recorded: kernels are not charged to them ({recorder.operators})",
        ),
        (
            steps.where == "device" and not trace.is_kind(Kind.MARK).any(),
            (
                "no marks were recorded: loader and optimizer cannot be distinguished from other "
                f"work ({recorder.marks})"
            ),
        ),
        (
            steps.where == "host" and device is not None,
            (
                f"the trace names a device, {name}, and shows none of its work: profile with "
                "ProfilerActivity.CUDA"
            ),
        ),
        (
            lost,
            (
                f"{lost} device events or their launches were lost, {len(work)} events are there: "
                "bounds that are close are not distinguished"
            ),
        ),
        (
            0 < unlinked < len(work) and trace.is_kind(Kind.RUNTIME).any(),
            (
                f"{unlinked} of {len(work)} device events have no recorded launch (launched before "
                "the recording began)"
            ),
        ),
        (
            unlinked and unlinked == len(work) and trace.is_kind(Kind.RUNTIME).any(),
            (
                "no device event could be linked to its launch, by correlation: what the device "
                "waited for is not known"
            ),
        ),
        *_graph_notes(links, work),
        (
            context.roofs is None and steps.where == "device",
            f"{name} is not in our tables: no peaks, no MFU",
        ),
        (
            steps.where == "device" and not trace.meta.has_shapes,
            f"no input shapes: no FLOPs, no MFU ({recorder.shapes})",
        ),
    ]
    return tuple(text for condition, text in notes if condition)
