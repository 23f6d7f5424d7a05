"""A large share of the step has a finding, or a line that says why not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Abstention, Finding
from stepscope.core.facts import CallRow, RangeRow, RankFacts
from stepscope.core.recorders import KINETO
from stepscope.rules.judge import Judgement
from stepscope.rules.unanswered import REASONS, unanswered
from tests import scenarios
from tests.wording import mentions

RANK = scenarios.healthy().facts.ranks[0]


def finding(code: str, bound: str, gain: float) -> Finding:
    return Finding(
        code=code,
        bound=bound,
        summary="",
        action="",
        evidence=(),
        ranks=(0,),
        predicted_speedup=gain,
        predicted_low=1.0,
        predicted_high=gain,
        predicted_step_ms=1.0,
    )


def reasons(
    shares: Mapping[str, float], *findings: Finding, lacking: str | None = None
) -> dict[str, Abstention]:
    named = [each.predicted_speedup for each in findings if each.predicted_speedup >= 1.02]
    judgement = Judgement(findings=findings, ladder=tuple(sorted(named)))
    return {each.code: each for each in unanswered(RANK, shares, judgement, lacking, KINETO)}


@pytest.mark.parametrize("bound", sorted(REASONS))
def test_every_large_share_without_a_finding_has_a_reason(bound: str) -> None:
    said = reasons({bound: 0.4})[f"{bound} share"]
    assert said.reason.startswith("40% of the step, ")
    assert said.needs


def test_small_operators_of_the_host_are_counted() -> None:
    small = RangeRow(name="aten::t", count=3000, device_ns=0, host_ns=9_000_000)
    large = RangeRow(name="aten::mm", count=3, device_ns=0, host_ns=30_000_000)
    windows = RANK.steps.windows[:1]
    steps = replace(RANK.steps, windows=windows, where="host")
    host = replace(RANK, device_name=None, steps=steps, ops=(small,))
    said = _of(host)
    assert mentions(said.reason, "3 000 small operators", "3.0 us each")
    assert said.needs.startswith("fewer, larger ones")
    said = _of(replace(host, ops=(large, replace(small, count=30))))
    assert mentions(said.reason, "host's own operators", "mm 77%", "t 23%")
    only_operators = _of(replace(host, ops=())).reason
    assert only_operators.endswith("operators")
    assert mentions(only_operators, "host's own")
    unnamed = _of(replace(RANK, device_name=None, roofline=replace(RANK.roofline, device=None)))
    assert mentions(unnamed.reason, "device's peaks", "not known")


def test_batches_that_the_training_process_makes_are_said_to_be() -> None:
    for iterator, is_own in (("_SingleProcess", True), ("_MultiProcessing", False)):
        name = f"enumerate(DataLoader)#{iterator}DataLoaderIter.__next__"
        call = CallRow(name=name, count=3, total_ns=9_000_000, longest_ns=3_000_000)
        said = _of(replace(RANK, host=replace(RANK.host, loader=(call,))), "data")
        assert mentions(said.reason, "making batches") == is_own


def _of(rank: RankFacts, bound: str = "compute") -> Abstention:
    (said,) = unanswered(rank, {bound: 0.6}, Judgement(findings=(), ladder=()), None, KINETO)
    return said


def test_small_shares_need_none() -> None:
    assert reasons({"host": 0.14, "data": 0.0}) == {}


def test_a_finding_of_the_same_share_is_its_answer() -> None:
    shares = {"host": 0.4, "compute": 0.3}
    assert list(reasons(shares, finding("launch-overhead", "host", 1.3))) == ["compute share"]


def test_what_gives_too_little_is_named_as_tried() -> None:
    said = reasons({"host": 0.4}, finding("launch-overhead", "host", 1.01))
    assert mentions(said["host share"].reason, "launch-overhead", "less than 2 %")


def test_a_share_that_the_fixes_cannot_leave_is_answered() -> None:
    # The loader held up goes from 74 % of the step to at most 20 %, all that is left of it.
    assert reasons({"data": 0.74}, finding("launch-overhead", "host", 5.0)) == {}
    assert reasons({"data": 0.74}, finding("launch-overhead", "host", 1.5)) != {}


def test_a_late_rank_answers_for_what_made_it_late() -> None:
    assert reasons({"data": 0.74}, finding("late-rank", "imbalance", 1.1)) == {}


def test_without_a_replay_the_reason_is_what_was_not_recorded() -> None:
    said = reasons({"host": 0.9}, lacking="the launches were not recorded")
    assert mentions(said["host share"].reason, "launches were not recorded")
