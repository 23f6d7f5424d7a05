"""Python's garbage collector stops the host in mid-step.

What it sees: the collector at work inside measured steps, as `stepscope run` times it in every
step; in a lone trace frames of `gc.collect()`, or the profiler's own "Python GC" events. Without
any of them a gap in which nothing was recorded may be the collector or any other Python. One in
each step, always as long and no shorter than a full collection takes with PyTorch loaded, is named
as what it may be, with a range that begins at no gain, and python-overhead leaves it out; of
shorter ones it does not judge, nor of one rank of several, which may as well be late.

Why it costs: a full collection visits every object Python tracks; with millions of them (a data
set's index, a large cache) it takes hundreds of milliseconds, in which nothing is launched. On many
ranks all wait for the one that collects.

Evidence it needs: a run recorded by `stepscope run`; else stacks (`with_stack=True`), which show
calls of `gc.collect()`;
`record_python_gc_info=True` in the profiler's experimental_config, together with stacks, also shows
the collections Python starts by itself.

What to do: no `gc.collect()` in the step; `gc.freeze()` once everything that stays is built; else
`gc.disable()` and a `gc.collect(1)` every some hundred steps, on all ranks in the same step.

Example: `gc.collect()` in each step, beside an index of a few million small objects, took a step of
11.5 ms to 458 ms.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.analyses.host.activity import COLLECTOR_RANGE, SHORT_GAP_NS
from stepscope.analyses.intervals import Intervals, intersect, subtract, union
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import Stalls
from stepscope.core.trace import Kind
from stepscope.replay.changes import with_part_ns, without_host_parts
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.between_operators import (
    HostGaps,
    long_gaps,
    per_step_ns,
    ranges_of,
    without_work_in,
)
from stepscope.rules.shared.host_ranges import marked_lines, named_events

CODE = "gc-pause"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    collected_share: float = 0.9
    """Share of the pauses that is spared when the collector still runs, in one step of ten."""
    worth: float = 1.02
    """Stretches whose absence gives less need no recording to explain them."""
    full_ns: int = 50_000_000
    """A full collection visits 165,000 objects and more once torch is imported, 0.3 us each (an
    H200's host: 420 ms with 1.3 million of them)."""
    alike: float = 1.5
    """The longest such stretch over the shortest: a heap is about as large in each step."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Take the collector's pauses out of the steps."""
    graph = case.graph
    pauses, stalls = pauses_of(case, graph), case.stalls("gc")
    rare_ns = 0.0 if stalls is None else float(stalls.step_ns)
    held_ns = per_step_ns(graph, graph.call_parts["gc"]) + rare_ns
    if held_ns == 0:
        return _unexplained(case, graph)
    gain = case.speedup(without_host_parts(graph, "gc")) * (1 + rare_ns / case.step_interval_ns)
    if gain < POLICY.worth:
        return None if held_ns * graph.num_steps <= SHORT_GAP_NS else _unfelt(graph, pauses, stalls)
    events = named_events(case, COLLECTOR_RANGE, Kind.PYTHON, Kind.MARK, Kind.OP)
    return Proposal(
        summary=f"Python's garbage collector holds the host for {held_ns / 1e6:.1f} ms a step.",
        action="No gc.collect() in the step; gc.freeze() after setup; or gc.disable() and "
        "gc.collect() every 500th step, on all ranks at once",
        evidence=_evidence(graph, pauses, stalls),
        events=events,
        locations=marked_lines(case, events, stalls),
        change=lambda before: without_host_parts(before, "gc"),
        cautious=_cautious,
        rare_ns=rare_ns,
    )


def _cautious(graph: Graph) -> Graph:
    return with_part_ns(graph, "gc", graph.call_parts["gc"] * (1 - POLICY.collected_share))


def _evidence(graph: Graph, pauses: Intervals, stalls: Stalls | None) -> tuple[str, ...]:
    evidence = []
    if len(pauses):
        longest = int((pauses.end - pauses.start).max()) / 1e6
        evidence.append(
            f"{len(pauses)} collections in {graph.num_steps} steps, the longest {longest:.1f} ms"
        )
    if stalls is not None:
        evidence.append(
            f"of the timed steps, one in {stalls.every:.3g} holds "
            f"{stalls.once_ns / 1e6:.1f} ms of it"
        )
    return tuple(evidence) or ("timed in every step of the run",)


def _unfelt(graph: Graph, pauses: Intervals, stalls: Stalls | None) -> Remark:
    """The collector ran, and nobody waited for it."""
    times = "; ".join(_evidence(graph, pauses, stalls))
    return Remark(code=CODE, text=f"the usual step does not feel the garbage collector: {times}")


def pauses_of(case: Case, graph: Graph) -> Intervals:
    """When the collector held a driving thread, inside the replayed steps and outside the
    compiler."""
    host = case.context.host
    window = union(graph.call_start_ns[:1], graph.call_end_ns[-1:])
    return intersect(subtract(host.gc, host.compile), window)


def _unexplained(case: Case, graph: Graph) -> Proposal | Abstention | None:
    """Judge without stacks whether gaps that a collector could fill cost anything."""
    if _would_show(case):
        return None
    gaps = long_gaps(case)
    quiet = gaps.only(gaps.own_ns > SHORT_GAP_NS)
    if (
        len(quiet) == 0
        or case.speedup(without_work_in(case, graph, ranges_of(case, quiet, whole=False)))
        < POLICY.worth
    ):
        return None
    full = possible_collections(case)
    if len(full):
        return _possible(case, full)
    return Abstention(
        code=CODE,
        reason=f"nothing was recorded for up to {int(quiet.own_ns.max()) / 1e6:.1f} ms at a time,"
        " which may be the garbage collector",
        needs=case.recorder.stacks,
    )


def _would_show(case: Case) -> bool:
    """Whether a collection would have been timed, or recorded as frames."""
    steps = None if case.metadata is None else case.metadata.steps
    is_timed = steps is not None and steps.gc_ns is not None
    trace = case.context.trace
    return is_timed or trace.meta.has_stacks or bool(trace.is_kind(Kind.PYTHON).any())


@once_a_case
def possible_collections(case: Case) -> HostGaps:
    """Stretches, one in each step, that may be full collections, and are taken for them. All ranks
    of a job run the same code, so that of one of them alone it is not known."""
    gaps = long_gaps(case)
    full = gaps.only(gaps.own_ns >= POLICY.full_ns)
    is_of_several = (case.context.trace.meta.world_size or 1) > 1
    if _would_show(case) or is_of_several or not _is_once_a_step(case, case.graph, full):
        return full.only(np.zeros(len(full), np.bool_))
    return full


def _is_once_a_step(case: Case, graph: Graph, gaps: HostGaps) -> bool:
    """Whether each replayed step has one of them, all about as long."""
    steps = np.searchsorted(case.context.cut.host_start, gaps.start, side="right")
    is_one_each = len(gaps) == len(distinct(steps)) == graph.num_steps
    return is_one_each and int(gaps.own_ns.max()) <= POLICY.alike * int(gaps.own_ns.min())


def _possible(case: Case, gaps: HostGaps) -> Proposal:
    """Proposal for what looks like the collector: other Python may look so too."""
    ranges = ranges_of(case, gaps, whole=False)
    held_ms = float(np.mean(gaps.own_ns)) / 1e6
    shortest, longest = int(gaps.own_ns.min()) / 1e6, int(gaps.own_ns.max()) / 1e6
    return Proposal(
        summary=f"Each step stands still for {held_ms:.0f} ms in one piece with nothing recorded, "
        "as in a full garbage collection.",
        action="Look for gc.collect() in the step, and take it out; gc.freeze() after setup. If "
        f"there is none, it is other Python: {case.recorder.with_stacks} to see which line it is",
        evidence=(
            f"{len(gaps)} stretches in as many steps, {shortest:.0f} to {longest:.0f} ms",
            "without stacks other Python looks the same",
        ),
        change=lambda before: without_work_in(case, before, ranges),
        cautious=lambda before: before,
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
