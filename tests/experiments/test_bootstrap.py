from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from stepscope.core.experiments.experiment import Interval
from stepscope.errors import InputError
from stepscope.experiments.bootstrap import (
    log_mean_variance,
    ratio_of_medians,
    ratio_of_trimmed_means,
    smallest_shown,
    student,
    student_level,
    trimmed_mean,
)
from tests.installed import package


def autoregressive(
    generator: np.random.Generator, num: int, likeness: float, deviation: float
) -> list[float]:
    value, out = generator.normal() * deviation, []
    for _ in range(num):
        value = likeness * value + generator.normal() * deviation * math.sqrt(1 - likeness**2)
        out.append(math.exp(value))
    return out


@pytest.mark.parametrize(
    ("level", "freedom", "table"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.30265),
        (0.95, 10, 2.22814),
        (0.99, 5, 4.03214),
        (0.9, 30, 1.69726),
    ],
)
def test_student_is_that_of_the_printed_tables(level: float, freedom: float, table: float) -> None:
    assert student(level, freedom) == pytest.approx(table, rel=1e-5)
    assert student_level(table, freedom) == pytest.approx(level, abs=1e-5)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999, 1 - 1e-6])
@pytest.mark.parametrize("freedom", [1, 1.3, 2, 7.5, 40, 1e3, 1e6])
def test_student_is_that_of_scipy(level: float, freedom: float) -> None:
    # What scipy.stats.t.ppf is, without the rest of scipy.stats.
    special = package("scipy.special")
    wanted = special.stdtrit(freedom, 0.5 + level / 2)
    assert student(level, freedom) == pytest.approx(wanted, rel=1e-8)


def test_student_becomes_the_normal_one() -> None:
    assert student(0.95, 1e7) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), rel=1e-5)


def test_ratio_is_before_over_after_and_repeats_itself() -> None:
    generator = np.random.default_rng(7)
    before = generator.permutation([100.0, 110, 90, 105, 95] * 8).tolist()
    after = generator.permutation([50.0, 55, 45, 52.5, 47.5] * 8).tolist()
    interval = ratio_of_medians(before, after)
    assert interval.value == 2.0
    assert 1.8 < interval.lowest < 2.0 < interval.highest < 2.2
    assert interval == ratio_of_medians(before, after)
    assert ratio_of_medians(after, before).value == 0.5


def test_a_wait_with_every_fourth_step_is_seen_by_paces_alone() -> None:
    even, waiting = [10.0] * 80, [10.0, 10.0, 10.0, 30.0] * 20
    assert ratio_of_medians(waiting, even).value == 1.0
    assert ratio_of_trimmed_means(waiting, even).value == pytest.approx(
        (56 * 10 + 16 * 30) / 72 / 10
    )


def test_few_steps_tell_nothing_of_how_sure_they_are() -> None:
    interval = ratio_of_medians([2.0, 2.0], [1.0] * 30)
    assert interval == Interval(value=2.0)
    assert not interval.is_bounded
    assert smallest_shown(interval) == math.inf


@pytest.mark.parametrize("steps", [[], [0.0, -1.0], [math.nan, math.inf]])
def test_no_steps_are_refused(steps: list[float]) -> None:
    with pytest.raises(InputError, match="no step"):
        ratio_of_medians(steps, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("likeness", [-0.6, 0.0, 0.6])
def test_the_interval_of_medians_covers_the_truth(likeness: float) -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        before, after = (autoregressive(generator, 60, likeness, 0.1) for _ in range(2))
        interval = ratio_of_medians([1.2 * step for step in before], after, draws=300)
        covered += interval.lowest <= 1.2 <= interval.highest
    assert 180 <= covered < 200, "19 in 20, within what 200 of them can tell"


def test_the_smallest_change_is_shown_four_times_in_five() -> None:
    interval = Interval(value=1.0, low=math.exp(-0.0196), high=math.exp(0.0196))
    assert math.log(smallest_shown(interval)) == pytest.approx(0.01 * (1.95996 + 0.84162), rel=1e-4)


def test_pace_leaves_out_a_twentieth_at_each_end() -> None:
    steps = [float(step) for step in range(1, 41)]
    assert trimmed_mean([*steps[:-1], 1e9]) == statistics.fmean(steps[2:-2])
    assert trimmed_mean([5.0]) == 5.0


def test_waits_that_alternate_leave_a_mean_nearly_as_sure_as_without() -> None:
    """Two workers bring their batches together: one is waited for, the other is there."""
    generator = np.random.default_rng(3)
    means, guesses = [], []
    for _ in range(100):
        first, rest = generator.normal(700, 70, 12), generator.normal(50, 5, 12)
        steps = np.stack((first, rest), axis=1).ravel().tolist()
        means.append(math.log(trimmed_mean(steps)))
        guesses.append(math.sqrt(log_mean_variance(steps)))
    assert statistics.fmean(guesses) == pytest.approx(statistics.stdev(means), rel=0.5)


def test_log_mean_variance_is_that_of_a_mean() -> None:
    steps = np.random.default_rng(0).normal(100, 5, 100)
    assert math.sqrt(log_mean_variance(list(steps), draws=2000)) == pytest.approx(0.005, rel=0.35)
    assert log_mean_variance([1.0, 2.0]) == 0.0


@pytest.mark.parametrize("ratio", [ratio_of_medians, ratio_of_trimmed_means])
def test_swapped_samples_give_the_inverse_to_the_last_digit(ratio: Callable[..., Interval]) -> None:
    generator = np.random.default_rng(7)
    before, after = (
        autoregressive(generator, 40, 0.3, 0.05),
        autoregressive(generator, 25, 0.0, 0.02),
    )
    there, back = ratio(before, after), ratio(after, before)
    assert (back.value, back.lowest, back.highest) == pytest.approx(
        (1 / there.value, 1 / there.highest, 1 / there.lowest), rel=1e-12
    )
    same = ratio(before, before)
    assert same.lowest < 1 < same.highest
