"""The input loader: its calls, the time per step in them, and what more workers leave of it."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyses.host.loader import next_calls
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.core.trace import NONE, Float64, Int64
from stepscope.replay.changes import with_part_ns
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import play
from stepscope.rules.case import Case

FETCH_NS = 1_000_000.0
"""Of the main process for a batch that another process made: 0.05 ms for one small tensor, 1.7 ms
for a table's row of a few (own lab, table_trivial_loader: 4 workers took 1.1 ms of loading off the
step and made it 0.6 ms longer)."""
BISECTIONS = 8


def loading_frames(case: Case, pattern: re.Pattern[str]) -> tuple[Int64, Float64]:
    """What the user's code does in the loader's calls: its outermost frames there, and the calls
    with what time is left."""
    trace, parent, stacks = case.context.trace, case.context.links.parent, case.stacks
    calls = next_calls(trace, case.context.host, pattern)
    own = trace.dur_ns.astype(np.float64)
    if stacks is None or len(calls) == 0:
        return calls, own[calls]
    called = np.zeros(len(trace), np.bool_)
    called[calls] = True
    frames = np.flatnonzero(stacks.user)
    inside = ancestor_with(parent, frames, called)
    outermost = ancestor_with(parent, parent[frames], stacks.user | called) == inside
    frames, inside = frames[(inside != NONE) & outermost], inside[(inside != NONE) & outermost]
    np.subtract.at(own, inside, trace.dur_ns[frames])
    events = np.concatenate([frames, calls])
    return events, np.maximum(own[events], 0.0)


def input_per_step(graph: Graph) -> Float64:
    """The host's time in the loader, per step that has any.

    A batch is fetched after the last call of the step before, and the first fetch may lie before
    the first call: a step at either end of the recording can be without.
    """
    inside = graph.call_step >= 0
    totals = np.bincount(
        graph.call_step[inside], graph.call_parts["input"][inside], minlength=graph.num_steps
    )
    return totals[totals > 0].astype(np.float64)


def with_input(graph: Graph, factor: float, least_ns: float = 0.0) -> Graph:
    """The loader's calls take `factor` of their time, and `least_ns` (or what they take now, if
    that is less) at least."""
    part = graph.call_parts["input"]
    return with_part_ns(graph, "input", np.maximum(part * factor, np.minimum(part, least_ns)))


def loaded_every(graph: Graph, batch_ns: float, fetch_ns: float = FETCH_NS) -> Graph:
    """Batches come from beside the step, one every `batch_ns`: the step waits only if it is done
    before that."""
    free = with_input(graph, 0.0, fetch_ns)
    if play(free).step_interval_ns >= batch_ns:
        return free
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if play(with_input(graph, middle, fetch_ns)).step_interval_ns > batch_ns:
            high = middle
        else:
            low = middle
    return with_input(graph, high, fetch_ns)
