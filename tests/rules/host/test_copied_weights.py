"""copied-weights: passes over all weights between an update and the next forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import OpInputs, TraceMeta
from stepscope.rules.case import Case, case_of
from stepscope.rules.host.copied_weights import propose
from tests.rules.recorder import gain
from tests.tracing import Event, mark, op, trace_of
from tests.wording import mentions

MS = 1_000_000
WEIGHTS = tuple(
    OpInputs(dims=f"[[{rows}, 100]]", types='["float"]', strides="[[100, 1]]", concrete=None)
    for rows in (100, 200, 400)
)
LOSS = OpInputs(dims="[[32, 7]]", types='["float"]', strides="[[7, 1]]", concrete=None)


def training(
    names: Sequence[str], *, before_update: bool = False, inputs: Sequence[OpInputs] = WEIGHTS
) -> Case:
    """Steps of 9 ms, and a millisecond more for each of these operators, over each weight."""
    events: list[Event] = []
    now, sequence = 0, 0

    def every(now: int) -> int:
        for name in names:
            for detail in inputs:
                events.append(op(name, now, now + MS - 1_000, detail=detail, sequence=sequence))
                now += MS
        return now

    for step in range(4):
        began = now
        events.append(op("aten::mm", now, now + 3 * MS - 1_000, sequence=sequence))
        now += 3 * MS
        node = "autograd::engine::evaluate_function: MmBackward0"
        events.append(op(node, now, now + 3 * MS - 1_000, sequence=sequence, fwd_thread=1))
        events += [
            op("torch::autograd::AccumulateGrad", now + at, now + at + 1, detail=detail)
            for at, detail in enumerate(WEIGHTS, 1)
        ]
        now += 3 * MS
        sequence += 1
        now = every(now) if before_update else now
        events.append(op("aten::add_", now, now + 3 * MS - 1_000))
        events.append(mark("Optimizer.step#SGD.step", now, now + 3 * MS))
        now += 3 * MS
        now = now if before_update else every(now)
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    meta = TraceMeta(path="built", has_shapes=True)
    return case_of(build_context(trace_of(*events, meta=meta), None), 0, None)


def test_a_copy_after_each_update_is_one_of_fifty() -> None:
    case = training(["aten::clone"])
    said = propose(case)
    assert said is not None
    assert mentions(said.summary, "copied", "3.00 ms")
    assert gain(case, said) == pytest.approx(12 / (9 + 3 / 50), rel=0.02)
    assert said.cautious is not None
    assert case.speedup(said.cautious(case.graph)) == pytest.approx(12 / 10.5, rel=0.03)


def test_an_average_keeps_one_pass() -> None:
    case = training(["aten::clone", "aten::mul", "aten::mul", "aten::add"])
    said = propose(case)
    assert said is not None
    assert mentions(said.summary, "averaged")
    assert gain(case, said) == pytest.approx(21 / 12, rel=0.02)


def test_one_pass_other_tensors_and_gradients_are_left_alone() -> None:
    assert propose(training(["aten::lerp_"])) is None
    assert propose(training(["aten::detach", "aten::zero_"])) is None
    assert propose(training(["aten::clone"], inputs=[LOSS] * 3)) is None
    assert propose(training(["aten::mul_", "aten::clone"], before_update=True)) is None
