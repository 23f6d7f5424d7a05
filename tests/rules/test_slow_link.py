"""slow-link: large messages far under any link's rate; small ones, fast ones and waiting say nothing of it."""

from __future__ import annotations

import pytest

from stepscope.rules.slow_link import propose_team
from tests.rules.crews import Fleet, gain


def exchanging(size: int, us: float, host_us: tuple[float, float] = (10, 10)) -> Fleet:
    fleet = Fleet()
    for _ in range(4):
        fleet.host(host_us)
        for _ in range(10):
            fleet.compute(100)
        fleet.collective("all_reduce", size, us)
        fleet.step()
    return fleet


def test_a_gigabyte_a_second_is_slow() -> None:
    crew = exchanging(10_000_000, 10_000).crew()
    said = propose_team(crew)
    assert said is not None
    assert "1.00 GB/s" in said.summary
    assert gain(crew, said) == pytest.approx(11.0 / 1.8, rel=0.1)


@pytest.mark.parametrize(("size", "us"), [(10_000_000, 600), (100_000, 5_000)])
def test_fast_or_small_messages_are_no_slow_link(size: int, us: float) -> None:
    assert propose_team(exchanging(size, us).crew()) is None


def test_waiting_for_a_late_rank_is_no_slow_link() -> None:
    assert propose_team(exchanging(10_000_000, 600, host_us=(10, 20_000)).crew()) is None
