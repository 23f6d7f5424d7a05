"""Parts of a plan beside those of a run, and rates that a run teaches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.plan.constants import DEFAULT
from stepscope.plan.contract.plan_calibration import Factors
from stepscope.plan.estimate import PART_WORDS, choice_of
from stepscope.plan.framework import DDP
from stepscope.plan.layout import Layout
from stepscope.plan.learn import (
    COMMS,
    COMPUTE,
    HOST,
    PLANNED,
    SHARES,
    TIMES,
    as_factors,
    as_mapping,
    factors_of,
    fitted,
    measured_parts,
    planned_parts,
    with_factors,
)
from tests.plan.test_what_if import job_of


def test_every_part_of_a_plan_has_its_place_and_they_add_up() -> None:
    assert set(PLANNED) == set(PART_WORDS)
    choice = choice_of(job_of("llama3-8b", "2x8xH100", 4096, 64), Layout(dp=16, num_micro=4))
    assert sum(planned_parts(choice.times).values()) == pytest.approx(choice.step_s)


def test_every_rate_that_a_run_changes_is_one_of_the_planners() -> None:
    named = {name for names in (*SHARES.values(), *TIMES.values()) for name in names}
    assert all(hasattr(DEFAULT, name) for name in named)


def test_the_profilers_own_time_is_taken_off_the_host_then_off_input() -> None:
    parts = {
        "compute": 0.030, "idle_launch": 0.004, "idle_input": 0.046, "unprofiled": -0.015,
    }  # fmt: skip
    measured = measured_parts(parts)
    assert measured[HOST] == 0
    assert measured["input"] == pytest.approx(0.046 - 0.011)
    assert sum(measured.values()) == pytest.approx(sum(parts.values()))
    slower = measured_parts({"compute": 0.03, "unprofiled": 0.002})
    assert slower["other"] == pytest.approx(0.002)


def test_a_part_that_is_small_on_either_side_gives_no_factor() -> None:
    planned = {COMPUTE: 1.0, COMMS: 0.001, HOST: 0.0}
    assert factors_of(planned, {COMPUTE: 2.0, COMMS: 0.5}, 2.5) == {COMPUTE: 2.0}


def test_factors_halve_rates_and_double_times() -> None:
    changed = with_factors(DEFAULT, {COMPUTE: 2.0, COMMS: 2.0, HOST: 3.0, "memory": 1.1})
    assert changed.gemm_share == pytest.approx(DEFAULT.gemm_share / 2)
    assert changed.network_share == pytest.approx(DEFAULT.network_share / 2)
    assert changed.host_layer_s == pytest.approx(DEFAULT.host_layer_s * 3)
    assert changed.fragmentation == pytest.approx(DEFAULT.fragmentation * 1.1)
    assert with_factors(DEFAULT, {}) == DEFAULT


def test_planted_rates_are_learned_back() -> None:
    """A run of a machine with other efficiencies: the fit comes to its step, of this job and of
    another one."""
    job = job_of("gpt2-xl", "2x8xA100", 1024, 128, framework=DDP)
    layout = Layout(dp=16, num_micro=8)
    planted = {COMPUTE: 1.3, COMMS: 3.0}
    truth = replace(job, constants=with_factors(DEFAULT, planted))
    measured = planned_parts(choice_of(truth, layout).times)
    planned = planned_parts(choice_of(job, layout).times)
    step_s = sum(measured.values())
    factors, step = fitted(job, layout, measured, factors_of(planned, measured, step_s))
    assert step == pytest.approx(step_s, rel=0.02)
    other = Layout(dp=16, micro_batch=4, num_micro=2)
    after = replace(job, constants=with_factors(DEFAULT, factors))
    expected, before = choice_of(truth, other).step_s, choice_of(job, other).step_s
    assert abs(choice_of(after, other).step_s / expected - 1) < 0.5 * abs(before / expected - 1)


def test_factors_that_are_not_known_stay_unknown() -> None:
    assert as_factors({COMPUTE: 1.5}) == Factors(compute=1.5, comms=None, host=None, memory=None)
    assert as_mapping(as_factors({COMPUTE: 1.5, "memory": 1.1})) == {COMPUTE: 1.5, "memory": 1.1}
