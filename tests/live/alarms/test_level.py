"""Streams that are planted: when a level is told to have risen, and that noise is not."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.live.alarms.level import LASTS_S, MIN_VALUES, NUM_FIRST, Level

EVERY_S = 0.1


def rises(values: list[float], every_s: float = EVERY_S) -> list[float]:
    """When rises were told."""
    level = Level(lambda middle: 0.15 * middle)
    times = []
    for number, value in enumerate(values):
        if level.add(value, number * every_s) and level.rise is not None:
            times.append(number * every_s)
    return times


def normal(rng: random.Random, spread: float, num: int) -> list[float]:
    return [100 * (1 + rng.gauss(0, spread)) for _ in range(num)]


def alike(rng: random.Random, spread: float, num: int, share: float = 0.9) -> list[float]:
    """Noise in which each value is like the one before it."""
    last, values = 0.0, []
    for _ in range(num):
        last = share * last + rng.gauss(0, spread * math.sqrt(1 - share**2))
        values.append(100 * (1 + last))
    return values


def test_half_an_hour_of_even_noise_is_no_rise() -> None:
    rng = random.Random(1)
    num = round(1800 / EVERY_S)
    assert rises(normal(rng, 0.05, num)) == []
    assert rises(normal(rng, 0.3, num)) == [], "wide as it is, it goes nowhere"
    assert rises([100 * math.exp(rng.gauss(0, 0.5)) for _ in range(num)]) == []
    assert rises(alike(rng, 0.1, num)) == []


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6), spread=st.floats(0, 0.2), every_s=st.sampled_from([0.02, 0.1, 1])
)
def test_noise_of_any_seed_is_no_rise(seed: int, spread: float, every_s: float) -> None:
    rng = random.Random(seed)
    assert rises(normal(rng, spread, 1500), every_s) == []


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), times=st.floats(1.3, 5), spread=st.floats(0, 0.05))
def test_a_rise_is_told_once_and_soon(seed: int, times: float, spread: float) -> None:
    rng = random.Random(seed)
    before, after = normal(rng, spread, 300), [times * v for v in normal(rng, spread, 300)]
    (at_s,) = rises(before + after)
    assert 30 + LASTS_S <= at_s + EVERY_S <= 30 + LASTS_S + 2


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_that_fell_rises_from_where_it_is(seed: int) -> None:
    """As a loss does: what it wandered by at first is more than all of it now."""
    rng = random.Random(seed)
    fallen = [(0.3 + 76 * math.exp(-n / 60)) * math.exp(rng.gauss(0, 0.5)) for n in range(600)]
    risen = [1.8 * math.exp(rng.gauss(0, 0.5)) for _ in range(100)]
    assert len(rises(fallen + risen)) == 1


def test_what_is_too_little_or_too_short_is_not_told() -> None:
    rng = random.Random(3)
    even = normal(rng, 0.02, 300)
    assert rises(even + [1.1 * value for value in normal(rng, 0.02, 600)]) == [], "a tenth more"
    assert rises(even + [300.0] * 40 + even) == [], "four seconds"
    assert rises([*even, 10_000.0, *even]) == [], "one value, however far"


def test_a_level_that_comes_back_is_over_and_may_rise_again() -> None:
    level = Level(lambda middle: 0.15 * middle)
    told = []
    for number in range(1200):
        value = 150.0 if number // 200 in (1, 3) else 100.0 + number % 3
        if level.add(value, number * EVERY_S):
            told.append((round(number * EVERY_S), level.rise is not None))
    assert [is_risen for _, is_risen in told] == [True, False, True, False]
    assert told[1][0] <= 40 + LASTS_S + 2


def test_values_far_apart_need_few() -> None:
    """Steps of three seconds: four of them, and no more."""
    (at_s,) = rises([100.0 + number % 2 for number in range(40)] + [150.0] * 20, 3.0)
    assert at_s == 3.0 * (40 + MIN_VALUES - 1)


def test_nothing_is_judged_before_there_is_a_past() -> None:
    assert rises([100.0] * (NUM_FIRST - 1)) == []
    level = Level(lambda middle: 0.15 * middle)
    assert level.middle is None


@pytest.mark.parametrize("value", [0.0, -100.0])
def test_levels_of_nothing_and_below_are_no_trouble(value: float) -> None:
    level = Level(lambda middle: 0.1 * abs(middle))
    assert not any(level.add(value, number * EVERY_S) for number in range(200))
