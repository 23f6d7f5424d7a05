"""Which operators could be one kernel."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import TraceMeta
from stepscope.hardware.lookup import find_spec
from stepscope.rules.case import Case, case_of
from stepscope.rules.shared.fusible_runs import runs_of
from tests.rules.steps import H200
from tests.tracing import call, copy, inputs, mark, op, trace_of

US = 1000
PAIR = inputs("[[16777216], [16777216], []]", '["float", "float", "Scalar"]')


def copying(name: str) -> Case:
    """Steps of four copies of 64 MB, one after the other."""
    events, now, number = [], 0, 0
    for step in range(4):
        began = now
        for _ in range(4):
            number += 1
            end = now + 40 * US
            events.append(op("aten::copy_", now, end, detail=PAIR))
            events.append(call("cudaMemcpyAsync", now + 10, now + 20, number))
            events.append(copy(name, now + 30, end, number, size=1 << 26))
            now = end
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 2
    meta = TraceMeta(path="built", devices=(H200,), has_shapes=True)
    return case_of(build_context(trace_of(*events, meta=meta), find_spec(H200)), 0, None)


@pytest.mark.parametrize(
    ("name", "fuse"),
    [
        ("Memcpy DtoD (Device -> Device)", True),
        ("Memcpy DtoH (Device -> Pinned)", False),
        ("Memcpy HtoD (Pageable -> Device)", False),
    ],
)
def test_a_copy_from_or_to_the_host_is_no_part_of_a_kernel(name: str, fuse: bool) -> None:
    runs = runs_of(copying(name))
    assert runs is not None
    assert bool(runs.several.any()) is fuse
