"""Columns by group: distinct values, exact sums, medians.

Of plain integers numpy 2.4's `unique` keeps a hash table (and imports `numpy.ma`, for 0.03 s), and
`add.at` adds one by one: sorting once, or counting where codes are small, takes a tenth of their
time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepscope.core.trace import Bool, Int64, Trace

FEW_NAMES = 6
"""Names up to which comparing the column with each is faster than looking every event's name up."""


def matching(trace: Trace, pattern: re.Pattern[str]) -> Bool:
    """Mask of the events whose name the pattern finds."""
    by_name = trace.is_named(pattern)
    codes = np.flatnonzero(by_name)
    if len(codes) > FEW_NAMES:
        named: Bool = by_name.take(trace.name)
        return named
    mask = np.zeros(len(trace), np.bool_)
    for code in codes.tolist():
        mask |= trace.name == code
    return mask


Integers = NDArray[np.signedinteger[Any]]
AnyInteger = TypeVar("AnyInteger", bound=np.signedinteger[Any])

SPARSE = 4
"""Possible pairs for each that is there, up to which a table of them all is quicker."""
MAX_EXACT = 2**53
"""Limit up to which every integer is a double."""


def stable_order(codes: Integers, num_codes: int) -> Int64:
    """The order that sorts codes below `num_codes`. Of two bytes each, numpy counts them instead of
    comparing."""
    if num_codes <= np.iinfo(np.int16).max:
        codes = codes.astype(np.int16)
    return np.argsort(codes, kind="stable")


def distinct(values: NDArray[AnyInteger]) -> NDArray[AnyInteger]:
    """The values that occur, sorted."""
    ordered = np.sort(values)
    return ordered[_begins(ordered)]


def is_among(values: Integers, others: Integers) -> NDArray[np.bool_]:
    """Mask of the values that are one of the others."""
    if len(others) == 0:
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(others)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    is_one: NDArray[np.bool_] = ordered.take(at) == values
    return is_one


def grouped(values: Integers) -> tuple[Int64, Int64]:
    """An order that brings equal values together, smallest first, and where in it each group
    begins: `np.add.reduceat(x[order], begins)` is a figure per distinct value."""
    order = np.argsort(values, kind="stable")
    return order, np.flatnonzero(_begins(values[order]))


def coded_pairs(
    outer: Integers, num_outer: int, inner: Integers, num_inner: int
) -> tuple[Int64, Int64, Int64]:
    """Distinct pair that each pair of codes is, by the outer and then by the inner one; and the two
    codes of each distinct pair."""
    keys = outer.astype(np.int64) * num_inner + inner
    if num_outer * num_inner <= SPARSE * len(keys):
        # No sorting where a table of all pairs is small.
        occurs = np.zeros(num_outer * num_inner, np.bool_)
        occurs[keys] = True
        pairs, number = np.flatnonzero(occurs), np.cumsum(occurs) - 1
        rows = number.take(keys)
    else:
        order, begins = grouped(keys)
        pairs, rows = keys[order[begins]], np.empty(len(keys), np.int64)
        rows[order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(keys)))
    return rows, *np.divmod(pairs, max(num_inner, 1))


def sums(codes: Integers, values: Int64, num_codes: int) -> Int64:
    """The sum of the values of each code, exact."""
    if len(values) == 0:
        return np.zeros(num_codes, np.int64)
    if max(int(values.max()), -int(values.min())) * len(values) <= MAX_EXACT:
        return np.bincount(codes, values, num_codes).astype(np.int64)
    totals = np.zeros(num_codes, np.int64)
    np.add.at(totals, codes, values)
    return totals


def median(values: NDArray[Any] | Sequence[float]) -> float:
    """Median as numpy's, which imports `numpy.ma` for it. NaN where one is, and of nothing."""
    column = np.asarray(values, np.float64)
    if not len(column):
        return float("nan")
    middle = len(column) // 2
    column = np.partition(column, (max(middle - 1, 0), middle, -1))
    if np.isnan(column[-1]):
        return float("nan")
    upper = float(column[middle])
    return upper if len(column) % 2 else (float(column[middle - 1]) + upper) / 2


def _begins(ordered: Integers) -> NDArray[np.bool_]:
    begins = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return begins
