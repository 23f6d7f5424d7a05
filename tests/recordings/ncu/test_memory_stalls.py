"""memory-stalls: latency is told from bandwidth, shared memory from global."""

from __future__ import annotations

import pytest

from stepscope.recordings.ncu.memory_stalls import advise
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.wording import mentions

WAITS = {"long_scoreboard": 0.6, "wait": 0.2, "selected": 0.2}
CONFLICTS = {"mio_throttle": 0.3, "short_scoreboard": 0.2, "long_scoreboard": 0.2, "selected": 0.3}


def test_latency_with_idle_memory() -> None:
    (advice,) = advise(beside(kernel(stalls=WAITS)))
    assert advice.code == "memory-stalls"
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "60% of the warps' time", "loads", "30% of the DRAM's peak")


def test_a_kernel_that_stays_on_its_multiprocessors_is_judged() -> None:
    assert len(advise(beside(kernel(stalls=WAITS, waves=0.97)))) == 1


def test_one_stall_alone_is_enough_where_no_other_can_be_more() -> None:
    assert len(advise(beside(kernel(stalls={"long_scoreboard": 0.55})))) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"dram_throughput": 0.85},
        {"l2_throughput": 0.7},
        {"l1_throughput": 0.7},
        {"compute_throughput": 0.7},
        {"issue": 0.9},
        {"waves": 0.4},
        {"stalls": {}},
        {"stalls": {"long_scoreboard": 0.25, "wait": 0.2, "selected": 0.55}},
        {"stalls": {"long_scoreboard": 0.35, "barrier": 0.45, "selected": 0.2}},
        {
            "stalls": {"long_scoreboard": 0.35}
        },  # What the rest is was not collected: it may be more.
        {"dram_throughput": None},
    ],
)
def test_silent_at_a_roof_and_where_another_stall_rules(fields: dict[str, object]) -> None:
    assert advise(beside(kernel(**({"stalls": WAITS} | fields)))) == ()


def test_bank_conflicts_are_told_even_where_they_keep_the_l1_busy() -> None:
    wavefronts = {"shared_wavefronts": 3300.0, "shared_wavefronts_ideal": 200.0}
    (advice,) = advise(beside(kernel(stalls=CONFLICTS, l1_throughput=0.95, **wavefronts)))
    assert "Bank conflicts" in advice.summary
    assert "16.5 times the passes" in advice.evidence[0]
    padded = kernel(
        stalls=CONFLICTS, l1_throughput=0.95, shared_wavefronts=220.0, shared_wavefronts_ideal=200.0
    )
    assert advise(beside(padded)) == ()
    elsewhere = kernel(stalls={"barrier": 0.5, "selected": 0.5}, l1_throughput=0.95, **wavefronts)
    assert advise(beside(elsewhere)) == ()


def test_healthy_gemm() -> None:
    assert advise(beside(healthy_gemm())) == ()


def test_recorded_step_names_its_strided_copies() -> None:
    (advice,) = advise(recorded())
    assert advice.weight == pytest.approx((298_368 + 93_824 + 13_504) / 1_297_920)
    assert advice.evidence[0].startswith("elementwise_kernel<128, 4")
    assert advice.evidence[1].startswith("unrolled_elementwise_kernel")
    assert len(advice.evidence) == 2
