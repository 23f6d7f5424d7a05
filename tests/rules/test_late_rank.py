"""late-rank: one slow host holds all up; even ranks, and a rank with more work, are not late."""

from __future__ import annotations

import pytest

from stepscope.rules.late_rank import propose_team
from tests.rules.crews import Fleet, ddp, gain


def sleepy(*host_us: float) -> Fleet:
    fleet = Fleet(len(host_us))
    for _ in range(4):
        for _ in range(10):
            fleet.compute(100)
        fleet.host(host_us)
        for _ in range(10):
            fleet.compute(100, backward=True)
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    return fleet


def test_a_slow_host_is_named_with_what_it_costs() -> None:
    crew = sleepy(10, 10, 8000).crew()
    said = propose_team(crew)
    assert said is not None
    assert said.ranks == (2,)
    assert gain(crew, said) == pytest.approx(crew.pitch_ns / 2.15e6, rel=0.15)


def test_even_ranks_have_nobody_late() -> None:
    assert propose_team(sleepy(500, 500, 510).crew()) is None


def test_a_rank_with_more_work_is_not_late() -> None:
    assert propose_team(ddp(us=[100, 300]).crew()) is None


def test_one_rank_alone_is_not_late() -> None:
    assert propose_team(sleepy(8000).crew()) is None
