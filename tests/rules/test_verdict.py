"""The verdict names the largest part of the step, and says what it could not judge."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank import measure_rank
from stepscope.analyses.survey import survey
from stepscope.core.diagnosis import BOUNDS, Diagnosis
from stepscope.core.facts import Facts
from stepscope.rules.verdict import diagnose
from tests.tracing import Event, call, kernel, mark, op, trace_of

MS = 1_000_000


def stepping(*inside: Event, work_ms: int = 1, step_ms: int = 10, name: str = "gemm") -> list[Event]:
    """Three steps; each launches one kernel of `work_ms` at its end."""
    events: list[Event] = list(inside)
    for i in range(3):
        at = i * step_ms * MS
        launch = at + (step_ms - work_ms) * MS
        events += [
            mark(f"ProfilerStep#{i}", at, at + step_ms * MS - 1),
            call("cudaLaunchKernel", launch - 5000, launch - 1000, i + 1),
            kernel(name, launch, launch + work_ms * MS, i + 1),
        ]
    return events


def judged(*events: Event, step_ns: int | None = None) -> Diagnosis:
    facts = measure_rank(survey(trace_of(*events), None), 0, step_ns)
    return diagnose(Facts(ranks=(facts,), given_step_ns=step_ns))


def test_a_busy_device_is_compute_bound() -> None:
    diagnosis = judged(*stepping(work_ms=9))
    assert diagnosis.verdict.bound == "compute"
    assert diagnosis.verdict.shares["compute"] == pytest.approx(0.9)


def test_a_device_that_waits_for_the_loader_is_data_bound() -> None:
    loaders = [mark("enumerate(DataLoader)#x.__next__", i * 10 * MS, i * 10 * MS + 8 * MS) for i in range(3)]
    assert judged(*stepping(*loaders)).verdict.bound == "data"


def test_a_device_that_waits_for_launches_is_host_bound() -> None:
    ops = [op("aten::add", i * 50_000, i * 50_000 + 45_000) for i in range(590)]
    diagnosis = judged(*stepping(*ops))
    assert diagnosis.verdict.bound == "host"
    assert "launches work more slowly" in diagnosis.verdict.summary


def test_collectives_that_nothing_hides_are_comms_and_their_wait_is_not_judged() -> None:
    diagnosis = judged(*stepping(work_ms=9, name="ncclDevKernel_AllReduce_Sum"))
    assert diagnosis.verdict.bound == "comms"
    assert any("comms_wait is not measured" in note for note in diagnosis.notes)


def test_nothing_to_judge_is_unknown() -> None:
    assert judged().verdict.bound == "unknown"


def test_shares_are_of_known_bounds_and_sum_to_one() -> None:
    shares = judged(*stepping()).verdict.shares
    assert set(shares) <= set(BOUNDS)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_bare_trace_says_that_its_step_time_is_the_profiled_one() -> None:
    bare, given = judged(*stepping()), judged(*stepping(), step_ns=8 * MS)
    assert any("--step-ms" in note for note in bare.notes)
    assert not any("--step-ms" in note for note in given.notes)
    assert given.step.ms == 8.0
    assert given.step.profiled_ms == pytest.approx(10.0)
