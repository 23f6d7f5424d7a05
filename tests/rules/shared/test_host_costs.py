"""What was timed of a host takes the place of what others are like."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.hardware import MeasuredTime, ProbeCase, ProbedTimes
from stepscope.hardware.lookup import find_spec
from stepscope.rules.case import Case, case_of
from stepscope.rules.shared import host_costs as costs_of
from stepscope.rules.shared.host_costs import HostCosts, host_call, host_costs, timed_words
from tests.rules.recorder import Recorder
from tests.rules.steps import H200

LAYER_NS = 200e3


def case_with(times: dict[str, float]) -> tuple[Case, ProbedTimes]:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(20):
            run.launch("aten::mul", kernel_us=2)
        run.step(number, start)
    probed = ProbedTimes(
        times={
            ProbeCase(call=host_call(name), way="asis"): MeasuredTime(
                ns=ns, low_ns=ns, high_ns=ns, samples=5
            )
            for name, ns in times.items()
        }
    )
    return case_of(build_context(run.trace, find_spec(H200), probed=probed), 0, None), probed


def test_nothing_timed_is_what_others_are_like_and_all_is_asked_for() -> None:
    case, probed = case_with({})
    assert host_costs(case) == HostCosts()
    assert timed_words(host_costs(case)) == ()
    asked = {each.call.op.removeprefix("host:") for each in probed.asked}
    assert asked == {
        costs_of.EAGER,
        costs_of.GRAPH,
        costs_of.GRAPH_KERNEL,
        *costs_of.REFERENCE,
    }


def test_a_host_like_the_reference_changes_nothing_of_compiled_code() -> None:
    times = {name: share * LAYER_NS for name, share in costs_of.REFERENCE.items()}
    costs = host_costs(case_with({costs_of.EAGER: LAYER_NS, **times})[0])
    assert costs.per_launch == pytest.approx(HostCosts().per_launch)
    assert costs.entering == pytest.approx(HostCosts().entering)
    assert len(costs.timed) == 3


def test_a_host_on_which_compiled_code_is_dearer_makes_it_dearer() -> None:
    launches = 2 * costs_of.LAUNCHES_TIMES * LAYER_NS
    case, _ = case_with({costs_of.EAGER: LAYER_NS, costs_of.LAUNCHES: launches})
    costs = host_costs(case)
    assert costs.per_launch == pytest.approx(2 * HostCosts().per_launch)
    assert costs.entering == HostCosts().entering
    assert timed_words(costs) == ("timed on this host: a compiled launch",)


def test_what_cannot_be_of_the_host_alone_is_left_out() -> None:
    case, _ = case_with({costs_of.EAGER: LAYER_NS, costs_of.ENTRY: 1e9})
    assert host_costs(case) == HostCosts()


def test_a_graph_is_launched_as_it_was_timed() -> None:
    case, _ = case_with({costs_of.GRAPH: 5_480.0, costs_of.GRAPH_KERNEL: 20.0})
    costs = host_costs(case)
    assert (costs.graph_launch_ns, costs.graph_kernel_ns) == (5_400.0, 20.0)
