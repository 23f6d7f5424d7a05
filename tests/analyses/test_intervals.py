"""Interval algebra against sets of whole nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.intervals import (
    Intervals,
    between,
    complement,
    contains,
    covered_before,
    intersect,
    join,
    lengths_in,
    subtract,
    union,
)

PAIRS = st.lists(st.tuples(st.integers(-20, 60), st.integers(-20, 60)), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Intervals:
    return union(
        np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)
    )


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def points_of(a: Intervals) -> set[int]:
    a.self_check()
    return {
        t
        for start, end in zip(a.start.tolist(), a.end.tolist(), strict=True)
        for t in range(start, end)
    }


@given(PAIRS)
def test_union_covers_exactly_what_its_intervals_cover(pairs: list[tuple[int, int]]) -> None:
    assert points_of(made(pairs)) == points(pairs)
    assert made(pairs).total == len(points(pairs))


@given(PAIRS, PAIRS)
def test_set_operations_agree_with_sets_of_points(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    assert points_of(intersect(made(a), made(b))) == points(a) & points(b)
    assert points_of(subtract(made(a), made(b))) == points(a) - points(b)
    assert points_of(join(made(a), made(b))) == points(a) | points(b)


@given(PAIRS, st.integers(-30, 70), st.integers(-30, 70))
def test_complement_is_what_is_missing_of_the_window(
    a: list[tuple[int, int]], low: int, high: int
) -> None:
    assert points_of(complement(made(a), low, high)) == set(range(low, high)) - points(a)
    if low < high:
        assert points_of(between(made(a), low, high)) == set(range(low, high)) & points(a)


@given(
    PAIRS, st.lists(st.tuples(st.integers(-30, 70), st.integers(-30, 70)), min_size=1, max_size=6)
)
def test_lengths_in_windows_count_the_points_inside(
    a: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    start = np.array([w[0] for w in windows], np.int64)
    end = np.array([w[1] for w in windows], np.int64)
    expected = [len(points(a) & set(range(low, high))) for low, high in windows]
    assert lengths_in(start, end, made(a)).tolist() == expected


@given(PAIRS, st.lists(st.integers(-30, 70), min_size=1, max_size=8))
def test_covered_before_and_contains_agree_with_points(
    a: list[tuple[int, int]], times: list[int]
) -> None:
    at = np.array(times, np.int64)
    assert covered_before(made(a), at).tolist() == [
        sum(1 for p in points(a) if p < t) for t in times
    ]
    assert contains(made(a), at).tolist() == [t in points(a) for t in times]


@given(PAIRS, PAIRS, PAIRS)
def test_subtracting_in_turn_partitions_the_whole(
    a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]
) -> None:
    whole = join(made(a), made(b), made(c))
    parts = [made(a), subtract(made(b), made(a)), subtract(subtract(made(c), made(a)), made(b))]
    assert sum(part.total for part in parts) == whole.total
