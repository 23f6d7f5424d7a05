"""barrier-stalls: warps at barriers, unless the device is busy all the same."""

from __future__ import annotations

import pytest

from stepscope.recordings.ncu.barrier_stalls import advise
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.wording import mentions

STANDS = {"barrier": 0.9, "selected": 0.05, "short_scoreboard": 0.05}


def test_warps_at_a_barrier() -> None:
    (advice,) = advise(beside(kernel(stalls=STANDS, block=(32, 32, 1))))
    assert advice.code == "barrier-stalls"
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "90% of the warps' time", "barriers", "1024 threads")


@pytest.mark.parametrize(
    "fields",
    [
        {"stalls": {"barrier": 0.2, "selected": 0.8}},
        {"l1_throughput": 0.8},
        {"issue": 0.9},
        {"stalls": {}},
    ],
)
def test_silent_below_the_bound_and_at_a_roof(fields: dict[str, object]) -> None:
    assert advise(beside(kernel(**({"stalls": STANDS} | fields)))) == ()


def test_healthy_gemm_meets_at_barriers_by_design() -> None:
    assert healthy_gemm().stalls["barrier"] >= 0.3
    assert advise(beside(healthy_gemm())) == ()


def test_recorded_step_has_none() -> None:
    assert advise(recorded()) == ()
