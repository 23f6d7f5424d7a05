"""uncoalesced-access: sectors that are moved and not used; what the L1 keeps for neighbours is not
waste."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.recordings.ncu.uncoalesced_access import advise
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.wording import mentions


def copy(sectors: float, ideal: float | None, **fields: Any) -> Any:
    """A copy of 1000 warps: loads with so many sectors each, stores in order."""
    plain: dict[str, Any] = {
        "load_sectors": sectors,
        "load_sectors_ideal": ideal,
        "global_load_sectors": 1000 * sectors,
        "l2_load_sectors": 1000 * sectors,
        "store_sectors": 4.0,
        "store_sectors_ideal": 4.0,
        "global_store_sectors": 4000.0,
        "l2_store_sectors": 4000.0,
    }
    return kernel(**(plain | fields))


def test_strided_loads() -> None:
    (advice,) = advise(beside(copy(32, 4, dram_throughput=0.9)))
    assert advice.code == "uncoalesced-access"
    share = (32 - 4) / (32 + 4)
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "32 sectors", "4 would", f"{share:.0%}")


def test_silent_where_arithmetic_is_the_bound() -> None:
    assert advise(beside(copy(32, 4, fma_pipe=0.7))) == ()


def test_coalesced_loads_of_any_width() -> None:
    assert advise(beside(copy(4, 4))) == ()
    assert advise(beside(copy(16, 16))) == ()


def test_what_the_l1_keeps_is_not_moved() -> None:
    assert advise(beside(copy(32, 16, l2_load_sectors=16_000.0))) == (), (
        "two loads share each sector: the second finds it in the L1"
    )
    assert advise(beside(copy(32, 16, l2_load_sectors=None))), "not known to be kept"


def test_without_the_bytes_only_what_no_width_explains() -> None:
    assert advise(beside(copy(16, None))) == ()
    assert advise(beside(copy(32, None)))


@pytest.mark.parametrize(
    "fields", [{"global_load_sectors": None, "global_store_sectors": None}, {"load_sectors": None}]
)
def test_silent_where_sectors_were_not_counted(fields: dict[str, object]) -> None:
    assert advise(beside(copy(32, 4, **fields))) == ()


def test_healthy_gemm() -> None:
    assert advise(beside(healthy_gemm())) == ()


def test_recorded_step_has_none() -> None:
    assert advise(recorded()) == (), (
        "its cast touches sectors twice, and the L1 serves the second time"
    )
