"""The critical path: unbroken, as long as the steps, and nothing off it matters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyses.rank_context import RankContext, build_context
from stepscope.core.trace import NONE, Trace
from stepscope.readers.cache import read_trace
from stepscope.replay.graph import Graph, build
from stepscope.replay.host_graph import build_on_host
from stepscope.replay.simulate import play
from stepscope.tables.timeline.critical_path import CriticalPath, critical_path, recorded_spans
from stepscope.tables.timeline.tracks import Spans
from tests.builders import source
from tests.shared_data import DEMO
from tests.tracing import Event, call, kernel, mark, op, trace_of

US = 1000


def steps(num_steps: int, *, host_us: int, device_us: int, sync: bool = False) -> Trace:
    """Steps of five launches on one stream and, beside every second, one on another."""
    events: list[Event] = []
    host = free = beside = number = 0
    for step in range(num_steps):
        began = host
        for i in range(5):
            number += 1
            events += [
                op("aten::mul", host, host + host_us * US - 1),
                call("cudaLaunchKernel", host + US, host + 3 * US, number),
            ]
            start = max(host + 8 * US, free + US)
            free = start + device_us * US
            events.append(kernel("main", start, free, number))
            if i % 2:
                number += 1
                events.append(call("cudaLaunchKernel", host + 4 * US, host + 6 * US, number))
                start = max(host + 10 * US, beside + US)
                beside = start + device_us * US // 2
                events.append(kernel("beside", start, beside, number, stream=9))
            host += host_us * US
        if sync:
            done = max(free, beside, host) + 5 * US
            events.append(call("cudaDeviceSynchronize", host, done))
            host = done + 10 * US
        events.append(mark(f"ProfilerStep#{step}", began, host - 1))
    return trace_of(*events)


def graph_of(found: RankContext) -> Graph:
    graph = build(found.trace, found.links, found.cut, found.host, found.collective)
    assert graph is not None
    return graph


def check(graph: Graph, backlog_ns: float) -> CriticalPath:
    """Holds for every graph."""
    path = critical_path(graph, backlog_ns=backlog_ns)
    end = play(graph, backlog_ns=backlog_ns).end_ns
    assert path.end_ns[-1] == end.max()
    assert path.start_ns[1:].tolist() == path.end_ns[:-1].tolist(), "a broken chain"
    assert path.start_ns[0] == 0.0
    assert bool(((path.task == NONE) != (path.call == NONE)).all())
    off = np.ones(len(graph), np.bool_)
    off[path.task[path.task != NONE]] = False
    shorter = replace(graph, task_ns=np.where(off, 0.0, graph.task_ns))
    assert play(shorter, backlog_ns=backlog_ns).end_ns.max() == end.max()
    return path


def share_of_host(path: CriticalPath) -> float:
    length = path.end_ns - path.start_ns
    return float(length[path.task == NONE].sum() / length.sum())


@given(st.integers(12, 80), st.integers(2, 150), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_path_is_unbroken_and_what_lies_off_it_does_not_matter(
    host_us: int, device_us: int, sync: bool
) -> None:
    check(
        graph_of(build_context(steps(4, host_us=host_us, device_us=device_us, sync=sync), None)),
        0.0,
    )


def test_a_slow_host_is_the_path_of_a_host_bound_run_and_kernels_that_of_the_other() -> None:
    slow_host = check(graph_of(build_context(steps(4, host_us=60, device_us=5), None)), 0.0)
    assert share_of_host(slow_host) > 0.95
    slow_device = check(graph_of(build_context(steps(4, host_us=12, device_us=120), None)), 0.0)
    assert share_of_host(slow_device) < 0.05
    by_turns = check(
        graph_of(build_context(steps(4, host_us=40, device_us=80, sync=True), None)), 0.0
    )
    # Each of three waits ends with the device's work, and the host launches the next step.
    assert int((by_turns.task == NONE).sum()) == 3


@pytest.fixture(scope="module")
def demo() -> RankContext:
    return build_context(read_trace(source(DEMO), use_cache=False), None)


def names(spans: Spans) -> dict[str, int]:
    found: dict[str, int] = {}
    for at, name in enumerate(spans.name.tolist()):
        found[spans.names[name]] = found.get(spans.names[name], 0) + int(
            spans.end_ns[at] - spans.start_ns[at]
        )
    return found


def test_the_demos_path_leads_through_its_loader(demo: RankContext) -> None:
    graph = graph_of(demo)
    path = check(graph, graph.backlog_ns)
    spans = recorded_spans(graph, path, demo.trace)
    spans.self_check()
    found = names(spans)
    # The loader stands still for 2 x 51.5 ms of the three recorded steps, says the mark around it.
    assert found["host: input"] == pytest.approx(103_000_000, rel=0.05)
    whole = int(demo.trace.end_ns[graph.task_event].max() - graph.call_start_ns[0])
    assert sum(found.values()) == pytest.approx(whole, rel=0.03)


def test_without_a_device_the_path_is_all_of_the_host() -> None:
    events = [mark(f"ProfilerStep#{i}", i * 1000 * US, (i + 1) * 1000 * US - 1) for i in range(3)]
    events += [op("aten::mm", i * 1000 * US + 100 * US, i * 1000 * US + 700 * US) for i in range(3)]
    found = build_context(trace_of(*events), None)
    graph = build_on_host(found.trace, found.cut, found.host)
    assert graph is not None
    spans = recorded_spans(graph, check(graph, 0.0), found.trace)
    spans.self_check()
    assert names(spans) == {"aten::mm": 3 * 600 * US, "host: work": 2 * 400 * US}
