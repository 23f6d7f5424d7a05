from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyses.host.activity import copy_rows, host_activity, host_facts
from stepscope.analyses.kernels.launches import device_sets, launch_facts
from stepscope.analyses.links import link
from stepscope.core.facts import Launches
from stepscope.core.trace import Trace
from tests.tracing import call, copy, kernel, mark, op, trace_of


def launches_of(trace: Trace) -> Launches:
    busy = device_sets(trace, np.zeros(len(trace), np.bool_)).busy
    links, work = link(trace), np.flatnonzero(trace.device_work)
    facts = launch_facts(
        trace,
        links,
        busy,
        work,
        host_activity(trace, links),
        (int(busy.start[0]), int(busy.end[-1])),
    )
    assert facts is not None
    return facts


def test_a_host_that_runs_ahead_leaves_a_queue() -> None:
    events = [
        e
        for i in range(10)
        for e in (
            call("cudaLaunchKernel", i, i + 1, i),
            kernel("k", 20 + i * 100, 120 + i * 100, i),
        )
    ]
    facts = launches_of(trace_of(*events))
    assert facts.median_queue_depth == 4.5
    assert facts.starved_share == 0.1
    assert facts.num_unlinked == 0


def test_a_host_that_lags_starves_the_device() -> None:
    events = [
        e
        for i in range(10)
        for e in (
            call("cudaLaunchKernel", i * 100, i * 100 + 5, i),
            kernel("k", i * 100 + 10, i * 100 + 30, i),
        )
    ]
    facts = launches_of(trace_of(*events))
    assert facts.median_queue_depth == 0
    assert facts.starved_share == 1.0
    assert facts.median_delay_ns == 10
    assert facts.median_call_ns == 5
    assert facts.median_kernel_ns == 20


def test_kernels_of_one_graph_launch_are_counted_as_such() -> None:
    trace = trace_of(
        call("cudaGraphLaunch", 0, 5, 1), *(kernel(f"k{i}", 10 + i, 11 + i, 1) for i in range(6))
    )
    facts = launches_of(trace)
    assert (facts.num_graph_launches, facts.num_in_graphs) == (1, 6)


def test_a_copy_that_holds_the_host_blocks_and_one_that_does_not_does_not() -> None:
    trace = trace_of(
        call("cudaMemcpyAsync", 0, 33_000_000, 1),
        copy("Memcpy HtoD (Pageable -> Device)", 20_000, 33_012_000, 1, size=7000),
        call("cudaMemcpyAsync", 40_000_000, 40_006_000, 2),
        copy("Memcpy HtoD (Pinned -> Device)", 40_010_000, 40_080_000, 2, size=7000),
        call("cudaMemcpyAsync", 50_000_000, 50_100_000, 3),
        copy("Memcpy DtoD (Device -> Device)", 50_001_000, 50_002_000, 3, size=7000),
    )
    links = link(trace)
    host = host_activity(trace, links)
    rows = {
        row.kind: row for row in copy_rows(trace, links, host, np.flatnonzero(trace.device_work))
    }
    assert rows["Memcpy HtoD (Pageable -> Device)"].num_blocking == 1
    assert rows["Memcpy HtoD (Pinned -> Device)"].num_blocking == 0
    assert rows["Memcpy DtoD (Device -> Device)"].num_blocking == 0
    assert rows["Memcpy HtoD (Pinned -> Device)"].bytes_per_s == pytest.approx(7000 / 70e-6)


def test_a_copy_takes_its_size_from_the_call_when_it_has_none_itself() -> None:
    trace = trace_of(
        call("hipMemcpyAsync", 0, 5, 1, size=64),
        copy("Memcpy DtoD", 10, 20, 1),
        copy("Memcpy HtoD", 30, 40, 2),
    )
    links = link(trace)
    rows = {
        row.kind: row
        for row in copy_rows(
            trace, links, host_activity(trace, links), np.flatnonzero(trace.device_work)
        )
    }
    assert rows["Memcpy DtoD"].bytes == 64
    assert rows["Memcpy HtoD"].bytes is None


def test_host_calls_are_counted_by_what_they_are() -> None:
    trace = trace_of(
        op("aten::item", 0, 60),
        call("cudaStreamSynchronize", 10, 50),
        call("cudaMalloc", 70, 90),
        mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100, 130),
        op("entire_frame_compile", 200, 300),
        op("_compile.compile_inner (dynamo_timed)", 210, 290),
        call("cudaStreamSynchronize", 5000, 5010),
    )
    links = link(trace)
    facts = host_facts(trace, links, host_activity(trace, links), 0, 1000)
    assert [(r.name, r.count, r.total_ns, r.longest_ns) for r in facts.syncs] == [
        ("cudaStreamSynchronize", 1, 40, 40)
    ]
    assert [(r.name, r.total_ns) for r in facts.allocator] == [("cudaMalloc", 20)]
    assert [r.total_ns for r in facts.loader] == [30]
    assert [(r.name, r.total_ns) for r in facts.compile] == [("entire_frame_compile", 100)]
