"""Python's garbage collector stops the host in mid-step.

What it sees: the collector at work inside measured steps: frames of `gc.collect()`, or the
profiler's own "Python GC" events. Without either a long gap in which nothing was recorded may
be the collector or any other Python: then it does not judge.

Why it costs: a full collection visits every object Python tracks; with millions of them (a data
set's index, a large cache) it takes hundreds of milliseconds, in which nothing is launched. On many
ranks all wait for the one that collects.

Evidence it needs: stacks (`with_stack=True`), which show calls of `gc.collect()`;
`record_python_gc_info=True` in the profiler's experimental_config, together with stacks, also shows
the collections Python starts by itself.

What to do: no `gc.collect()` in the step; `gc.freeze()` once everything that stays is built; else
`gc.disable()` and a `gc.collect(1)` every some hundred steps, on all ranks in the same step.

Example: `gc.collect()` in each step, beside an index of a few million small objects, took a step of
11.5 ms to 458 ms.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.activity import SHORT_GAP_NS
from stepscope.analyses.intervals import Intervals, intersect, subtract, union
from stepscope.analyses.naming import matching
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Kind
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.shared.between_operators import long_gaps, ranges_of, without_work_in
from stepscope.rules.shared.host_ranges import named_events

CODE = "gc-pause"
BOUND = "host"
NEEDS_DEVICE = False

COLLECTOR = re.compile(
    r"^Python GC$|^<built-in (function|method) collect\b|^(python )?gc[._ ]?collect(\(\))?$",
    re.IGNORECASE,
)


class Policy(Struct, frozen=True, kw_only=True):
    collected_share: float = 0.9
    """Of the pauses that are spared when the collector still runs, in one step of ten."""
    worth: float = 1.02
    """Stretches whose absence gives less need no recording to explain them."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Take the collector's pauses out of the steps."""
    graph = case.graph
    if graph is None:
        return None
    pauses = pauses_of(case, graph)
    if len(pauses) == 0:
        return _unexplained(case, graph)
    longest = int((pauses.end - pauses.start).max()) / 1e6
    if case.speedup(without_work_in(case, graph, pauses)) < POLICY.worth:
        if pauses.total <= SHORT_GAP_NS:
            return None
        times = (
            f"{len(pauses)} times in {graph.num_steps} steps, for {longest:.1f} ms at the longest"
        )
        text = f"The garbage collector ran {times}; the usual step does not feel it."
        return Remark(code=CODE, text=text)
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary="Python's garbage collector holds the host for "
        f"{pauses.total / graph.num_steps / 1e6:.1f} ms a step.",
        action="No gc.collect() in the step; gc.freeze() after setup; or gc.disable() and "
        "gc.collect() every 500th step,"
        " on all ranks at once",
        evidence=(
            f"{len(pauses)} collections in {graph.num_steps} steps, the longest {longest:.1f} ms",
        ),
        events=named_events(case, COLLECTOR, Kind.PYTHON, Kind.MARK, Kind.OP),
        change=lambda before: without_work_in(case, before, pauses),
        cautious=lambda before: without_work_in(case, before, pauses, POLICY.collected_share),
    )


def pauses_of(case: Case, graph: Graph) -> Intervals:
    """When the collector held a driving thread, inside the replayed steps and outside the
    compiler."""
    trace, host = case.replayed, case.context.host
    named = trace.is_kind(Kind.PYTHON, Kind.MARK, Kind.OP) & matching(trace, COLLECTOR)
    events = np.flatnonzero(named & host.driving[: len(trace)])
    window = union(graph.call_start_ns[:1], graph.call_end_ns[-1:])
    return intersect(
        subtract(union(trace.start_ns[events], trace.end_ns[events]), host.compile), window
    )


def _unexplained(case: Case, graph: Graph) -> Abstention | None:
    """Without stacks: whether gaps that a collector could fill cost anything."""
    if case.context.trace.meta.has_stacks or case.context.trace.is_kind(Kind.PYTHON).any():
        return None
    gaps = long_gaps(case, graph)
    quiet = gaps.only(gaps.own_ns > SHORT_GAP_NS)
    if (
        len(quiet) == 0
        or case.speedup(without_work_in(case, graph, ranges_of(case, quiet, whole=False)))
        < POLICY.worth
    ):
        return None
    return Abstention(
        code=CODE,
        reason=f"nothing was recorded for up to {int(quiet.own_ns.max()) / 1e6:.1f} ms at a time,"
        " which may be the garbage collector",
        needs="with_stack=True",
    )
