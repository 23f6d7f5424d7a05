from __future__ import annotations

import numpy as np

from stepscope.analyses.intervals import empty, union
from stepscope.analyses.links import link
from stepscope.analyses.steps.projection import (
    charge,
    host_op_rows,
    inclusive,
    inclusive_rows,
    mark_ranges,
    module_ranges,
    op_rows,
    phases,
)
from stepscope.core.facts import Phases, RangeRow
from stepscope.core.trace import Trace
from tests.tracing import Event, call, inputs, kernel, mark, op, python, trace_of

SHAPE = inputs("[[4, 4]]", '["float"]')


def training_step(*more: Event) -> list[Event]:
    """Forward mm inside a module, its backward by sequence number, an optimizer step; kernels of
    100, 200 and 50 ns."""
    return [
        python("nn.Module: Linear_0", 0, 100),
        op("aten::mm", 10, 90, sequence=5, fwd_thread=0, detail=SHAPE),
        call("cudaLaunchKernel", 20, 30, 1),
        kernel("gemm_fwd", 100, 200, 1),
        op(
            "autograd::engine::evaluate_function: MmBackward0",
            200,
            400,
            sequence=5,
            fwd_thread=1,
            thread="bw",
        ),
        op("aten::mm", 250, 300, thread="bw"),
        call("cudaLaunchKernel", 260, 270, 2, thread="bw"),
        kernel("gemm_bwd", 300, 500, 2),
        mark("Optimizer.step#SGD.step", 500, 600),
        op("aten::_fused_sgd_", 510, 590),
        call("cudaLaunchKernel", 520, 530, 3),
        kernel("sgd", 600, 650, 3),
        *more,
    ]


def charged(
    trace: Trace,
) -> tuple[Phases | None, dict[str, RangeRow], dict[str, RangeRow], dict[str, RangeRow]]:
    links = link(trace)
    charges = charge(trace, links, np.flatnonzero(trace.device_work))
    tables = (
        op_rows(trace, charges),
        *(
            inclusive_rows(trace, links, inclusive(trace, links, charges), r)
            for r in (module_ranges(trace), mark_ranges(trace))
        ),
    )
    ops, modules, marks = ({row.name: row for row in rows} for rows in tables)
    return phases(trace, charges), ops, modules, marks


def test_phases_follow_the_ranges_that_launched_the_work() -> None:
    told, _, _, _ = charged(trace_of(*training_step()))
    assert told is not None
    assert (told.forward_ns, told.backward_ns, told.optimizer_ns, told.unknown_ns) == (
        100,
        200,
        50,
        0,
    )
    assert told.recomputed_ns == 0


def test_backward_work_is_charged_to_its_forward_operator_and_module() -> None:
    _, ops, modules, marks = charged(trace_of(*training_step()))
    assert ops["aten::mm"].device_ns == 300
    assert modules["nn.Module: Linear_0"].device_ns == 300
    assert marks["Optimizer.step#SGD.step"].device_ns == 50


def test_a_forward_operator_run_again_in_backward_is_recomputed_work() -> None:
    again = [
        op("aten::mm", 210, 240, sequence=9, fwd_thread=0, detail=SHAPE, thread="bw"),
        call("cudaLaunchKernel", 215, 220, 4, thread="bw"),
        kernel("gemm_again", 510, 580, 4),
    ]
    told, _, _, _ = charged(trace_of(*training_step(*again)))
    assert told is not None
    assert told.recomputed_ns == 70
    assert told.num_recomputed_ops == 1
    assert told.backward_ns == 270


def test_a_second_derivative_is_not_recomputed_work() -> None:
    other = inputs("[[8, 8]]", '["float"]')
    derivative = [
        op("aten::pow", 210, 240, sequence=9, fwd_thread=0, detail=other, thread="bw"),
        call("cudaLaunchKernel", 215, 220, 4, thread="bw"),
        kernel("pow", 510, 580, 4),
    ]
    told, _, _, _ = charged(trace_of(*training_step(*derivative)))
    assert told is not None
    assert told.recomputed_ns == 0


def test_a_mark_inside_itself_is_counted_once() -> None:
    events = [
        mark("block", 0, 100),
        mark("block", 10, 90),
        op("aten::mm", 20, 40),
        call("cudaLaunchKernel", 25, 26, 1),
    ]
    _, _, _, marks = charged(trace_of(*events, kernel("gemm", 50, 80, 1)))
    assert (marks["block"].count, marks["block"].device_ns) == (1, 30)


def test_without_backward_or_optimizer_the_phases_are_not_told() -> None:
    told, _, _, _ = charged(
        trace_of(op("aten::mm", 0, 9), call("cudaLaunchKernel", 1, 2, 1), kernel("gemm", 10, 20, 1))
    )
    assert told is None


def test_host_rows_leave_out_what_an_operator_called() -> None:
    trace = trace_of(op("aten::linear", 0, 100), op("aten::addmm", 10, 70))
    rows = {row.name: row.host_ns for row in host_op_rows(trace, link(trace), empty(), 0, 1000)}
    assert rows == {"aten::linear": 40, "aten::addmm": 60}


def test_operators_that_make_a_batch_are_not_the_models() -> None:
    trace = trace_of(op("aten::randn", 10, 40), op("aten::mm", 60, 100))
    loading = union(np.array([0]), np.array([50]))
    rows = {row.name: row.host_ns for row in host_op_rows(trace, link(trace), loading, 0, 1000)}
    assert rows == {"aten::mm": 40}
