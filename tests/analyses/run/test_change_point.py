"""Lasting moves are told once, noise is not told at all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import islice, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyses.run.change_point import ChangePoint, ChangePointDetector, rank_z
from stepscope.analyses.run.trend import TrendDetector, kendall_z

NOISES = ("lognormal", "bursts", "heavy", "correlated", "constant")


def series(kind: str, seed: int, num: int) -> list[float]:
    """Stationary step times of about 10, each noisy in its own way."""
    draw = random.Random(seed)
    if kind == "lognormal":
        return [10 * math.exp(draw.gauss(0, 0.5)) for _ in range(num)]
    if kind == "bursts":
        return [30.0 if step % 4 == 0 else 3 + draw.random() for step in range(num)]
    if kind == "heavy":
        return [10 * draw.paretovariate(1.5) for _ in range(num)]
    if kind == "constant":
        return [10.0] * num
    level, found = 0.0, []
    for _ in range(num):
        level = 0.5 * level + draw.gauss(0, 0.1)
        found.append(10 * math.exp(level))
    return found


def shifts(values: list[float], worse_by: float = 1.25) -> list[tuple[int, ChangePoint]]:
    detector = ChangePointDetector(lambda before, after: after >= worse_by * before)
    return [
        (number, found)
        for number, value in enumerate(values)
        if (found := detector.add(value)) is not None
    ]


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(NOISES), seed=st.integers(0, 2**32))
def test_noise_that_stays_as_it_is_raises_no_alarm(kind: str, seed: int) -> None:
    assert shifts(series(kind, seed, 3000)) == []


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(NOISES), seed=st.integers(0, 2**32), at=st.integers(150, 400))
def test_a_tripled_step_is_told_once_and_soon(kind: str, seed: int, at: int) -> None:
    values = [
        value * (3 if number >= at else 1) for number, value in enumerate(series(kind, seed, 1500))
    ]
    ((number, found),) = shifts(values)
    assert at < number <= at + 120
    assert found.after / found.before == pytest.approx(3, rel=0.6)


def test_a_slow_creep_is_told_though_no_step_of_it_is_large() -> None:
    found = shifts([10 * 1.0005**step + (step % 3) * 0.1 for step in range(1000)])
    assert found
    assert found[0][1].before == pytest.approx(10, rel=0.1)


def test_a_hiccup_is_not_told_and_a_better_pace_becomes_the_reference() -> None:
    usual = [10 + 0.01 * (step % 7) for step in range(200)]
    assert shifts([*usual, *[100.0] * 15, *usual]) == []
    assert [number for number, _ in shifts([*usual, *(value / 2 for value in usual), *usual])] == [
        439
    ]


def test_rank_z_is_zero_for_equals_and_grows_with_the_distance() -> None:
    reference = sorted(float(value) for value in range(100))
    assert rank_z(reference, [49.5] * 20) == 0
    assert rank_z(reference, [200.0] * 20) == -rank_z(reference, [-1.0] * 20) > 7


def test_memory_that_leaks_is_told_and_told_again_when_doubled() -> None:
    detector = TrendDetector()
    sizes = [1e9 + 2e6 * number + 5e7 * (number % 5 == 0) for number in range(2000)]
    found = [growth for size in sizes if (growth := detector.add(size)) is not None]
    assert 2 <= len(found) <= 8, "once per doubling"
    assert found[0].last_bytes > found[0].first_bytes


@pytest.mark.parametrize("kind", ["flat", "fills and stays", "sawtooth", "one step up"])
def test_memory_that_does_not_leak_is_not_told(kind: str) -> None:
    draw = random.Random(1)
    shapes: dict[str, Callable[[int], float]] = {
        "flat": lambda n: 1e9 + draw.gauss(0, 1e8),
        "fills and stays": lambda n: 1e9 + 4e9 * (1 - math.exp(-n / 60)) + draw.gauss(0, 1e6),
        "sawtooth": lambda n: 1e9 + 1e7 * (n % 100),
        "one step up": lambda n: 1e9 * (1 + (n > 300)) + draw.gauss(0, 1e7),
    }
    detector = TrendDetector()
    assert [
        growth for n in range(3000) if (growth := detector.add(shapes[kind](n))) is not None
    ] == []


def test_kendall_z_of_a_rising_and_of_a_flat_series() -> None:
    assert kendall_z([float(value) for value in range(12)]) == pytest.approx(4.526, abs=1e-3)
    assert kendall_z(list(islice(repeat(1.0), 12))) == 0
