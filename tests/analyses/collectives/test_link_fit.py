"""Latency and bandwidth fitted to times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.collectives.link_fit import bus_factor, fit, ring_steps


@given(
    alpha=st.floats(1e3, 1e6),
    beta=st.floats(1e8, 5e11),
    n=st.integers(2, 512),
    op=st.sampled_from(
        ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
    ),
)
def test_a_line_is_found_again(alpha: float, beta: float, n: int, op: str) -> None:
    start = alpha * ring_steps(op, n)
    middle = (
        int(start * beta / 1e9 / bus_factor(op, n)) + 1
    )  # where latency and bytes cost the same
    sizes = [middle // 8 + 1, middle + 2, middle * 8 + 3]
    found = fit(op, n, sizes, [start + size * bus_factor(op, n) / beta * 1e9 for size in sizes])
    assert found is not None
    assert found.alpha_ns == pytest.approx(alpha, rel=1e-3)
    assert found.beta == pytest.approx(beta, rel=1e-3)
    assert found.goodness == pytest.approx(1.0)
    assert found.worst < 1e-6


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ([1_000, 2_000], [1.0, 2.0]),
        ([1_000, 1_000, 2_000], [1.0, 1.0, 2.0]),
        ([1_000, 1_100, 1_200], [1.0, 1.1, 1.2]),
        ([1_000, 2_000, 4_000], [4.0, 2.0, 1.0]),
        ([1_000, 2_000, 4_000], [3.0, 1.0, 3.0]),
        ([1_000, 2_000, 4_000], [0.0, 1.0, 3.0]),
    ],
)
def test_what_makes_no_line_has_none(sizes: list[int], times: list[float]) -> None:
    assert fit("all_reduce", 4, sizes, times) is None


def test_latency_is_never_negative() -> None:
    found = fit("send", 2, [1_000, 2_000, 4_000], [900.0, 2_000.0, 4_100.0])
    assert found is not None
    assert found.alpha_ns == 0.0
    assert found.worst_bytes == 1_000
    assert found.worst > 0.05
