"""The replay: what was recorded comes out again, and free resources shorten the step by what they
held up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyses.rank_context import RankContext, build_context
from stepscope.core.compiled import load
from stepscope.core.trace import NONE
from stepscope.readers.format import Source
from stepscope.readers.kineto.trace import read as read_kineto
from stepscope.replay.changes import (
    captured_in_pieces,
    with_part_ns,
    with_task_ns,
    without_host_parts,
    without_tasks,
    without_waits,
)
from stepscope.replay.graph import Graph, build
from stepscope.replay.profiler_cost import USUAL_COST_NS, fit, usual_cost_ns, without_cost
from stepscope.replay.resources import counted_once, shares, task_kinds
from stepscope.replay.simulate import ends_by_call, ends_by_stretch, ends_compiled, play
from tests.shared_data import SMALL, lab_traces, needs_shared, shared_traces, some
from tests.tracing import Event, call, copy, kernel, mark, op, trace_of

US, MS = 1_000, 1_000_000


def graph_of(*events: Event) -> Graph:
    return built(build_context(trace_of(*events), None))


def built(found: RankContext) -> Graph:
    graph = build(found.trace, found.links, found.cut, found.host, found.collective)
    assert graph is not None
    graph.self_check()
    return graph


def steps(
    num_steps: int,
    *,
    host_us: int,
    device_us: int,
    sync: bool = False,
    waiting: str = "cudaDeviceSynchronize",
) -> list[Event]:
    """Steps of ten launches; the host needs `host_us` for each, the device `device_us`; with `sync`
    each ends with a call that waits."""
    events: list[Event] = []
    host = free = 0
    for step in range(num_steps):
        began = host
        for i in range(10):
            number = step * 10 + i + 1
            events += [
                op("aten::mul", host, host + host_us * US - 1),
                call("cudaLaunchKernel", host + US, host + 3 * US, number),
            ]
            start = max(host + 8 * US, free + US)
            free = start + device_us * US
            events.append(kernel("vectorized_elementwise_kernel", start, free, number))
            host += host_us * US
        if sync:
            done = max(free, host) + 5 * US
            events.append(call(waiting, host, done))
            host = done + 10 * US
        events.append(mark(f"ProfilerStep#{step}", began, host - 1))
    return events


@pytest.mark.parametrize(
    ("host_us", "device_us", "sync"),
    [(50, 10, False), (20, 100, False), (30, 30, True), (50, 200, True)],
)
def test_an_unchanged_replay_gives_the_recorded_step(
    host_us: int, device_us: int, sync: bool
) -> None:
    found = build_context(
        trace_of(*steps(5, host_us=host_us, device_us=device_us, sync=sync)), None
    )
    assert play(built(found)).step_interval_ns == pytest.approx(
        found.cut.steps.step_interval_ns, rel=0.03
    )


@given(st.integers(12, 80), st.integers(2, 150), st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_even_run_is_reproduced(host_us: int, device_us: int, sync: bool) -> None:
    found = build_context(
        trace_of(*steps(4, host_us=host_us, device_us=device_us, sync=sync)), None
    )
    assert play(built(found)).step_interval_ns == pytest.approx(
        found.cut.steps.step_interval_ns, rel=0.05
    )


@given(st.integers(12, 80), st.integers(2, 150), st.integers(1, 3), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_looking_at_calls_together_gives_what_going_from_call_to_call_does(
    host_us: int, device_us: int, num_streams: int, seed: int
) -> None:
    graph = graph_of(*steps(4, host_us=host_us, device_us=device_us, sync=True))
    streams = np.random.default_rng(seed).integers(0, num_streams, len(graph))
    graph = replace(graph, task_stream=streams, num_streams=num_streams)
    for backlog_ns in (0.0, 77.5):
        by_stretch = ends_by_stretch(graph, backlog_ns)
        by_call = ends_by_call(graph, backlog_ns)
        assert by_stretch.tolist() == by_call
        library = load()
        if library is not None:
            assert ends_compiled(library, graph, graph.call_ns, backlog_ns).tolist() == by_call


def test_a_graph_is_played_once_and_another_one_again() -> None:
    graph = graph_of(*steps(3, host_us=50, device_us=10))
    same = without_tasks(graph, np.zeros(len(graph), np.bool_))
    assert play(same).end_ns is play(graph).end_ns
    slower = replace(graph, task_ns=graph.task_ns * 2)
    assert play(slower).end_ns.tolist() == ends_by_call(slower, 0.0)
    assert play(graph, backlog_ns=MS).end_ns is not play(graph).end_ns


def test_the_part_of_the_trace_has_all_that_began_before_the_steps_were_over() -> None:
    found = build_context(trace_of(*steps(4, host_us=20, device_us=100)), None)
    graph = built(found)
    part = graph.of_trace(found.trace)
    assert (part.start_ns == found.trace.start_ns[: len(part)]).all()
    assert part.kind[graph.task_event].tolist() == found.trace.kind[graph.task_event].tolist()
    assert (found.trace.start_ns[len(part) :] > graph.call_end_ns[-1]).all()


def test_a_host_bound_run_gains_from_the_host_alone() -> None:
    found = build_context(trace_of(*steps(5, host_us=50, device_us=10)), None)
    graph = built(found)
    gained = shares(graph, task_kinds(found, graph))
    assert max(gained, key=lambda name: gained[name]) == "host"
    assert gained["host"] == pytest.approx(1 - 110 / 500, abs=0.05)
    assert gained["memory"] < 0.01


def test_a_device_bound_run_gains_nothing_from_the_host() -> None:
    found = build_context(trace_of(*steps(5, host_us=12, device_us=100)), None)
    graph = built(found)
    gained = shares(graph, task_kinds(found, graph))
    assert gained["host"] < 0.01
    assert gained["memory"] > 0.8


def test_dropping_syncs_lets_the_host_run_ahead() -> None:
    graph = graph_of(*steps(5, host_us=30, device_us=28, sync=True))
    freed = without_waits(graph, graph.call_wait != NONE)
    assert int((graph.call_wait != NONE).sum()) == 5
    assert play(freed).step_interval_ns < play(graph).step_interval_ns


def test_faster_kernels_shorten_the_wait_of_memory_that_is_given_back() -> None:
    graph = graph_of(*steps(5, host_us=30, device_us=100, sync=True, waiting="cudaFree"))
    assert int((graph.call_wait != NONE).sum()) == 5
    faster = with_task_ns(graph, np.ones(len(graph), np.bool_), graph.task_ns / 2)
    before, after = play(graph).step_interval_ns, play(faster).step_interval_ns
    assert after == pytest.approx(before - 10 * 50 * US, rel=0.05)


def test_memory_given_back_to_an_idle_device_waits_for_nothing() -> None:
    graph = graph_of(*steps(5, host_us=50, device_us=10, sync=True, waiting="cudaFree"))
    assert (graph.call_wait == NONE).all()


def test_work_waits_for_the_other_streams_it_waited_for() -> None:
    """A copy on its own stream holds up the kernel that needs it; without the copy the kernel
    begins at once."""
    events: list[Event] = []
    for i in range(4):
        at = i * 500 * US
        events += [
            mark(f"ProfilerStep#{i}", at, at + 499 * US),
            call("cudaMemcpyAsync", at + US, at + 3 * US, 2 * i + 1),
            copy(
                "Memcpy HtoD (Pinned -> Device)", at + 10 * US, at + 300 * US, 2 * i + 1, stream=11
            ),
            call("cudaLaunchKernel", at + 20 * US, at + 22 * US, 2 * i + 2),
            kernel("gemm", at + 301 * US, at + 480 * US, 2 * i + 2, stream=7),
        ]
    graph = graph_of(*events)
    assert int((graph.task_after != NONE).sum()) == 4
    ends = play(without_tasks(graph, graph.task_stream == graph.task_stream[0])).end_ns
    assert ends[1] - play(graph).end_ns[1] == pytest.approx(-290 * US, abs=20 * US)


def test_the_host_is_fitted_to_the_given_step() -> None:
    graph = graph_of(*steps(5, host_us=50, device_us=10))
    fitted = fit(graph, 420 * US, np.zeros(len(graph), np.bool_))
    assert fitted.error == pytest.approx(0.0, abs=0.01)
    assert fitted.step_interval_ns == pytest.approx(420 * US, rel=0.01)
    assert fitted.cost_ns == usual_cost_ns(graph)
    assert fitted.bounds is None


def test_around_the_recorded_step_a_pause_keeps_its_part_of_the_host() -> None:
    """A run a little slower than its recording has much the same host as one a little faster."""
    graph = graph_of(*steps(5, host_us=50, device_us=10))
    pauses = np.arange(len(graph.call_event)) % 10 == 0
    work = graph.call_parts["work"] + np.where(pauses, 300.0 * US, 0.0)
    paused = with_part_ns(graph, "work", work)
    recorded_us = round(play(paused).step_interval_ns / US)
    shares = []
    for step_us in range(recorded_us - 40, recorded_us + 80, 4):
        host = fit(paused, step_us * US, np.zeros(len(graph), np.bool_)).graph.call_ns
        shares.append(float(host[pauses].sum() / host.sum()))
    for shorter, longer in itertools.pairwise(shares):
        assert longer == pytest.approx(shorter, rel=0.03)


def test_a_host_that_ran_ahead_tells_its_own_time() -> None:
    """The device holds the step up, so the step says nothing of the host, which by itself takes 300
    us of the 500 recorded."""
    graph = graph_of(*steps(5, host_us=50, device_us=100))
    none = np.zeros(len(graph), np.bool_)
    fitted = fit(graph, 1010 * US, none, 300 * US)
    assert fitted.step_interval_ns == pytest.approx(1010 * US, rel=0.01)
    assert fitted.graph.call_ns.sum() / graph.num_steps == pytest.approx(300 * US, rel=0.02)
    unknown = fit(graph, 1010 * US, none).graph
    assert (
        300 * US < unknown.call_ns.sum() / graph.num_steps < 400 * US
    )  # COST_SHARE of it recording
    for step, host, is_open in ((1010, None, True), (None, None, True), (1010, 300, False)):
        bounds = fit(
            graph, None if step is None else step * US, none, None if host is None else host * US
        ).bounds
        assert (bounds is not None) == is_open
        if bounds is not None:
            quick, slow = (float(one.call_ns.sum()) / graph.num_steps for one in bounds)
            assert quick < 400 * US < slow < 500 * US
    assert fit(graph_of(*steps(5, host_us=50, device_us=10)), None, none).bounds is None
    # What the recording cost is never less than nothing.
    assert fit(graph, 1010 * US, none, 900 * US).cost_ns == pytest.approx(0.0, abs=10.0)


def test_a_part_of_the_step_in_which_the_host_ran_ahead_tells_its_pace() -> None:
    """500 us were recorded, and a part of the step takes 0.6 of what was recorded of it."""
    graph = graph_of(*steps(5, host_us=50, device_us=100))
    none = np.zeros(len(graph), np.bool_)
    fitted = fit(graph, 1010 * US, none, host_share=(0.6, 0.5, 0.75))
    assert fitted.step_interval_ns == pytest.approx(1010 * US, rel=0.01)
    assert fitted.bounds is not None
    hosts = [each.call_ns.sum() / graph.num_steps for each in (fitted.graph, *fitted.bounds)]
    assert hosts == pytest.approx([300 * US, 250 * US, 375 * US], rel=0.02)
    # A step that the host limits tells its pace by itself.
    busy = graph_of(*steps(5, host_us=50, device_us=10))
    assert fit(busy, 420 * US, none, host_share=(0.3, 0.2, 0.4)).step_interval_ns == pytest.approx(
        420 * US, rel=0.01
    )


def test_what_stood_in_its_stream_began_for_what_ended_shortly_before_on_another() -> None:
    """A collective, launched a step ahead, that begins 40 us after the backward: without the
    backward it begins at once."""
    events: list[Event] = []
    for i in range(4):
        at = 10 * MS + i * 3 * MS
        ahead = at - 2 * MS
        events += [
            mark(f"ProfilerStep#{i}", ahead, ahead + 3 * MS - 1),
            call("cudaLaunchKernel", ahead + 10 * US, ahead + 12 * US, 2 * i + 1),
            kernel("gemm", at, at + 2 * MS, 2 * i + 1, stream=7),
            call("cudaLaunchKernel", ahead + 20 * US, ahead + 22 * US, 2 * i + 2),
            kernel("ncclDevKernel_AllReduce", at + 2040 * US, at + 2900 * US, 2 * i + 2, stream=20),
        ]
    graph = graph_of(*events)
    later = slice(3, None, 2)
    assert graph.task_after[later].tolist() == [2, 4, 6]
    assert (graph.task_gap_ns[later] < MS).all()
    backward = graph.task_stream == graph.task_stream[0]
    sooner = play(graph).end_ns - play(without_tasks(graph, backward)).end_ns
    assert sooner[later].tolist() == pytest.approx([2 * MS] * 3)


def test_with_most_of_a_step_in_collections_the_rest_is_open_by_what_recording_cost() -> None:
    graph = graph_of(*steps(5, host_us=50, device_us=10))
    collecting = with_part_ns(graph, "gc", np.full(len(graph.call_event), 200.0 * US))
    fitted = fit(collecting, 2_600 * US, np.zeros(len(graph), np.bool_))
    assert fitted.bounds is not None
    quick, slow = fitted.bounds
    for each in (fitted.graph, quick, slow):
        assert play(each).step_interval_ns == pytest.approx(2_600 * US, rel=0.01)
    rests = [play(without_host_parts(each, "gc")) for each in (quick, fitted.graph, slow)]
    short, likely, long = (rest.step_interval_ns for rest in rests)
    assert 0.8 * likely < short < likely < long < 1.4 * likely


def test_a_run_far_faster_than_its_recording_had_a_faster_host() -> None:
    """12 us an operator and its call, of which recording is never taken to cost 9: the rest is the
    host's, and Python between operators is faster by it too."""
    graph = graph_of(*steps(5, host_us=12, device_us=2))
    fitted = fit(graph, 36 * US, np.zeros(len(graph), np.bool_))
    assert fitted.step_interval_ns == pytest.approx(36 * US, rel=0.01)
    assert fitted.cost_ns == usual_cost_ns(graph) < 0.65 * 4 * US


def test_a_run_slower_than_its_recording_is_stretched_to_it() -> None:
    graph = graph_of(*steps(5, host_us=50, device_us=10))
    fitted = fit(graph, 900 * US, np.zeros(len(graph), np.bool_))
    assert fitted.step_interval_ns == pytest.approx(900 * US, rel=0.01)


def test_what_varies_takes_up_the_difference_to_the_given_step() -> None:
    """A loader that took 2 ms a step in the recording and 1 ms in the run: the host's own work is
    left as it is."""
    events: list[Event] = []
    now = 0
    for step in range(5):
        began = now
        events.append(
            mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", now, now + 2 * MS)
        )
        now += 2 * MS
        for i in range(10):
            number = step * 10 + i + 1
            events += [
                op("aten::mul", now, now + 49 * US),
                call("cudaLaunchKernel", now + US, now + 3 * US, number),
            ]
            events.append(
                kernel("vectorized_elementwise_kernel", now + 8 * US, now + 18 * US, number)
            )
            now += 50 * US
        events.append(mark(f"ProfilerStep#{step}", began, now - 1))
    graph = graph_of(*events)
    fitted = fit(graph, 1.4 * MS, np.zeros(len(graph), np.bool_))
    assert fitted.step_interval_ns == pytest.approx(1.4 * MS, rel=0.01)
    assert fitted.graph.call_parts["work"].sum() == pytest.approx(
        without_cost(graph, fitted.cost_ns).call_parts["work"].sum()
    )
    assert fitted.graph.call_parts["input"].sum() == pytest.approx(
        graph.call_parts["input"].sum() / 2, rel=0.1
    )
    # What recording cost follows the host's own speed, which a loader's processes would hide.
    assert fitted.cost_ns == usual_cost_ns(graph)
    none = np.zeros(len(graph), np.bool_)
    assert fit(graph, 1.4 * MS, none, contended=True).cost_ns == USUAL_COST_NS


def test_a_host_that_waited_for_room_in_the_queue_is_not_slow() -> None:
    """A device a thousand kernels behind: each launch takes as long as a kernel, and the host could
    be ten times as fast."""
    events: list[Event] = []
    behind = 1000 * 100 * US
    for step in range(3):
        for i in range(20):
            at = (step * 20 + i) * 100 * US
            number = step * 20 + i + 1
            events += [
                op("aten::mul", at, at + 99 * US),
                call("cudaLaunchKernel", at + 2 * US, at + 95 * US, number),
                kernel("vectorized_elementwise_kernel", at + behind, at + behind + 99 * US, number),
            ]
        events.append(mark(f"ProfilerStep#{step}", step * 2000 * US, (step + 1) * 2000 * US - 1))
    graph = graph_of(*events)
    assert play(graph).step_interval_ns == pytest.approx(2000 * US, rel=0.02)
    light = with_task_ns(graph, np.ones(len(graph), np.bool_), np.full(len(graph), 1.0 * US))
    assert play(light).step_interval_ns == pytest.approx(20 * 17 * US, rel=0.1)


def test_changes_compose_and_leave_the_graph_they_were_given_alone() -> None:
    graph = graph_of(*steps(4, host_us=50, device_us=40))
    before = play(graph).step_interval_ns
    everything = np.ones(len(graph.call_event), np.bool_)
    graphed = captured_in_pieces(
        graph, everything, graph.call_step, launch_ns=10 * US, per_task_ns=100, gap_ns=500
    )
    faster = with_task_ns(graphed, np.ones(len(graph), np.bool_), np.full(len(graph), 20.0 * US))
    faster.self_check()
    assert play(faster).step_interval_ns == pytest.approx(10 * 20.5 * US, rel=0.05)
    assert play(graph).step_interval_ns == before


@given(st.integers(12, 60), st.integers(5, 80))
@settings(max_examples=25, deadline=None)
def test_taking_time_away_never_makes_a_step_longer(host_us: int, device_us: int) -> None:
    graph = graph_of(*steps(4, host_us=host_us, device_us=device_us, sync=True))
    whole = play(graph).step_interval_ns
    some = np.arange(len(graph)) % 3 == 0
    for changed in (
        without_tasks(graph, some),
        without_host_parts(graph, "work"),
        without_waits(graph, graph.call_wait != NONE),
        replace(graph, task_latency_ns=graph.task_latency_ns * 0.5),
    ):
        assert play(changed).step_interval_ns <= whole + 1


@pytest.mark.parametrize("host_us", [90, 98, 103])
def test_a_step_a_little_shorter_or_longer_is_fitted_with_much_the_same_host(host_us: int) -> None:
    """The device needs 1,000 us; around it the host's time does not jump with the step's."""
    graph = graph_of(*steps(5, host_us=host_us, device_us=100))
    none = np.zeros(len(graph), np.bool_)
    hosts = [
        float(fit(graph, step_us * US, none).graph.call_ns.sum()) / graph.num_steps
        for step_us in range(970, 1100, 5)
    ]
    for shorter, longer in itertools.pairwise(hosts):
        assert longer == pytest.approx(shorter, rel=0.06)


def lab_graph(path: Path) -> tuple[RankContext, Graph | None]:
    found = build_context(read_kineto(Source(path=path, label=path.name)), None)
    return found, build(found.trace, found.links, found.cut, found.host, found.collective)


def errors_of_steps(paths: list[Path]) -> list[float]:
    errors = []
    for path in paths:
        found, graph = lab_graph(path)
        assert graph is not None, path.name
        graph.self_check()
        step_interval = found.cut.steps.step_interval_ns
        assert step_interval is not None
        errors.append(
            abs(play(graph, backlog_ns=graph.backlog_ns).step_interval_ns / step_interval - 1)
        )
    return errors


def test_the_samples_steps_are_reproduced_within_three_percent() -> None:
    errors = errors_of_steps(lab_traces("single/*", "ranks2/*"))
    assert len(errors) > 10
    assert float(np.median(errors)) < 0.03
    assert max(errors) < 0.08


@needs_shared
def test_the_labs_steps_are_reproduced_within_three_percent() -> None:
    errors = errors_of_steps(some(shared_traces("lab/single/*.gz", "lab/ranks2/*.gz"), 16))
    assert len(errors) > 10
    assert float(np.median(errors)) < 0.03
    assert max(errors) < 0.08


def test_the_embedded_trace_is_reproduced() -> None:
    found, graph = lab_graph(SMALL)
    assert graph is not None
    assert found.cut.steps.step_interval_ns is not None
    played = play(graph).played_interval_ns
    assert played == pytest.approx(found.cut.steps.step_interval_ns, rel=0.03)


def test_what_two_resources_both_account_for_is_counted_once() -> None:
    own = {"data": 0.5, "host": 0.8, "compute": 0.1}
    together = {("host",): 0.8, ("host", "data"): 0.85, ("host", "data", "compute"): 0.95}
    counted = counted_once(own, ["host", "data", "compute"], lambda gone: together[tuple(gone)])
    assert counted == pytest.approx({"data": 0.05, "host": 0.8, "compute": 0.1})
    apart = {"data": 0.1, "host": 0.8}
    assert counted_once(apart, ["host", "data"], lambda _: 0.0) == apart
