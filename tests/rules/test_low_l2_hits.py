"""low-l2-hits: data that are used again and come from DRAM; passes that read once are left alone."""

from __future__ import annotations

import pytest

from stepscope.rules.low_l2_hits import advise
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.shared_data import needs_shared


def test_reads_that_are_used_again() -> None:
    (advice,) = advise(beside(kernel(l2_read_hits=0.35, dram_throughput=0.8)))
    assert advice.code == "low-l2-hits"
    assert advice.evidence == ("k (100%): 35% of its reads found in the L2, with 80% of the DRAM's peak in use",)


@pytest.mark.parametrize(
    "fields",
    [
        {"l2_read_hits": 0.01},
        {"l2_read_hits": 0.7},
        {"dram_throughput": 0.4},
        {"tensor_pipe": 0.7},
        {"l2_read_hits": None, "l2_hits": 0.35},
        {"dram_throughput": None},
    ],
)
def test_silent_for_a_pass_a_good_order_and_an_idle_dram(fields: dict[str, object]) -> None:
    assert advise(beside(kernel(**({"l2_read_hits": 0.35, "dram_throughput": 0.8} | fields)))) == ()


def test_healthy_gemm() -> None:
    assert advise(beside(healthy_gemm())) == ()


@needs_shared
def test_recorded_step_has_none() -> None:
    assert advise(recorded()) == ()
