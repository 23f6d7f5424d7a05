"""unprefetched-gather: gathers with nothing beside them could be under way a layer earlier; those
that are say nothing."""

from __future__ import annotations

import pytest

from stepscope.rules.comms.unprefetched_gather import propose_job
from tests.rules.job_cases import Fleet, gain


def just_in_time(gather_us: float, layer_us: float) -> Fleet:
    fleet = Fleet()
    for _ in range(4):
        for _ in range(8):
            fleet.collective("all_gather", 8 << 20, gather_us)
            fleet.compute(layer_us)
        fleet.step()
    return fleet


def test_gathers_hide_behind_the_layer_before() -> None:
    job = just_in_time(200, 300).job()
    said = propose_job(job)
    assert said is not None
    # The first gather of a step has no layer before it.
    assert gain(job, said) == pytest.approx(8 * 510 / (210 + 8 * 305), rel=0.06)


def test_a_gather_longer_than_its_layer_stays_visible() -> None:
    job = just_in_time(400, 100).job()
    assert gain(job, propose_job(job)) == pytest.approx(8 * 510 / (8 * 405 + 100), rel=0.06)


def test_gathers_under_way_early_are_right() -> None:
    fleet = Fleet()
    for _ in range(4):
        fleet.collective("all_gather", 8 << 20, 200)
        for _ in range(8):
            fleet.compute(5)
            fleet.collective("all_gather", 8 << 20, 200, needed=False)
            fleet.compute(300)
            fleet.settle()
        fleet.step()
    assert propose_job(fleet.job()) is None


def test_no_gathers_is_no_fault() -> None:
    fleet = Fleet()
    for _ in range(4):
        fleet.compute(100)
        fleet.collective("all_reduce", 8 << 20, 200)
        fleet.step()
    assert propose_job(fleet.job()) is None
