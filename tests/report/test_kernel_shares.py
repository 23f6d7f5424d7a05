"""No kernel is shown with more than all of a roof, nor of the time in which kernels ran."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepscope.core.facts import CategoryRow
from stepscope.report.diagnosis.kernels import compute_ns
from tests.scenarios import SCENARIOS, kernel


@pytest.mark.parametrize(
    ("roof", "shown"), [(None, None), (0.5, 0.5), (1.03, 1.0), (1.59, None), (0.0, 0.0)]
)
def test_work_that_needs_longer_than_it_took_is_not_known(
    roof: float | None, shown: float | None
) -> None:
    assert kernel("k", "gemm", None, 1, 2.0, roof).roof_share == shown


def test_kernels_that_run_at_once_share_what_they_took_together() -> None:
    rank = SCENARIOS["healthy"]().facts.ranks[0]
    assert rank.partition is not None
    ran = sum(rank.partition.parts["compute"])
    assert compute_ns(replace(rank, categories=())) == ran
    both = tuple(
        CategoryRow(category=name, count=1, total_ns=ran) for name in ("gemm", "norm", "collective")
    )
    assert compute_ns(replace(rank, categories=both)) == 2 * ran
    assert compute_ns(replace(rank, partition=None)) == 0
