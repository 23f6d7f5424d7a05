"""needless-recompute: forward work that runs again in backward, as far as memory has room."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.rules import evidence
from stepscope.rules.case import Case, case_of
from stepscope.rules.compute import needless_recompute
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import finding_of
from tests.rules.recorder import gain
from tests.rules.steps import Launch, case_of_steps, launch
from tests.tracing import Event, inputs, mark, op, trace_of

MS = 1_000_000
HALF = '["c10::BFloat16", "c10::BFloat16"]'


def product(rows: int = 8192, **more: object) -> Launch:
    return launch("aten::mm", "nvjet_a", 100.0, f"[[{rows}, 4096], [4096, 4096]]", HALF, **more)  # type: ignore[arg-type]


def test_needless_recompute_drops_the_second_run() -> None:
    case = case_of_steps(
        product(sequence=5),
        product(sequence=9, node="MmBackward0", again=True),
        product(sequence=5, node="MmBackward0"),
    )
    proposal = needless_recompute.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert abs(finding.predicted_speedup - 1.5) < 0.05
    assert "GB" in " ".join(finding.evidence)


def test_needless_recompute_is_silent_without_a_second_run() -> None:
    assert (
        needless_recompute.propose(
            case_of_steps(product(sequence=5), product(sequence=5, node="MmBackward0"))
        )
        is None
    )


def test_needless_recompute_promises_only_what_fits() -> None:
    rows = 2**25  # one output takes 275 GB
    case = case_of_steps(
        product(rows, sequence=5),
        product(rows, sequence=9, node="MmBackward0", again=True),
        product(rows, sequence=5, node="MmBackward0"),
    )
    proposal = needless_recompute.propose(case)
    assert isinstance(proposal, Proposal)
    assert left_open(finding_of(case, proposal))[0] < 1.3


def on_host(*, again: bool) -> Case:
    """Steps without a device: 3 ms forward, and as many backward, where they may run again."""
    events: list[Event] = []
    now = 0
    detail = inputs("[[64, 64], [64, 64]]", '["float", "float"]')
    for step in range(3):
        began, first = now, 10 * step
        events.append(op("aten::mm", now, now + 3 * MS, detail=detail, sequence=first))
        now += 3 * MS + 5_000
        took = (6 if again else 3) * MS
        node = "autograd::engine::evaluate_function: MmBackward0"
        events.append(op(node, now, now + took, sequence=first, fwd_thread=1))
        if again:
            ran = op("aten::mm", now + 1_000, now + 3 * MS, detail=detail, sequence=first + 1)
            events.append(ran)
        now += took
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    return case_of(build_context(trace_of(*events), None), 0, None)


def test_a_host_that_runs_forward_again_gains_it() -> None:
    case = on_host(again=True)
    assert evidence.recomputes(case)
    assert gain(case, needless_recompute.propose(case)) == pytest.approx(9 / 6, rel=0.02)
    assert not evidence.recomputes(on_host(again=False))
