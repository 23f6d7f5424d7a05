from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from stepscope.core.experiments.experiment import (
    LOSS_BASELINE,
    LOSS_GROWS,
    LOSS_NOT_FINITE,
    LOSS_SOUND,
    LOSS_UNSEEN,
    PROVEN,
    Side,
)
from stepscope.core.experiments.trials import Change, StepLoss, Trial
from stepscope.experiments.verify.experiment import verify
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.experiments.verify.schedule import VerifyPolicy
from tests.wording import mentions

STEPS = 60
Course = Callable[[int], float]


def trial(losses: Sequence[float], step_ms: float = 10.0) -> Trial:
    rows = tuple(StepLoss(step=step, loss=float(loss)) for step, loss in enumerate(losses))
    steps = tuple(round(step_ms * 1e6 * (1 + 0.01 * (number % 3))) for number in range(20))
    return Trial(
        folder="f",
        change=Change(),
        exit_code=0,
        step_ns=steps,
        wall_s=1.0,
        is_cut=True,
        losses=rows,
    )


def falling(step: int) -> float:
    return 2.4 + 0.7 * math.exp(-step / 20)


def runs(
    course: Course, num: int = 3, noise: float = 0.0, seed: int = 0, between: float = 0.0
) -> list[Trial]:
    """Runs of one command: `noise` from step to step, `between` from run to run."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(num):
        level = generator.normal(0, between)
        made.append(
            trial([course(step) + level + generator.normal(0, noise) for step in range(STEPS)])
        )
    return made


def test_a_loss_that_is_nan_from_a_step_on_is_told_with_the_step() -> None:
    after = runs(lambda step: math.nan if step >= 12 else falling(step))
    check = check_loss(runs(falling), after)
    assert (check.verdict, check.is_fault) == (LOSS_NOT_FINITE, True)
    assert mentions(check.because, "candidate", "NaN from step 12", "baseline", "from 3.1 to 2.44")
    assert (check.candidate.not_finite_step, check.candidate.num_not_finite) == (12, 3)
    assert check.candidate.last is None


def test_one_run_and_one_step_that_is_infinite_are_enough() -> None:
    after = [*runs(falling, 2), *runs(lambda step: math.inf if step == 30 else falling(step), 1)]
    check = check_loss(runs(falling), after)
    assert check.verdict == LOSS_NOT_FINITE
    assert mentions(check.because, "infinite at step 30", "1 of 60 steps", "1 of 3 runs")


def test_a_loss_that_grows_is_told_with_both_courses() -> None:
    check = check_loss(runs(falling), runs(lambda step: 3.1 * 1.1**step))
    assert (check.verdict, check.is_fault) == (LOSS_GROWS, True)
    assert mentions(check.because, "candidate's loss grows from 3.1 to 645")
    assert mentions(check.because, "baseline's falls from 3.1 to 2.44")


def test_an_update_that_is_too_large_shows_from_the_second_step_on() -> None:
    """Adam's first step may take the loss to its height at once, from where it falls."""
    check = check_loss(runs(falling), runs(lambda step: 3.1 if step == 0 else 150 - step))
    assert check.verdict == LOSS_GROWS


def test_growth_at_the_very_end_is_seen() -> None:
    check = check_loss(
        runs(falling), runs(lambda step: falling(step) if step < 56 else 10.0 ** (step - 55))
    )
    assert check.verdict == LOSS_GROWS


@pytest.mark.parametrize("between", [0.0, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    "course",
    [
        falling,
        lambda _: 2.3,
        lambda step: -step * 1.0,
        lambda step: 2 + 0.05 * step,
        lambda step: 1.3**step,
    ],
)
def test_two_sides_that_are_the_same_are_sound(
    course: Course, noise: float, between: float
) -> None:
    """Whatever the loss does, and however far runs differ: unseeded jobs, noisy data, a baseline
    that grows itself."""
    for seed in range(20):
        everything = runs(course, 10, noise, seed, between)
        assert check_loss(everything[::2], everything[1::2]).verdict == LOSS_SOUND


@pytest.mark.parametrize(
    "course",
    [
        lambda step: falling(step) * 1.02,
        lambda step: falling(step) + 0.3,
        lambda step: 3.1,
        lambda step: falling(step) if step != 40 else 90.0,
        lambda step: 16 * falling(step),
    ],
    ids=["bf16", "slower", "stays", "one jump", "sums over larger batches"],
)
def test_what_differs_and_does_not_grow_is_sound(course: Course) -> None:
    assert check_loss(runs(falling), runs(course)).verdict == LOSS_SOUND


def test_a_baseline_that_is_not_finite_is_not_the_candidates_fault() -> None:
    broken = runs(lambda step: math.nan if step > 4 else 3.0)
    check = check_loss(broken, runs(falling))
    assert (check.verdict, check.is_fault) == (LOSS_BASELINE, False)
    assert mentions(check.because, "baseline's own loss", "NaN from step 5")


def test_a_scaler_that_looks_for_its_scale_is_not_the_candidates_fault() -> None:
    scaled = runs(lambda step: math.inf if step < 3 else falling(step))
    check = check_loss(scaled, scaled)
    assert (check.verdict, check.is_fault) == (LOSS_BASELINE, False)


def test_a_candidate_that_ends_without_a_loss_is_no_gain_whatever_the_baseline_does() -> None:
    broken = runs(lambda step: math.nan if step > 4 else 3.0)
    check = check_loss(broken, broken)
    assert (check.verdict, check.is_fault) == (LOSS_NOT_FINITE, True)
    assert mentions(check.because, "candidate's loss is NaN from step 5")
    assert mentions(check.because, "baseline's is NaN from step 5")


def test_a_job_whose_loss_is_not_seen_is_said_to_be_so() -> None:
    check = check_loss(runs(falling), [trial([])])
    assert check.verdict == LOSS_UNSEEN
    assert mentions(check.because, "no loss", "candidate")


def test_more_steps_of_one_side_are_not_compared() -> None:
    """A loader's stock makes a run longer; what the baseline's would do by then is not known."""
    longer = [trial([3.0] * 60 + [50.0] * 30)]
    assert check_loss(runs(lambda _: 3.0), longer).verdict == LOSS_SOUND


@pytest.mark.parametrize(
    "course", [lambda step: math.nan if step > 11 else 3.0, lambda step: 3.0 * 1.2**step]
)
def test_a_faster_candidate_that_diverges_is_no_gain(course: Course) -> None:
    courses: dict[Side, Course] = {"baseline": falling, "candidate": course}
    times: dict[Side, float] = {"baseline": 20.0, "candidate": 5.0}

    def measure(side: Side) -> Trial:
        return trial([courses[side](step) for step in range(STEPS)], times[side])

    verified = verify(measure, VerifyPolicy())
    assert (verified.verdict, verified.is_gain, verified.speedup) == ("diverges", False, None)
    assert verified.because.startswith("the candidate's loss ")
    assert verified.loss is not None
    assert verified.because == verified.loss.because
    courses["candidate"] = falling
    assert verify(measure, VerifyPolicy()).verdict == PROVEN


def test_a_job_that_is_nan_anyway_proves_nothing() -> None:
    def measure(side: Side) -> Trial:
        return trial([3.0, math.nan, math.nan], 20.0 if side == "baseline" else 10.0)

    verified = verify(measure, VerifyPolicy())
    assert (verified.verdict, verified.is_gain) == ("diverges", False)


def test_a_gain_over_a_baseline_that_is_nan_says_so() -> None:
    def measure(side: Side) -> Trial:
        after = math.nan if side == "baseline" else 2.9
        return trial([3.0, after, after], 20.0 if side == "baseline" else 10.0)

    verified = verify(measure, VerifyPolicy())
    assert verified.verdict == PROVEN
    assert verified.loss is not None
    assert verified.loss.verdict == LOSS_BASELINE
