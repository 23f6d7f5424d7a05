"""launch-overhead: cheap launching helps a starved device, not a busy one."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.rules.case import Case
from stepscope.rules.host import launch_overhead
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.compiled_host import (
    captured_work,
    launch_weight,
    model_launches,
    own_python,
)
from stepscope.rules.shared.host_ranges import INNER_LAUNCH, tasks_of
from tests.rules.recorder import Recorder, gain
from tests.tracing import call, kernel, op


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


def by_hand(said: Proposal) -> float:
    """What a graph of one's own is said to give."""
    return float(said.evidence[-1].removesuffix("x").rsplit(maxsplit=1)[1])


def test_tiny_kernels_behind_a_slow_host_gain() -> None:
    case = launching(kernel_us=3, host_us=30).case(1_500_000)
    said = launch_overhead.propose(case)
    assert isinstance(said, Proposal)
    assert said.hopeful is not None
    # Of 50 launches as many are left as entering a captured model takes: 27.5 and a graph launch.
    assert 1.7 < gain(case, said) < 2.0
    # The action offers a graph captured by hand too: the range ends there.
    assert case.speedup(said.hopeful(case.graph)) > 5
    assert by_hand(said) > 5


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
    # Half of the launches are the optimizer's: without them no more than half of the step goes.
    assert 1.2 < gain(case, said) < 1.8
    assert by_hand(said) > 5


def test_compiling_the_model_leaves_its_recurrent_layers_as_they_are() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for i in range(30):
            run.launch("aten::mm", kernel_us=3, host_us=30, kernel_name=f"gemm_{i}")
        began = run.now
        for i in range(50):
            run.launch("aten::addmm", kernel_us=3, host_us=30, kernel_name=f"step_{i}")
        run.span("aten::_cudnn_rnn", began, kind=op)
        run.step(number, start)
    assert model_launches(run.case()).sum() == 3 * 30


def training(*, gap_us: float = 0.0, num_clipped: int = 0) -> Recorder:
    """Forward and backward of 40 launches each, with a gap in Python half-way through the forward,
    then as many gradients whose norm is read one by one, then the optimizer."""
    run = Recorder()
    for number in range(3):
        start = run.now
        for i in range(40):
            if i == 20:
                run.work(gap_us)
            run.launch("aten::mm", kernel_us=3, host_us=30, kernel_name=f"forward_{i}")
        began = run.now
        for i in range(40):
            run.launch("aten::mm", kernel_us=3, host_us=30, kernel_name=f"backward_{i}")
        run.span("autograd::engine::evaluate_function: MmBackward0", began, kind=op)
        for _ in range(num_clipped):
            run.launch("aten::linalg_vector_norm", kernel_us=3, host_us=30)
            run.item()
        began = run.now
        run.launch("aten::_fused_adamw_", kernel_us=10)
        run.span("Optimizer.step#AdamW.step", began)
        run.step(number, start)
    return run


def test_what_the_loop_launches_after_backward_is_not_the_models() -> None:
    with_clipping, without = training(num_clipped=20).case(), training().case()
    mask = model_launches(with_clipping)
    assert mask.sum() == model_launches(without).sum() == 3 * 80
    names = with_clipping.context.trace.name[with_clipping.graph.task_event]
    norms = [i for i, name in enumerate(with_clipping.context.trace.names) if "norm_kernel" in name]
    assert not (tasks_of(with_clipping.graph, mask) & np.isin(names, norms)).any()


def test_python_inside_the_model_goes_when_it_is_compiled_but_for_long_stretches() -> None:
    short, long = training(gap_us=300).case(), training(gap_us=3000).case()
    assert own_python(short).sum() == 0
    assert own_python(long).sum() / 3 > 2e6


def launches_around(case: Case) -> float:
    """What a compiled and captured model does around its graphs, in launches of today, a step."""
    mask = model_launches(case)
    today = case.graph.call_parts["work"][mask]
    after = captured_work(case)(case.graph).call_parts["work"][mask]
    return float(after.sum() / today.mean()) / case.graph.num_steps


def test_what_forward_leaves_for_backward_goes_through_python_between_two_graphs() -> None:
    # 27.5 to enter, and a tenth for each of 40 kernels of the forward.
    assert launches_around(launching(kernel_us=3, host_us=30).case()) == pytest.approx(27.5)
    assert launches_around(training().case()) == pytest.approx(31.5)


def test_a_further_kernel_of_an_operator_is_no_launch_of_its_own() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(50):
            run.launch("aten::sort", kernel_us=3, host_us=30)
            run.number += 1
            at = run.now - 8_000
            run.free = max(at, run.free) + 3_000
            run.events += [
                call("cudaLaunchKernel", at, at + 4_000, run.number),
                kernel("second", run.free, run.free + 2_000, run.number),
            ]
        run.step(number, start)
    weight = launch_weight(run.case())
    assert weight.sum() == pytest.approx(3 * 50 * (1 + INNER_LAUNCH))
