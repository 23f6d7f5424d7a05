"""The user's ranges: single steps as one, and on a host alone by its own time."""

from __future__ import annotations

from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.analyses.steps.projection import with_steps_joined
from stepscope.core.facts import RangeRow
from stepscope.report.diagnosis.kernels import kernel_sections
from tests.tracing import call, kernel, mark, op, trace_of

MS = 1_000_000


def row(name: str, ms: int) -> RangeRow:
    return RangeRow(name=name, count=1, device_ns=ms * MS)


def test_ranges_of_single_steps_are_one() -> None:
    steps = [row(f"step {i}", 25) for i in range(4)]
    rows = with_steps_joined([*steps, row("forward", 60), row("optimizer_step", 5)], 100 * MS)
    assert [(each.name, each.device_ns // MS) for each in rows] == [
        ("step *", 100),
        ("forward", 60),
        ("optimizer_step", 5),
    ]


def test_ranges_of_layers_are_several() -> None:
    layers = [row(f"layer{i}", 10) for i in range(4)]
    assert with_steps_joined(layers, 100 * MS) == tuple(layers)


def test_marks_of_a_host_alone_are_by_its_time() -> None:
    events = []
    for step in range(3):
        at = step * 10 * MS
        events += [
            mark(f"ProfilerStep#{step}", at, at + 10 * MS),
            mark("forward", at + MS, at + 5 * MS),
            op("aten::mm", at + MS, at + 4 * MS),
            mark("backward", at + 5 * MS, at + 9 * MS),
            op("aten::mm", at + 5 * MS, at + 9 * MS),
        ]
    facts = measure_rank(build_context(trace_of(*events), None), 0)
    marks = {each.name: (each.count, each.host_ns) for each in facts.marks}
    num = len(facts.steps.windows)
    assert marks == {"forward": (num, num * 4 * MS), "backward": (num, num * 4 * MS)}
    assert "Marks" in [section.title for section in kernel_sections(facts)]


def test_ranges_of_the_users_are_the_phases_of_work_that_no_operator_launched() -> None:
    """As Nsight Systems records NVTX: the device line and the marks give one answer."""
    events, number = [], 0
    for step in range(3):
        at = step * 10 * MS
        events.append(mark(f"ProfilerStep#{step}", at, at + 10 * MS))
        for name, first, last in (("forward", 1, 4), ("backward", 4, 8), ("optimizer_step", 8, 9)):
            number += 1
            begun = at + first * MS
            events += [
                mark(name, begun, at + last * MS),
                call("cudaLaunchKernel", begun + 1, begun + 1000, number),
                kernel("sgemm", begun + 2000, at + last * MS, number),
            ]
    facts = measure_rank(build_context(trace_of(*events), None), 0)
    marks = {each.name: each.device_ns for each in facts.marks}
    assert facts.phases is not None
    assert facts.phases.unknown_ns == 0
    assert facts.phases.forward_ns == marks["forward"] > 0
    assert facts.phases.backward_ns == marks["backward"]
    assert facts.phases.optimizer_ns == marks["optimizer_step"]
