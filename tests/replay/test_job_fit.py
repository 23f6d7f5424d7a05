"""The hosts' time by their pace, and what is left of the step to the collectives where they hold it
up."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import Graph
from stepscope.replay.job import fit_job, with_graphs
from stepscope.replay.profiler_cost import (
    COST_FIXED_NS,
    COST_SHARE,
    PACE_RANGE,
    USUAL_COST_NS,
    USUAL_RANGE_NS,
    usual_cost_ns,
    without_cost,
    without_cost_ns,
)
from stepscope.replay.simulate_job import JobGraph, play_job
from stepscope.rules.job_case import JobCase
from tests.rules.job_cases import Fleet, ddp


def graph_with(work_ns: float, events: int, *, sleeps: int = 0, calls: int = 40) -> Graph:
    recorded = ddp().job().cases[0].recorded
    assert recorded is not None
    work = np.full(calls, work_ns * events)
    work[:sleeps] = 1e9
    return replace(
        recorded,
        call_parts={
            part: work if part == "work" else np.zeros(calls) for part in recorded.call_parts
        },
        call_events={
            part: np.full(calls, events if part == "work" else 0) for part in recorded.call_events
        },
    )


@pytest.mark.parametrize("pace_ns", [4_000.0, 8_000.0])
def test_a_slow_host_pays_more_for_the_recording(pace_ns: float) -> None:
    cost_ns = COST_FIXED_NS + COST_SHARE * pace_ns
    assert usual_cost_ns(graph_with(pace_ns, 3)) == pytest.approx(cost_ns)


def test_sleeping_between_calls_is_not_a_slow_host() -> None:
    assert usual_cost_ns(graph_with(4_000.0, 3, sleeps=10)) == usual_cost_ns(graph_with(4_000.0, 3))


def test_a_cost_told_by_the_pace_stays_where_costs_were_seen() -> None:
    assert (
        usual_cost_ns(graph_with(100.0, 3)),
        usual_cost_ns(graph_with(90_000.0, 3)),
    ) == USUAL_RANGE_NS


def test_few_calls_tell_no_pace() -> None:
    assert usual_cost_ns(graph_with(9_000.0, 3, calls=5)) == USUAL_COST_NS


def test_recording_costs_more_where_the_host_does_more_but_not_where_it_sleeps() -> None:
    host_ns = np.array([6_000, 12_000, 1_000_000])
    left = without_cost_ns(host_ns, np.array([3, 3, 3]), 1_000.0, 4_000.0)
    assert left.tolist() == [4_500, 9_000, 997_000]


def recorded(job: JobCase) -> JobGraph:
    parts = tuple(
        replace(part, graph=case.recorded)
        for part, case in zip(job.job_graph.parts, job.cases, strict=True)
        if case.recorded is not None
    )
    return replace(job.job_graph, parts=parts)


def exchanging(host_us: float, moving_us: float, *, needed: bool = True) -> JobGraph:
    """Ten kernels of 20 us, each after an exchange that, where `needed`, it waits for."""
    fleet = Fleet()
    for _ in range(5):
        for _ in range(10):
            fleet.compute(20, host_us=host_us)
            fleet.collective("all_reduce", 1 << 20, moving_us, needed=needed)
        fleet.step()
    return recorded(fleet.job())


def host_ms(job_graph: JobGraph) -> float:
    return float(job_graph.parts[0].graph.call_ns.sum()) / 1e6


def without_hosts(job_graph: JobGraph) -> JobGraph:
    return with_graphs(
        job_graph,
        [without_host_parts(part.graph, *part.graph.call_parts) for part in job_graph.parts],
    )


def at_usual(job_graph: JobGraph) -> JobGraph:
    return replace(
        job_graph,
        parts=tuple(
            replace(p, graph=without_cost(p.graph, usual_cost_ns(p.graph))) for p in job_graph.parts
        ),
    )


def test_a_host_bound_step_tells_the_cost_of_recording() -> None:
    made = exchanging(host_us=100, moving_us=5)
    usual = play_job(at_usual(made)).step_interval_ns
    for step_ns in (0.97 * usual, 1.02 * usual):
        fitted = fit_job(made, step_ns)
        assert play_job(fitted).step_interval_ns == pytest.approx(step_ns, rel=0.01)
        assert (fitted.moving_ns == made.moving_ns).all()
        assert (host_ms(fitted) > host_ms(at_usual(made))) == (step_ns > usual)


def test_no_host_is_more_than_twice_as_fast_in_the_run() -> None:
    made = exchanging(host_us=400, moving_us=5)
    usual = at_usual(made)
    fastest = fit_job(made, 0.1 * play_job(usual).step_interval_ns)
    assert host_ms(fastest) == pytest.approx(PACE_RANGE[0] * host_ms(usual), rel=0.05)


def test_from_device_to_hosts_the_fit_has_no_jump() -> None:
    """The hosts take a sixth longer than the device and the exchanges."""
    made = exchanging(host_us=150, moving_us=112)
    limit = play_job(without_hosts(made)).step_interval_ns
    usual = play_job(at_usual(made)).step_interval_ns
    assert 1.1 < usual / limit < 1.3
    steps = np.geomspace(0.98 * limit, usual, 12)
    hosts = [host_ms(fit_job(made, float(step_ns))) for step_ns in steps]
    for shorter, longer in itertools.pairwise(hosts):
        assert shorter <= 1.001 * longer
        assert longer < 1.06 * shorter
    assert hosts[0] < 0.95 * hosts[-1]


def test_where_the_step_waits_for_collectives_they_take_the_rest() -> None:
    made = exchanging(host_us=125, moving_us=112, needed=False)
    usual, whole = play_job(at_usual(made)).step_interval_ns, play_job(made).step_interval_ns
    step_ns = (usual + whole) / 2
    assert whole > 1.02 * usual, "the recording must leave something to explain"
    fitted = fit_job(made, step_ns)
    assert play_job(fitted).step_interval_ns == pytest.approx(step_ns, rel=0.01)
    assert host_ms(fitted) == pytest.approx(host_ms(at_usual(made)))
    assert (fitted.moving_ns > made.moving_ns).all()


def test_without_a_step_time_the_usual_cost_is_taken_off() -> None:
    made = exchanging(host_us=100, moving_us=5)
    assert host_ms(fit_job(made, None)) == pytest.approx(host_ms(at_usual(made)))
