"""From when every rank is ready: a kernel that the device keeps outside is not late, a host that
launches late is."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.core.trace import Float64
from tests.rules.job_cases import US, Fleet


def moving_us(*, held_us: list[float], host_us: list[float]) -> Float64:
    """Of collectives that move for 100 us, launched when the device has nothing else to do."""
    fleet = Fleet()
    for _ in range(4):
        fleet.compute(50)
        fleet.host(host_us)
        fleet.collective("all_reduce", 1 << 20, 100, held_us=held_us)
        fleet.step()
    return np.asarray(fleet.job().job_graph.moving_ns / US)


def test_a_kernel_kept_outside_adds_to_its_collective() -> None:
    assert moving_us(held_us=[0, 2200], host_us=[4000, 4000]) == pytest.approx(2300, rel=0.05)


def test_the_first_rank_kept_outside_as_well_is_no_ones_lateness() -> None:
    # No more than the longest part: before both began, nothing tells the collective from what came
    # before it.
    assert moving_us(held_us=[1500, 2200], host_us=[4000, 4000]) == pytest.approx(800, rel=0.05)


def test_a_host_that_launches_late_does_not_lengthen_the_collective() -> None:
    assert moving_us(held_us=[0, 0], host_us=[4000, 6200]) == pytest.approx(100, rel=0.05)


def test_held_after_a_late_launch_counts_from_the_launch() -> None:
    assert moving_us(held_us=[0, 2200], host_us=[4000, 7000]) == pytest.approx(2300, rel=0.05)
