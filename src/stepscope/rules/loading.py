"""The input loader as the data rules see it: its calls, what a step spends in them, what more workers leave of that."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyses.naming import matching
from stepscope.core.trace import Int64, Kind
from stepscope.replay.changes import with_part_ns
from stepscope.replay.graph import Float64, Graph
from stepscope.replay.simulate import play
from stepscope.rules.case import Case

WORKERS = re.compile(r"_MultiProcessingDataLoaderIter\.__next__")
READY_NS = 300_000.0
"""Fetching a batch that a worker has ready: 0.05 ms for one small tensor (lab), here six times that:
batches of many tensors were not measured."""
BISECTIONS = 8


def next_calls(case: Case, pattern: re.Pattern[str]) -> Int64:
    """The loader's `__next__` calls of this kind, in order, on the threads that drive the device."""
    found = case.survey
    return np.flatnonzero(found.trace.is_kind(Kind.MARK, Kind.OP) & found.host.driving & matching(found.trace, pattern))


def input_per_step(graph: Graph) -> Float64:
    """The host's time in the loader, per step that has any.

    A batch is fetched after the last call of the step before, and the first fetch may lie before the first call: a step at either
    end of the recording can be without.
    """
    inside = graph.call_step >= 0
    totals = np.bincount(graph.call_step[inside], graph.call_parts["input"][inside], minlength=graph.num_steps)
    return totals[totals > 0].astype(np.float64)


def with_input(graph: Graph, factor: float, least_ns: float = 0.0) -> Graph:
    """The loader's calls take `factor` of their time, and `least_ns` (or what they take now, if that is less) at least."""
    part = graph.call_parts["input"]
    return with_part_ns(graph, "input", np.maximum(part * factor, np.minimum(part, least_ns)))


def loaded_every(graph: Graph, batch_ns: float) -> Graph:
    """Batches come from beside the step, one every `batch_ns`: the step waits only if it is done before that."""
    free = with_input(graph, 0.0, READY_NS)
    if play(free).pitch_ns >= batch_ns:
        return free
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if play(with_input(graph, middle, READY_NS)).pitch_ns > batch_ns else (middle, high)
    return with_input(graph, high, READY_NS)
