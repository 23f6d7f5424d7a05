"""debug-mode: launches that block, checks in every backward node."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.replay.profiler_cost import usual_cost_ns
from stepscope.rules.case import Case, case_of
from stepscope.rules.host import debug_mode
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import US, Recorder, gain
from tests.tracing import Event, call, kernel, mark, op, python, trace_of


def blocking(*, kernel_us: int, waits: bool) -> Case:
    events: list[Event] = []
    now = free = 0
    for step in range(3):
        start = now
        for i in range(20):
            number = step * 20 + i + 1
            begin = max(now + 7 * US, free + US)
            free = begin + kernel_us * US
            end = free + 2 * US if waits else now + 5 * US
            events += [
                op("aten::mm", now, end + 3 * US),
                call("cudaLaunchKernel", now + 3 * US, end, number),
                kernel("gemm", begin, free, number),
            ]
            now = end + 4 * US
        events.append(mark(f"ProfilerStep#{step}", start, now - 1))
    return case_of(build_context(trace_of(*events), None), 0, None)


def test_launches_that_wait_for_their_kernel_are_named() -> None:
    case = blocking(kernel_us=20, waits=True)
    said = debug_mode.propose(case)
    assert isinstance(said, Proposal)
    assert "CUDA_LAUNCH_BLOCKING" in said.action
    assert gain(case, said) > 1.2


def test_launches_that_return_at_once_are_not() -> None:
    assert debug_mode.propose(blocking(kernel_us=20, waits=False)) is None


def checking(nodes_with_checks: int) -> Recorder:
    run = Recorder()
    for number in range(3):
        start = run.now
        for node in range(10):
            began = run.now
            run.launch("aten::mm", kernel_us=10)
            if node < nodes_with_checks:
                run.launch("aten::isnan", kernel_us=5)
                run.item()
            run.span("autograd::engine::evaluate_function: MmBackward0", began, kind=op)
        run.step(number, start)
    return run


def test_checks_in_every_backward_node_are_named() -> None:
    case = checking(10).case()
    said = debug_mode.propose(case)
    assert isinstance(said, Proposal)
    assert "anomaly" in said.action
    assert gain(case, said) > 1.5


def test_one_check_of_ones_own_is_not_a_mode() -> None:
    assert debug_mode.propose(checking(1).case()) is None


def comparing(*, left_on: bool) -> Case:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=10)
        began = run.now
        for _ in range(20):
            run.launch("aten::mm", kernel_us=10)
        if left_on:
            name = "/usr/lib/python3/site-packages/torch/autograd/gradcheck.py(2047): gradcheck"
            run.span(name, began, kind=python)
        run.step(number, start)
    return run.case()


def test_gradcheck_in_the_loop_is_named() -> None:
    case = comparing(left_on=True)
    said = debug_mode.propose(case)
    assert isinstance(said, Proposal)
    assert "gradcheck" in said.action
    assert gain(case, said) == pytest.approx(3, rel=0.1)
    assert debug_mode.propose(comparing(left_on=False)) is None


def training(stack_us: int) -> Case:
    """Forward operators that autograd records, each `stack_us` longer before its launch, and a
    backward pass that checks."""
    events: list[Event] = []
    now = free = number = 0

    def launch(name: str, lead_us: int, **more: int) -> None:
        nonlocal now, free, number
        number += 1
        at = now + lead_us * US
        free = max(at + 8 * US, free + US) + 3 * US
        events.extend(
            [
                op(name, now, at + 10 * US, **more),
                call("cudaLaunchKernel", at, at + 5 * US, number),
                kernel("gemm", free - 3 * US, free, number),
            ]
        )
        now = at + 11 * US

    for step in range(3):
        start = now
        for i in range(10):
            launch("aten::mm", 5 + stack_us, sequence=step * 10 + i, fwd_thread=0)
        for _ in range(10):
            began = now
            launch("aten::mm", 5)
            launch("aten::isnan", 5)
            events.append(op("autograd::engine::evaluate_function: MmBackward0", began, now))
        events.append(mark(f"ProfilerStep#{step}", start, now - 1))
    return case_of(build_context(trace_of(*events), None), 0, None)


def test_the_stacks_that_anomaly_mode_notes_are_part_of_its_cost() -> None:
    """Recording an operator and its call cost the host 7.2 us of 16, and noting a stack records
    nothing: what is left of a forward operator is 8.8."""
    case = training(stack_us=150)
    said = debug_mode.propose(case)
    assert isinstance(said, Proposal)
    assert case.recorded is not None
    bare_us = 16 - 3 * usual_cost_ns(case.recorded) / 1e3
    before = 10 * (bare_us + 150) + 20 * bare_us
    assert gain(case, said) == pytest.approx(before / (20 * bare_us), rel=0.05)
    assert any("1.50 ms a step" in line for line in said.evidence)


def test_operators_as_quick_as_those_not_recorded_note_no_stack() -> None:
    said = debug_mode.propose(training(stack_us=0))
    assert isinstance(said, Proposal)
    assert any("0.00 ms a step" in line for line in said.evidence)


def on_host(checked: int) -> Case:
    """A run without a device: ten operators forward; backward, ten nodes that compute 20 us, of
    which `checked` check for 30 more, and for each two that keep a gradient."""
    events: list[Event] = []
    now = 0
    for step in range(3):
        start = now
        for i in range(10):
            events.append(op("aten::mm", now, now + 20 * US, sequence=step * 10 + i, fwd_thread=0))
            now += 21 * US
        for node in range(10):
            began = now
            events.append(op("aten::mm", now, now + 20 * US))
            now += 20 * US
            if node < checked:
                events.append(op("aten::isnan", now, now + 30 * US))
                now += 30 * US
            events.append(op("autograd::engine::evaluate_function: MmBackward0", began, now))
            now += US
            for _ in range(2):
                name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                events.append(op(name, now, now + 2 * US))
                now += 3 * US
        events.append(mark(f"ProfilerStep#{step}", start, now - 1))
    return case_of(build_context(trace_of(*events), None), 0, None)


def test_without_a_device_the_checks_are_what_goes() -> None:
    case = on_host(10)
    said = debug_mode.propose(case)
    assert isinstance(said, Proposal)
    assert "NaN" in said.summary
    assert "device" not in said.summary
    assert gain(case, said) == pytest.approx((210 + 570) / (210 + 270), rel=0.02)


def test_without_a_device_one_check_is_not_a_mode() -> None:
    assert debug_mode.propose(on_host(1)) is None
