"""Operators, kernels, modules and allocations: built by hand, and summed on a real trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.analyses.profiler_views import (
    calls_of,
    kernel_views,
    memory_views,
    module_views,
    operator_views,
    profiler_views,
    shape_views,
)
from stepscope.analyses.rank_context import RankContext, build_context
from stepscope.core.trace import NONE, Kind
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording
from tests.builders import event, kernel, read, trace_text
from tests.shared_data import DEMO

OP, RUNTIME, PYTHON = "cpu_op", "cuda_runtime", "python_function"
STEP_US = 1000


def allocation(ts: float, size: int, device_type: int = 1) -> dict[str, Any]:
    args = {
        "Bytes": size,
        "Addr": 1,
        "Total Allocated": 10_000 + size,
        "Total Reserved": 20_000,
        "Device Type": device_type,
        "Device Id": 0,
    }
    return event(ph="i", name="[memory]", cat="cpu_instant_event", ts=ts, dur=0, args=args)


def step(number: int) -> list[dict[str, Any]]:
    """linear calls addmm, which launches a kernel; then an optimizer's operator launches one."""
    at, key = number * STEP_US, number * 10
    return [
        event(name=f"ProfilerStep#{number}", cat="user_annotation", ts=at, dur=STEP_US - 1),
        event(name="nn.Module: GPT_0", cat=PYTHON, ts=at + 5, dur=150),
        event(name="nn.Module: Linear_0", cat=PYTHON, ts=at + 8, dur=100),
        event(name="aten::linear", cat=OP, ts=at + 10, dur=90),
        event(name="aten::addmm", cat=OP, ts=at + 20, dur=60),
        event(name="cudaLaunchKernel", cat=RUNTIME, ts=at + 40, dur=5, args={"correlation": key}),
        allocation(at + 25, 512),
        allocation(at + 95, -128),
        event(name="aten::add_", cat=OP, ts=at + 300, dur=50),
        event(
            name="cudaLaunchKernel", cat=RUNTIME, ts=at + 310, dur=5, args={"correlation": key + 1}
        ),
        allocation(at + 320, 64),
        allocation(at + 500, -32),
        kernel(key, at + 60, 100, "gemm", grid=[66, 1, 1], **{"est. achieved occupancy %": 25}),
        kernel(key + 1, at + 400, 20 + number, "add", grid=[264, 1, 1]),
    ]


@pytest.fixture
def context(tmp_path: Path) -> RankContext:
    device = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 1 << 37}
    events = [each for number in range(4) for each in step(number)]
    text = trace_text(events, header={"deviceProperties": [device], "with_stack": 1})
    return build_context(read(tmp_path / "trace.json", text), None)


def test_an_operators_own_time_leaves_out_what_it_called(context: RankContext) -> None:
    views = {view.name: view for view in profiler_views(context).operators}
    linear, addmm = views["aten::linear"], views["aten::addmm"]
    assert linear.count == addmm.count >= 2
    assert linear.host_ns == linear.count * 90_000
    assert linear.own_host_ns == linear.count * 30_000
    assert addmm.own_host_ns == addmm.host_ns == addmm.count * 60_000
    assert linear.own_device_ns == 0
    assert addmm.own_device_ns == 100_000 * len(context.cut.steps.windows)


def test_kernels_have_their_extremes_and_their_launch(context: RankContext) -> None:
    gemm, add = sorted(kernel_views(context), key=lambda view: -view.max_ns)
    assert (gemm.op, gemm.min_ns, gemm.max_ns) == ("aten::addmm", 100_000, 100_000)
    assert gemm.occupancy_pct == 25
    assert gemm.blocks_per_sm == pytest.approx(0.5)
    assert add.min_ns < add.max_ns
    assert add.occupancy_pct is None
    assert add.blocks_per_sm == pytest.approx(2)


def test_modules_are_a_tree(context: RankContext) -> None:
    views = module_views(context)
    assert views is not None
    assert [(view.name, view.depth) for view in views] == [("GPT_0", 0), ("Linear_0", 1)]
    assert views[0].device_ns == views[1].device_ns == 100_000 * len(context.cut.steps.windows)
    assert views[0].host_ns == views[0].count * 150_000


def test_allocations_go_to_the_operator_that_runs(context: RankContext) -> None:
    views, where = memory_views(context)
    assert views is not None
    assert where == "device"
    by_op = {view.op: view for view in views}
    num = by_op["aten::addmm"].count
    assert by_op["aten::addmm"].allocated_bytes == 512 * num
    assert by_op["aten::linear"].net_bytes == -128 * num
    assert by_op["aten::linear"].count == 0
    assert by_op["aten::add_"].net_bytes == 64 * num
    assert by_op[None].net_bytes == -32 * num


def test_what_was_not_recorded_is_none(tmp_path: Path) -> None:
    events = [
        each
        for number in range(4)
        for each in step(number)
        if each["name"] != "[memory]" and not each["name"].startswith("nn.Module")
    ]
    views = profiler_views(
        build_context(read(tmp_path / "t.json", trace_text(events, header={})), None)
    )
    assert views.modules is None
    assert views.shapes is None
    assert views.memory is None
    assert all(view.blocks_per_sm is None for view in views.kernels)


def test_nothing_is_lost_on_a_real_trace() -> None:
    with Recording([DEMO], Options(use_cache=False)) as recording:
        context = recording.context(recording.inputs.sources[0])
    trace, (low, high) = context.trace, context.window
    start = trace.start_ns[context.charges.work]
    inside = (start >= low) & (start < high)
    linked = inside & (context.charges.op != NONE)
    operators = operator_views(context, calls_of(context))
    work = context.charges.work
    assert sum(view.own_device_ns for view in operators) == int(trace.dur_ns[work[linked]].sum())
    assert all(view.own_host_ns <= view.host_ns for view in operators)
    shapes = shape_views(context, calls_of(context))
    assert shapes is not None
    products = [view for view in shapes if view.name == "aten::addmm"]
    whole = next(view for view in operators if view.name == "aten::addmm")
    assert sum(view.count for view in products) == whole.count
    assert sum(view.own_device_ns for view in products) == whole.own_device_ns
    assert len({view.dims for view in products}) == len(products) > 1
    durations = trace.dur_ns[work[inside & (trace.kind[work] == Kind.KERNEL)]]
    kernels = kernel_views(context)
    assert max(view.max_ns for view in kernels) == int(durations.max())
    assert min(view.min_ns for view in kernels) == int(durations.min())
    assert all(0 < (view.occupancy_pct or 1) <= 100 for view in kernels)
