"""double-precision: a host that computes over 64-bit numbers; not small ones, nor
one conversion."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import TraceMeta
from stepscope.rules.case import Case, case_of
from stepscope.rules.compute.double_precision import propose
from tests.rules.recorder import gain
from tests.tracing import Event, inputs, mark, op, trace_of

MS = 1_000_000


def training(dtype: str, *, rows: int = 256, num: int = 9) -> Case:
    """Three steps of ten products of a millisecond, `num` of them over such numbers."""
    events: list[Event] = []
    now = 0
    for step in range(3):
        began = now
        for at in range(10):
            names = f'["{dtype if at < num else "float"}", "float"]'
            detail = inputs(f"[[{rows}, 64], [64, 64]]", names)
            events.append(op("aten::mm", now, now + MS, detail=detail))
            now += MS + 5_000
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    meta = TraceMeta(path="built", has_shapes=True)
    return case_of(build_context(trace_of(*events, meta=meta), None), 0, None)


def test_numbers_half_as_wide_take_half_the_time() -> None:
    case = training("double")
    assert gain(case, propose(case)) == pytest.approx(10 / 5.5, rel=0.02)


@pytest.mark.parametrize(
    "case", [training("float"), training("double", rows=2), training("double", num=1)]
)
def test_fp32_small_numbers_and_one_conversion_are_left_alone(case: Case) -> None:
    assert propose(case) is None
