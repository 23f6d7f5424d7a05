"""frequent-evaluation: by what some timed steps hold, not by the recorded ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.run import RankMetadata, Stalls
from stepscope.rules.case import Case
from stepscope.rules.host import frequent_evaluation
from tests.rules.judging import judge
from tests.rules.recorder import Recorder


def evaluating(share: float) -> Case:
    """An evaluation every 20th step that adds this share of a step to all of them."""
    run = Recorder()
    for number in range(4):
        start = run.now
        for _ in range(20):
            run.launch("aten::mm", kernel_us=100)
        run.step(number, start)
    case = run.case()
    step_ns = round(share * case.step_interval_ns)
    stalls = Stalls(
        num=5,
        every=20.0,
        once_ns=20 * step_ns,
        step_ns=step_ns,
        lines={"job/train.py(7): main": 1.0},
    )
    return replace(case, metadata=RankMetadata(rank=0, stalls={"evaluation": stalls}))


def test_what_it_adds_to_the_run_is_what_its_end_gives() -> None:
    judgement = judge(evaluating(0.5))
    (found,) = [each for each in judgement.findings if each.code == frequent_evaluation.CODE]
    assert found.predicted_speedup == pytest.approx(1.5, rel=0.01)
    assert found.source_locations[0].line == "job/train.py:7 in main"
    assert judgement.ladder[-1] >= 1.5 * 0.99


def test_one_now_and_then_is_no_fault() -> None:
    assert frequent_evaluation.propose(evaluating(0.03)) is None
