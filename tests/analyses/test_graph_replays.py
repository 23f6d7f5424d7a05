"""Kernels of CUDA graphs and the operators they were captured from: on two recordings of a real
job, eager and as a graph, put one after the other, and built by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.analyses.collectives.step_parts import step_parts
from stepscope.analyses.graph_replays import MIN_KERNELS
from stepscope.analyses.kernels.launches import num_lost
from stepscope.analyses.links import link
from stepscope.analyses.profiler_views import (
    calls_of,
    kernel_views,
    module_views,
    operator_views,
)
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import RankContext, build_context
from stepscope.core.comms import BACKWARD, FORWARD, OPTIMIZER
from stepscope.core.trace import NONE, Kind, Launch, Trace
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from tests.shared_data import lab_trace, unpacked
from tests.tracing import Event, call, index_of, kernel, mark, op, python, trace_of
from tests.wording import any_mentions, mentions

NAMES = tuple(f"k{i}" for i in range(MIN_KERNELS))
GRAPH = "cudaGraphLaunch"


def launch(grid: int) -> Launch:
    return Launch(
        grid=(grid, 1, 1), block=(128, 1, 1), registers=None, shared_bytes=None, occupancy_pct=None
    )


def eager(
    at: int, names: tuple[str, ...] = NAMES, ops: str = "aten::op", **more: Any
) -> list[Event]:
    """Each kernel launched in an operator of its own, inside a module."""
    events = [python("nn.Module: MLP_0", at, at + 100 * len(names))]
    for i, name in enumerate(names):
        begin, key = at + 100 * i, at + i
        events += [
            op(f"{ops}{i}", begin, begin + 90),
            call("cudaLaunchKernel", begin + 10, begin + 20, key),
            kernel(name, begin + 30, begin + 80, key, **more),
        ]
    return events


def replay(at: int, names: tuple[str, ...] = NAMES, **more: Any) -> list[Event]:
    kernels = [
        kernel(n, at + 20 + 10 * i, at + 25 + 10 * i, at, **more) for i, n in enumerate(names)
    ]
    return [call(GRAPH, at, at + 9, at), *kernels]


def captured_ops(trace: Trace) -> list[str | None]:
    """Per kernel of a replay, the operator it is charged to."""
    context = build_context(trace, None)
    ops = dict(zip(context.origins.work.tolist(), context.origins.op.tolist(), strict=True))
    launched = context.links.launch
    kernels = np.flatnonzero(trace.is_kind(Kind.KERNEL))
    return [
        None if ops[k] == NONE else trace.names[trace.name[ops[k]]]
        for k in kernels.tolist()
        if trace.names[trace.name[launched[k]]] == GRAPH
    ]


def test_a_replay_is_charged_to_the_operators_of_the_eager_run() -> None:
    trace = trace_of(*eager(0), *replay(10_000), *replay(20_000))
    expected: list[str | None] = [f"aten::op{i}" for i in range(MIN_KERNELS)]
    assert captured_ops(trace) == expected * 2


def test_what_launched_a_replay_stays_its_graph() -> None:
    """Rules price what the step's own host did."""
    trace = trace_of(*eager(0), *replay(10_000))
    context = build_context(trace, None)
    at = index_of(trace, "k0", 1)
    assert context.links.launch[at] == index_of(trace, GRAPH)
    assert context.charges.op[context.charges.work.tolist().index(at)] == NONE


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [*eager(0), *replay(10_000, (*NAMES[1:], NAMES[0]))], id="another order of kernels"
        ),
        pytest.param(
            [*eager(0, NAMES[:4]), *eager(5_000, ("x", *NAMES[4:])), *replay(10_000)],
            id="another kernel in between",
        ),
        pytest.param(
            [*eager(0, detail=launch(1)), *replay(10_000, detail=launch(2))], id="another grid"
        ),
        pytest.param([*eager(0, NAMES[:-1]), *replay(10_000, NAMES[:-1])], id="too short"),
        pytest.param(
            [*eager(0, ("k",) * 9), *replay(10_000, ("k",) * 8)], id="two places it could be"
        ),
        pytest.param(
            [*eager(0), *eager(5_000, ops="aten::other"), *replay(10_000)],
            id="two runs with different operators",
        ),
        pytest.param(
            [*eager(0), call(GRAPH, 10_000, 10_009, 7_777)]
            + [
                kernel(name, 10_020 + 10 * i, 10_025 + 10 * i, 7_777, stream=7 + i % 2)
                for i, name in enumerate(NAMES)
            ],
            id="a graph on two streams",
        ),
    ],
)
def test_what_is_not_certain_is_left_to_the_graph(events: list[Event]) -> None:
    ops = captured_ops(trace_of(*events))
    assert ops
    assert set(ops) == {None}


def test_runs_that_agree_in_part_give_that_part() -> None:
    other = [
        event if event.name != "aten::op3" else op("aten::other", event.start, event.end)
        for event in eager(5_000)
    ]
    ops = captured_ops(trace_of(*eager(0), *other, *replay(10_000)))
    assert ops[3] is None
    assert ops[:3] + ops[4:] == [f"aten::op{i}" for i in range(MIN_KERNELS) if i != 3]


def test_a_compiled_kernel_is_of_one_region_however_short() -> None:
    names = ("triton_poi_fused_add_relu_0",)
    assert captured_ops(trace_of(*eager(0, names), *replay(10_000, names))) == ["aten::op0"]


def capture(at: int, num: int, *, fork: bool = False) -> list[Event]:
    """Launches recorded into a graph: no kernel runs."""
    events = [
        call("cudaStreamBeginCapture", at, at + 5),
        call("cudaStreamEndCapture", at + 990, at + 995),
    ]
    for i in range(num):
        begin = at + 10 + 100 * i
        events += [
            op(f"aten::op{i}", begin, begin + 90),
            call("cudaLaunchKernelExC", begin + 10, begin + 40, at + i),
            call("cuLaunchKernelEx", begin + 15, begin + 30, at + 500 + i),
        ]
    if fork:
        events.append(call("cudaStreamWaitEvent", at + 950, at + 951))
    return events


def test_a_recorded_capture_names_the_operators_in_order() -> None:
    trace = trace_of(*capture(0, 3), *replay(10_000, NAMES[:3]), *replay(20_000, NAMES[:3]))
    assert captured_ops(trace) == ["aten::op0", "aten::op1", "aten::op2"] * 2


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*capture(0, 4), *replay(10_000, NAMES[:3])], id="another number of launches"),
        pytest.param([*capture(0, 3, fork=True), *replay(10_000, NAMES[:3])], id="several streams"),
        pytest.param(
            [*capture(0, 3), *capture(2_000, 3), *replay(10_000, NAMES[:3])], id="two captures"
        ),
        pytest.param(
            [*capture(0, 3), *replay(10_000, NAMES[:3]), *replay(20_000, NAMES[3:6])],
            id="two graphs",
        ),
        pytest.param([*capture(5_000, 3), *replay(1_000, NAMES[:3])], id="replayed before it"),
    ],
)
def test_a_capture_that_may_be_of_another_graph_names_nothing(events: list[Event]) -> None:
    ops = captured_ops(trace_of(*events))
    assert ops
    assert set(ops) == {None}


def test_launches_into_a_graph_are_not_lost() -> None:
    trace = trace_of(*eager(0), *capture(2_000, 3), *replay(10_000), *eager(20_000))
    assert num_lost(trace, link(trace), np.flatnonzero(trace.device_work)) == 0


def test_modules_of_a_captured_run_lend_their_names_not_their_time() -> None:
    steps = [
        event
        for number, at in enumerate((10_000, 20_000, 30_000))
        for event in (mark(f"ProfilerStep#{number}", at - 10, at + 5_000), *replay(at))
    ]
    rows = module_views(build_context(trace_of(*eager(0), *steps), None))
    assert rows is not None
    (row,) = rows
    assert (row.name, row.count, row.host_ns) == ("MLP_0", 0, 0)
    assert row.device_ns > 0


def joined(folder: Path) -> Path:
    """One recording of three eager steps and three replays of a graph of the same step."""
    first, second = (
        json.loads(unpacked(lab_trace(f"traces/pinn_tiny_kernels.{side}")))
        for side in ("slow", "fixed")
    )
    before = [e for e in first["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    after = second["traceEvents"]
    end = max(e["ts"] + e["dur"] for e in before if e["ph"] == "X")
    start = min(e["ts"] for e in after if e["ph"] == "X")
    for event in after:
        if event["ph"] == "X":
            event["ts"] += end - start + 1000
        for key in ("correlation", "External id"):
            if key in event.get("args", {}):
                event["args"][key] += 10_000_000
    path = folder / "joined.pt.trace.json"
    path.write_text(json.dumps(first | {"traceEvents": before + after}))
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RankContext:
    return context_of(joined(tmp_path_factory.mktemp("graphs")))


def context_of(path: Path) -> RankContext:
    return build_context(read_trace(Source(path=path, label=path.name), use_cache=False), None)


def names_of(context: RankContext, in_graphs: bool) -> Counter[tuple[str, str]]:
    """How many kernels of each name came from each operator."""
    trace, charges = context.trace, context.origins
    launched = (charges.launch != NONE) & (trace.kind[charges.work] == Kind.KERNEL)
    chosen = launched & (context.links.shared[charges.work] == in_graphs) & (charges.op != NONE)
    texts = trace.names
    return Counter(
        (texts[k], texts[o])
        for k, o in zip(
            trace.name[charges.work[chosen]].tolist(),
            trace.name[charges.op[chosen]].tolist(),
            strict=True,
        )
    )


def test_every_kernel_of_a_real_graph_finds_its_operator(real: RankContext) -> None:
    """The graph's 348 kernels, three times, as the eager steps launched them."""
    replayed = names_of(real, in_graphs=True)
    assert sum(replayed.values()) == 3 * 348
    eager_run = names_of(real, in_graphs=False)
    assert all(eager_run[pair] >= num for pair, num in replayed.items())
    assert replayed.keys() <= eager_run.keys()


def test_tables_of_a_real_graph_name_operators_and_say_how(real: RankContext) -> None:
    facts = measure_rank(real, 0)
    rows = [row for row in facts.kernels if "gemm" in row.name]
    assert rows
    assert {row.op for row in rows} <= {"aten::mm", "aten::addmm"}
    assert {row.name for row in operator_views(real, calls_of(real)) if row.own_device_ns} >= {
        "aten::mm"
    }
    assert {(row.name, row.op) for row in kernel_views(real)} == {
        (row.name, row.op) for row in facts.kernels
    }
    assert any_mentions(facts.notes, "captured run")
    assert facts.phases is not None
    assert facts.phases.backward_ns > facts.phases.forward_ns > 0


def test_backward_kernels_of_a_real_graph_are_of_backward(real: RankContext) -> None:
    trace = real.trace
    kernels = np.flatnonzero(trace.is_kind(Kind.KERNEL) & (real.links.captured != NONE))
    named = np.array(["tanh_backward" in trace.names[code] for code in trace.name[kernels]])
    assert set(step_parts(real, kernels[named]).tolist()) == {BACKWARD}
    assert set(step_parts(real, kernels).tolist()) == {FORWARD, BACKWARD, OPTIMIZER}


def test_a_recording_without_the_captured_run_says_what_to_record() -> None:
    context = context_of(lab_trace("traces/pinn_tiny_kernels.fixed"))
    assert not names_of(context, in_graphs=True)
    notes = [note for note in measure_rank(context, 0).notes if "inside CUDA graphs" in note]
    assert len(notes) == 1
    assert mentions(notes[0], "record", "eager", "before")
