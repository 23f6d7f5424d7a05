"""allocator-churn: the driver's allocations in steady steps."""

from __future__ import annotations

from stepscope.rules.host import allocator_churn
from tests.rules.recorder import Recorder, gain
from tests.tracing import call


def allocating(*, us: float, kernel_us: float) -> Recorder:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            if us:
                began = run.now
                run.work(us)
                run.span("cudaMalloc", began, kind=call)
            run.launch("aten::mm", kernel_us=kernel_us)
        run.step(number, start)
    return run


def test_allocations_that_starve_the_device_cost() -> None:
    case = allocating(us=100, kernel_us=20).case()
    assert gain(case, allocator_churn.propose(case)) > 2


def test_allocations_behind_a_busy_device_cost_nothing() -> None:
    case = allocating(us=100, kernel_us=1000).case()
    assert gain(case, allocator_churn.propose(case)) < 1.02


def test_a_run_without_them_is_left_alone() -> None:
    assert allocator_churn.propose(allocating(us=0, kernel_us=20).case()) is None


def test_the_drivers_calls_are_as_long_in_the_unprofiled_run() -> None:
    """A shorter step is one with less of the profiler's cost, which lies in the operators."""
    run = allocating(us=100, kernel_us=20)
    recorded, case = run.case().recorded, run.case(1_200_000)
    assert recorded is not None
    assert case.graph is not None
    left = case.graph.call_parts["allocator"].sum() / recorded.call_parts["allocator"].sum()
    assert left > 0.9
