"""A finding names the lines and modules it comes from where stacks were recorded, and asks for them
once where they were not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.core.diagnosis import Finding, SourceLocation
from stepscope.rules import judge as judge_module
from stepscope.rules.case import Case
from stepscope.rules.data import serial_loader
from stepscope.rules.host import checkpoint_stall, device_sync
from stepscope.rules.job_case import JobProposal
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import finding_of, judge
from tests.rules.recorded import SERIAL
from tests.rules.recorder import Recorder
from tests.tracing import mark, python
from tests.wording import mentions


def reading(*lines: str) -> Recorder:
    """Three steps of reads, one from each of the lines in turn; no frames when there are none."""
    run = Recorder()
    for number in range(3):
        start = run.now
        for line in lines or ("", ""):
            for _ in range(8):
                run.launch("aten::mm", kernel_us=8, host_us=8)
            began = run.now
            run.item()
            if line:
                run.span(line, began, kind=python)
        if lines:
            run.span("train.py(90): train", start, kind=python)
        run.step(number, start)
    return run


def found(case: Case, said: object) -> Finding:
    assert isinstance(said, Proposal)
    return finding_of(case, said)


def test_the_line_with_most_of_the_cost_ends_the_action() -> None:
    case = reading("train.py(42): log", "train.py(42): log", "data.py(7): check").case()
    finding = found(case, device_sync.propose(case))
    assert finding.action.endswith(". Most of it at train.py:42 in log")
    assert finding.evidence[-2:] == (
        "67% of it at train.py:42 in log",
        "33% of it at data.py:7 in check",
    )
    assert [place.line for place in finding.source_locations] == [
        "train.py:42 in log",
        "data.py:7 in check",
    ]


def test_no_line_with_half_of_it_is_the_largest_part() -> None:
    case = reading(*(f"f.py({i}): f{i}" for i in range(3))).case()
    finding = found(case, device_sync.propose(case))
    assert mentions(finding.action, "(33%)", "f.py:")
    assert len(finding.source_locations) == 3


def test_without_stacks_nothing_is_added_and_they_are_asked_for_once() -> None:
    case = reading().case()
    said = device_sync.propose(case)
    assert isinstance(said, Proposal)
    finding = finding_of(case, said)
    assert (finding.action, finding.evidence, finding.source_locations) == (
        said.action,
        said.evidence,
        (),
    )
    assert judge(case).lacks_stacks
    assert not judge(reading("train.py(42): log").case()).lacks_stacks


def test_words_of_a_place() -> None:
    whole = SourceLocation(line="a.py:1 in f", module="Block_3", share=0.5)
    assert whole.words == "a.py:1 in f (module Block_3)"
    assert replace(whole, module=None).words == "a.py:1 in f"
    assert replace(whole, line=None).words == "module Block_3"


def test_a_serial_loader_is_charged_to_what_it_calls() -> None:
    run = Recorder()
    for number in range(4):
        start = run.now
        run.work(100)
        for name, us in (("data.py(12): __getitem__", 6000), ("data.py(30): collate", 1000)):
            began = run.now
            run.work(us)
            run.span(name, began, kind=python)
        run.work(800)
        run.span(SERIAL, start, kind=mark)
        run.launch("aten::mm", kernel_us=2000)
        run.item()
        run.span("train.py(90): train", start, kind=python)
        run.step(number, start)
    case = run.case()
    finding = found(case, serial_loader.propose(case))
    assert [place.line for place in finding.source_locations] == [
        "data.py:12 in __getitem__",
        "data.py:30 in collate",
        "train.py:90 in train",
    ]
    assert [place.share for place in finding.source_locations] == pytest.approx(
        [6 / 7.9, 1 / 7.9, 0.9 / 7.9], rel=0.01
    )
    assert "num_workers=8" in finding.action
    # Each of 9.1 ms in a worker and about 1 to hand over, for a rest of about 3.
    assert "at least 4," in finding.action


def test_saving_is_told_how_seldom_to_save() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=50)
        began = run.now
        run.work(3000)
        run.span("train.py(77): save_checkpoint", began, kind=python)
        run.step(number, start)
    case = run.case()
    finding = found(case, checkpoint_stall.propose(case))
    # 2.5 of its 3 ms, beside half a millisecond of kernels: 1 % of 500 steps without it.
    assert "every 500 steps" in finding.action
    assert finding.action.endswith("train.py:77 in save_checkpoint")


speedups = st.floats(0.0, 1e9)


@given(speedups, speedups | st.none(), speedups | st.none(), st.floats(0.0, 1e18))
def test_no_finding_promises_a_slower_step(
    likely: float, less: float | None, more: float | None, step_interval_ns: float
) -> None:
    def becoming(speedup: float | None) -> Any:
        return None if speedup is None else lambda _: speedup

    job: Any = SimpleNamespace(
        cases=(),
        job_graph=None,
        host_bounds=None,
        step_interval_ns=step_interval_ns,
        speedups=lambda speedup: (speedup, speedup),
        weighted=lambda paced, free: free,
    )
    proposal = JobProposal(
        code="x",
        bound="host",
        summary="",
        action="",
        evidence=(),
        ranks=(0,),
        change=becoming(likely),
        cautious=becoming(less),
        hopeful=becoming(more),
    )
    finding = judge_module.finding_of(job, proposal)
    finding.self_check()
    assert finding.predicted_speedup == max(1.0, likely)
    most = max(1.0, likely, less or 0.0, more or 0.0)
    assert left_open(finding)[1] == pytest.approx(most)
    assert finding.predicted_high > most
    assert finding.predicted_low < max(1.0, likely) or finding.predicted_low == 1.0
