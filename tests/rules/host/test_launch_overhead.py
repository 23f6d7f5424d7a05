"""launch-overhead: cheap launching helps a starved device, not a busy one."""

from __future__ import annotations

from stepscope.rules.host import launch_overhead
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain


def launching(*, kernel_us: float, host_us: float, changing: bool = False) -> Recorder:
    run = Recorder()
    for number in range(3):
        start = run.now
        for i in range(50):
            run.launch(
                "aten::mm",
                kernel_us=kernel_us,
                host_us=host_us,
                kernel_name=f"gemm_{i + number * 50 if changing else i}",
            )
        run.step(number, start)
    return run


def test_tiny_kernels_behind_a_slow_host_gain() -> None:
    case = launching(kernel_us=3, host_us=30).case(1_500_000)
    said = launch_overhead.propose(case)
    assert isinstance(said, Proposal)
    assert said.hopeful is not None
    assert case.graph is not None
    # Of 50 launches as many are left as entering a compiled model takes: 20 and a graph launch.
    assert 2.0 < gain(case, said) < 2.5
    assert case.speedup(said.hopeful(case.graph)) > 5


def test_a_device_that_is_always_busy_gains_nothing() -> None:
    case = launching(kernel_us=200, host_us=30).case()
    assert gain(case, launch_overhead.propose(case)) < 1.02


def test_kernels_a_little_longer_than_their_launch_are_judged_by_the_gain() -> None:
    case = launching(kernel_us=14, host_us=30).case(1_500_000)
    assert 1.5 < gain(case, launch_overhead.propose(case)) < 2.2


def test_shapes_that_change_are_promised_less() -> None:
    steady, changing = (
        launching(kernel_us=3, host_us=30).case(1_500_000),
        launching(kernel_us=3, host_us=30, changing=True).case(1_500_000),
    )
    said = launch_overhead.propose(changing)
    assert isinstance(said, Proposal)
    assert gain(changing, said) <= gain(steady, launch_overhead.propose(steady))
    assert "shapes" in said.action


def test_waits_stay_in_place() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(5):
            for _ in range(5):
                run.launch("aten::mm", kernel_us=3, host_us=20)
            run.item()
        run.step(number, start)
    case = run.case()
    said = launch_overhead.propose(case)
    assert isinstance(said, Proposal)
    assert case.graph is not None
    assert (said.change(case.graph).call_wait == case.graph.call_wait).all()


def test_compiling_the_model_leaves_the_optimizer_as_it_is() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for i in range(50):
            run.launch("aten::mm", kernel_us=3, host_us=30, kernel_name=f"gemm_{i}")
        began = run.now
        for i in range(50):
            run.launch("aten::add_", kernel_us=3, host_us=30, kernel_name=f"update_{i}")
        run.span("Optimizer.step#SGD.step", began)
        run.step(number, start)
    case = run.case(3_000_000)
    said = launch_overhead.propose(case)
    assert isinstance(said, Proposal)
    assert said.hopeful is not None
    assert case.graph is not None
    # Half of the launches are the optimizer's: without them no more than half of the step goes.
    assert 1.3 < gain(case, said) < 2.0
    assert case.speedup(said.hopeful(case.graph)) > 5
