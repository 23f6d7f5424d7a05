"""Taking the profiler's own cost out of the recorded host time.

Every recorded host event costs the host a little (1 to 5 us on one machine, about 3 in the middle); device times stay true. With
the unprofiled step time known, that cost is fitted until the replay reproduces it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.replay.graph import Graph
from stepscope.replay.simulate import play

USUAL_COST_NS = 2_500.0
"""Per recorded host event, when nothing tells better: the middle of what was measured with torch 2.11 on one host."""
COST_RANGE_NS = (0.0, 10_000.0)
LEAST_SHARE = 0.25
"""Of a stretch of host work that is left however many events were recorded in it."""
EPISODIC = ("input", "compile", "io", "allocator")
"""Parts that vary from step to step, so that a recorded step may have less of them than the run's usual one."""
EPISODIC_SHARE = 0.2
CLOSE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A graph whose replay is the unprofiled run, as far as that can be told."""

    graph: Graph
    pitch_ns: float
    cost_ns: float
    """Taken off per recorded host event."""
    error: float | None
    """Of its replay against the known step time; None when that is not known."""


def without_cost(graph: Graph, cost_ns: float) -> Graph:
    """The graph with this much taken off the host's time for each event recorded in it."""
    left = {
        part: np.maximum(graph.call_parts[part] - cost_ns * events, LEAST_SHARE * graph.call_parts[part])
        for part, events in graph.call_events.items()
    }
    return replace(graph, call_parts=graph.call_parts | left)


def fit(graph: Graph, step_ns: float | None) -> Fitted:
    """The graph of the unprofiled run: fitted to its step time, or with the usual cost taken off when that is not known."""
    if step_ns is None:
        usual = without_cost(graph, USUAL_COST_NS)
        return Fitted(graph=usual, pitch_ns=play(usual).pitch_ns, cost_ns=USUAL_COST_NS, error=None)
    recorded = play(graph).pitch_ns
    if recorded < step_ns * (1 - CLOSE):
        return _stretched(graph, step_ns)
    low, high = COST_RANGE_NS
    if play(without_cost(graph, high)).pitch_ns > step_ns:
        # The device holds the step up: the host's time cannot be told from it.
        return _fitted(without_cost(graph, USUAL_COST_NS), USUAL_COST_NS, step_ns)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if play(without_cost(graph, middle)).pitch_ns > step_ns else (low, middle)
    return _fitted(without_cost(graph, high), high, step_ns)


def _stretched(graph: Graph, step_ns: float) -> Fitted:
    """The run's usual step is longer than the recorded ones: more of what varies, else of all host time, until it is met."""
    graph = without_cost(graph, USUAL_COST_NS)
    totals = {part: float(graph.call_parts[part].sum()) for part in graph.call_parts}
    host = sum(totals.values()) or 1.0
    episodic = [part for part in EPISODIC if totals[part] > EPISODIC_SHARE * host]
    stretched = episodic or list(graph.call_parts)
    low, high = 1.0, 1000.0
    for _ in range(16):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if play(_scaled(graph, stretched, middle)).pitch_ns > step_ns else (middle, high)
    return _fitted(_scaled(graph, stretched, low), USUAL_COST_NS, step_ns)


def _scaled(graph: Graph, parts: list[str], factor: float) -> Graph:
    return replace(graph, call_parts={p: v * factor if p in parts else v for p, v in graph.call_parts.items()})


def _fitted(graph: Graph, cost_ns: float, step_ns: float) -> Fitted:
    pitch = play(graph).pitch_ns
    return Fitted(graph=graph, pitch_ns=pitch, cost_ns=cost_ns, error=pitch / step_ns - 1)
