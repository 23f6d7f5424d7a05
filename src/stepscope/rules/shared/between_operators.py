"""The host's time between operators and runtime calls, for the rules about Python. Gaps are as they
were recorded; what they cost is of the graph, where what others took of a busy machine's core is
left out (`replay/host_graph.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyses.grouping import matching, median
from stepscope.analyses.host.activity import SHORT_GAP_NS
from stepscope.analyses.intervals import Intervals, contains, join, lengths_in, subtract, union
from stepscope.analyses.steps.projection import OPTIMIZER_RANGE
from stepscope.core.trace import Bool, Float64, Int64, Kind
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.host_ranges import waiting_of

USUAL_NS = 8_000
"""Python's way from one operator to the next takes 4 to 8 us: the medians of 65 recordings of two
labs, torch 2.11."""
OWN_WORK_NS = 50_000
"""A gap this long has more in it than that way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGaps:
    """Gaps in the order of time, one entry each."""

    start: Int64
    end: Int64
    own_ns: Int64
    """Time without the parts that are somebody else's: the loader, saving, compiling, the
    allocator, waits, the optimizer."""
    usual_ns: Int64
    """What such a gap takes anyway: little between two operators, more where one thread hands over
    to another or a step ends."""

    def __len__(self) -> int:
        return len(self.start)

    def only(self, chosen: Bool) -> HostGaps:
        return HostGaps(**{name: getattr(self, name)[chosen] for name in self.__slots__})

    @property
    def middle_ns(self) -> Int64:
        middle: Int64 = (self.start + self.end) // 2
        return middle


@once_a_case
def long_gaps(case: Case) -> HostGaps:
    """The gaps in which the host does something of its own, longer than it takes to go from one
    operator to the next."""
    every = _gaps(case, case.graph)
    short = every.usual_ns < SHORT_GAP_NS
    usual = np.where(
        short, min(int(median(every.own_ns)), USUAL_NS) if len(every) else 0, every.usual_ns
    )
    gaps = replace(every, usual_ns=usual)
    return gaps.only(every.own_ns > np.where(short, OWN_WORK_NS, SHORT_GAP_NS))


def ranges_of(case: Case, gaps: HostGaps, *, whole: bool) -> Intervals:
    """When: all of each, or without what it takes anyway."""
    start = gaps.start if whole else gaps.start + gaps.usual_ns
    return subtract(union(start, gaps.end), elsewhere(case))


def without_work_in(case: Case, graph: Graph, ranges: Intervals, share: float = 1.0) -> Graph:
    """The host no longer spends `share` of its work inside the ranges."""
    left = 1.0 - share * _share_of_work(case, case.graph, ranges)
    return replace(graph, call_parts=graph.call_parts | {"work": graph.call_parts["work"] * left})


def work_ns_in(case: Case, graph: Graph, ranges: Intervals) -> float:
    """The host's work inside the ranges, per step, as the unprofiled run has it."""
    return per_step_ns(graph, graph.call_parts["work"] * _share_of_work(case, graph, ranges))


def per_step_ns(graph: Graph, call_ns: Float64) -> float:
    """Host time after each call, per step. What a step does before its first call stands with the
    last call of the one before it: from the first call of the first step to that of the last one
    all steps are whole. What only the last one holds counts all the same."""
    steps = max(graph.num_steps, 1)
    before_last = graph.call_step < steps - 1
    whole_ns = float(call_ns[before_last].sum()) / max(steps - 1, 1)
    return max(whole_ns, float(call_ns.sum()) / steps)


@once_a_case
def elsewhere(case: Case) -> Intervals:
    """When the host did what other rules judge."""
    trace, host = case.replayed, case.context.host
    optimizer = np.flatnonzero(matching(trace, OPTIMIZER_RANGE) & host.driving[: len(trace)])
    return join(
        host.input,
        host.io,
        host.gc,
        host.compile,
        host.allocator,
        host.sync,
        host.profiler,
        host.collective,
        union(trace.start_ns[optimizer], trace.end_ns[optimizer]),
    )


def _share_of_work(case: Case, graph: Graph, ranges: Intervals) -> Float64:
    """Share of the host's recorded work from each call to the next that lies inside the ranges."""
    host = case.context.host
    known = (host.input, host.io, host.gc, host.compile, host.allocator)
    other = join(waiting_of(case, graph), *known)
    start, end = graph.call_start_ns, graph.call_end_ns
    own = end - start - lengths_in(start, end, other)
    inside = lengths_in(start, end, subtract(ranges, other))
    share: Float64 = np.clip(inside / np.maximum(own, 1), 0.0, 1.0)
    return share


def _gaps(case: Case, graph: Graph) -> HostGaps:
    """All gaps between what was recorded on the driving threads, inside the replayed steps."""
    trace, host, cut = case.replayed, case.context.host, case.context.cut
    events = np.flatnonzero(trace.is_kind(Kind.OP, Kind.RUNTIME) & host.driving[: len(trace)])
    ends = trace.end_ns[events]
    reach = np.maximum.accumulate(ends)
    last = np.maximum.accumulate(np.where(ends == reach, np.arange(len(events)), 0))
    # The last gap ends with the last step: nothing need have been recorded after it.
    stop = int(graph.call_end_ns[-1])
    start, end = reach, np.minimum(np.append(trace.start_ns[events][1:], stop), stop)
    window = (end > start) & (start >= graph.call_start_ns[0])
    handed_over = trace.thread[events[last]] != trace.thread[np.append(events[1:], events[-1:])]
    start, end, handed_over = start[window], end[window], handed_over[window]
    step_ends = np.searchsorted(cut.host_start, end, side="right") > np.searchsorted(
        cut.host_start, start, side="right"
    )
    own = end - start - lengths_in(start, end, elsewhere(case))
    after_wait = contains(host.sync, start - 1)
    usual = np.where(handed_over | step_ends | after_wait, SHORT_GAP_NS, 0)
    return HostGaps(start=start, end=end, own_ns=own, usual_ns=usual)
