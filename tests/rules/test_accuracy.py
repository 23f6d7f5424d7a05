"""The range of a promise: wider than what the replay leaves open, wider for more."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.rules.accuracy import widened


@given(st.floats(0.3, 100.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_a_range_holds_what_the_replay_leaves_open(gain: float, below: float, above: float) -> None:
    low, high = widened(gain / below, gain * above, gain)
    assert 0.0 < low < gain / below
    assert high > gain * above


def test_what_was_timed_on_the_device_leaves_less_open() -> None:
    ranges = [widened(1.8, 2.2, 2.0, None, share) for share in (0.0, 0.5, 1.0)]
    for wide, narrow in itertools.pairwise(ranges):
        assert wide[0] < narrow[0] < 1.8
        assert wide[1] > narrow[1] > 2.2


@pytest.mark.parametrize(("below", "above"), [(1.0, 1.0), (1.3, 1.1), (1.8, 2.5)])
def test_a_change_of_the_whole_model_is_not_all_at_its_worst(below: float, above: float) -> None:
    added = widened(2.0 / below, 2.0 * above, 2.0)
    beside = widened(2.0 / below, 2.0 * above, 2.0, is_sweeping=True)
    error = widened(2.0, 2.0, 2.0)
    assert added[0] <= beside[0] * (1 + 1e-9) <= error[0] * (1 + 2e-9) < 2.0
    assert 2.0 < error[1] <= beside[1] * (1 + 1e-9) <= added[1] * (1 + 2e-9)


def test_another_way_to_make_it_is_there_or_not() -> None:
    same = widened(1.5, 6.0, 2.0, is_sweeping=True)
    other = widened(1.5, 6.0, 2.0, is_sweeping=True, hopes_for_other=True)
    assert other[0] == same[0]
    assert other[1] > 6.0 > same[1]


def test_an_error_grows_with_the_gain_up_to_a_point() -> None:
    errors = [widened(gain, gain, gain)[1] / gain for gain in (1.0, 1.5, 4.0, 10.0, 100.0)]
    assert errors == sorted(errors)
    assert errors[0] == pytest.approx(1.13, abs=0.01)
    assert errors[-1] == errors[-2] == pytest.approx(1.35, abs=0.01)
