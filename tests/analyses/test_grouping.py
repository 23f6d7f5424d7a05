from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.grouping import (
    coded_pairs,
    distinct,
    grouped,
    is_among,
    median,
    stable_order,
    sums,
)

CODES = st.lists(st.integers(0, 9), max_size=40)


@given(CODES)
def test_distinct_values_and_groups_are_those_of_unique(codes: list[int]) -> None:
    column = np.array(codes, np.int32)
    assert distinct(column).tolist() == sorted(set(codes))
    order, begins = grouped(column)
    assert column[order].tolist() == sorted(codes)
    assert column[order[begins]].tolist() == sorted(set(codes))
    # At one value, in the order they came in.
    assert order.tolist() == sorted(range(len(codes)), key=lambda i: codes[i])


@given(CODES, CODES)
def test_values_are_among_those_that_are_given(values: list[int], others: list[int]) -> None:
    found = is_among(np.array(values, np.int64), np.array(others, np.int32))
    assert found.tolist() == [value in others for value in values]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40), st.booleans())
def test_pairs_are_numbered_in_their_order(pairs: list[tuple[int, int]], is_sparse: bool) -> None:
    outer, inner = np.array(pairs, np.int32).reshape(-1, 2).T
    num = 1000 if is_sparse else 5
    rows, outer_of, inner_of = coded_pairs(outer, num, inner, num)
    found = list(zip(outer_of.tolist(), inner_of.tolist(), strict=True))
    assert found == sorted(set(pairs))
    assert [found[row] for row in rows.tolist()] == pairs


@given(CODES, st.sampled_from([10, 1 << 15, 1 << 20]))
def test_the_order_of_codes_is_stable(codes: list[int], num_codes: int) -> None:
    order = stable_order(np.array(codes, np.int64), num_codes)
    assert order.tolist() == sorted(range(len(codes)), key=lambda i: codes[i])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**55), 2**55)), max_size=40))
def test_sums_are_exact(rows: list[tuple[int, int]]) -> None:
    codes, values = np.array(rows, np.int64).reshape(-1, 2).T
    expected = [sum(value for code, value in rows if code == wanted) for wanted in range(5)]
    assert sums(codes, values, 5).tolist() == expected
    small = values >> 20
    expected = [sum(value >> 20 for code, value in rows if code == wanted) for wanted in range(5)]
    assert sums(codes, small, 5).tolist() == expected


@given(st.lists(st.floats(-1e9, 1e9) | st.integers(-(2**62), 2**62), min_size=1, max_size=20))
def test_the_median_is_numpys(values: list[float]) -> None:
    assert median(values) == float(np.median(np.array(values, np.float64)))


def test_the_median_of_nothing_and_of_nan_is_nan() -> None:
    assert np.isnan(median([]))
    assert np.isnan(median([1.0, float("nan"), 2.0]))
