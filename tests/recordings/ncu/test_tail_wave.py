"""tail-wave: few waves, the last one small, and multiprocessors seen without work."""

from __future__ import annotations

import pytest

from stepscope.recordings.ncu.tail_wave import advise
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.wording import mentions


def test_a_little_more_than_a_wave() -> None:
    (advice,) = advise(beside(kernel(waves=140 / 132, active=0.53)))
    assert advice.code == "tail-wave"
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "1.06 waves", "time of 2", "47%")
    assert advise(beside(kernel(waves=1.1, active=None, occupancy=0.5, theoretical_occupancy=1.0)))


@pytest.mark.parametrize(
    "fields",
    [
        {"waves": 1.0},
        {"waves": 1.95},
        {"waves": 0.5},
        {"waves": 5.1},
        {"waves": None},
        {"active": 0.95},
        {"active": None, "occupancy": None},
        {"compute_throughput": 0.85},
        {"waves": float("nan")},
    ],
)
def test_silent_for_full_many_and_unseen_tails(fields: dict[str, object]) -> None:
    assert advise(beside(kernel(**({"waves": 1.1, "active": 0.5} | fields)))) == ()


def test_healthy_gemm() -> None:
    assert advise(beside(healthy_gemm())) == ()


def test_recorded_step_has_none() -> None:
    assert advise(recorded()) == ()
