from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from stepscope.core.experiments.trials import NumericRow
from stepscope.experiments.verify.numerics_check import (
    DIFFERS,
    IDENTICAL,
    NOISE,
    ROUNDING,
    UNKNOWN,
    check_numerics,
)
from tests.wording import mentions


def rows(
    loss: Callable[[int], float | None], digest: str | None = "d", num: int = 20
) -> list[NumericRow]:
    out = []
    for step in range(1, num + 1):
        value = loss(step)
        norm = None if value is None else 2 * value
        out.append(
            NumericRow(
                step=step,
                loss=value,
                grad_norm=norm,
                parameters=None if digest is None else f"{digest}{step}",
                parameter_norm=norm,
            )
        )
    return out


def falling(step: int) -> float:
    return 3 / step


BASE = rows(falling)


def off(by: float, start: int = 1) -> Callable[[int], float]:
    return lambda step: falling(step) * (1 + (by if step >= start else 0))


def test_the_same_bits_are_called_so() -> None:
    check = check_numerics(BASE, BASE, BASE)
    assert check.verdict == IDENTICAL
    assert check.is_deterministic is True
    assert (check.num_parameters_equal, check.num_parameters_compared) == (20, 20)
    assert (check.loss.largest, check.loss.num) == (0, 20)


def test_bits_of_parameters_are_counted_by_themselves() -> None:
    """They are looked at after a few steps only."""
    few = [replace(row, parameters=row.parameters if row.step % 5 == 0 else None) for row in BASE]
    same = (
        "every loss and every gradient norm and every parameters' norm agree at each of the 20 "
        "steps compared"
    )
    assert check_numerics(few, few, few).because.startswith(f"{same}, and ")
    assert mentions(check_numerics(few, few, few).because, "bits after 4")
    none = [replace(row, parameters=None) for row in BASE]
    assert check_numerics(none, none, none).because == same
    alone = [replace(row, loss=None, grad_norm=None, parameter_norm=None) for row in BASE[:1]]
    assert mentions(
        check_numerics(alone, alone, alone).because, "parameter's bits", "one step", "same"
    )


def test_equal_losses_with_other_parameters_are_not_bit_identical() -> None:
    check = check_numerics(BASE, BASE, rows(falling, "e"))
    assert check.verdict == ROUNDING
    assert check.num_parameters_equal == 0


def test_rounding_is_told_by_how_much() -> None:
    check = check_numerics(BASE, BASE, rows(off(3e-6, 5), "e"))
    assert check.verdict == ROUNDING
    assert check.loss.largest == pytest.approx(3e-6, rel=1e-3)
    assert "3.0e-06" in check.because
    assert check.loss.first_step is None


def test_a_difference_is_told_from_its_first_step_on() -> None:
    check = check_numerics(BASE, BASE, rows(off(0.01, 7), "e"))
    assert check.verdict == DIFFERS
    assert check.loss.first_step == 7
    assert "from step 7 on" in check.because
    assert check.loss.largest == pytest.approx(0.01 / 1.01)


def test_what_the_baseline_does_to_itself_is_not_the_candidates_fault() -> None:
    again = rows(off(0.005, 3), "x")
    check = check_numerics(BASE, again, rows(off(0.008, 3), "y"))
    assert check.is_deterministic is False
    assert check.loss_floor.largest == pytest.approx(0.005 / 1.005)
    assert check.verdict == NOISE
    assert check_numerics(BASE, again, rows(off(0.05, 3), "y")).verdict == DIFFERS


def test_two_baselines_that_begin_apart_tell_nothing_of_a_third_run() -> None:
    """The job is not seeded: two of its runs may be near each other by chance. Rounding that grows
    is told from that, and a candidate that gives no number is none of its runs."""
    again, further = rows(off(0.002), "e"), rows(off(0.05), "f")
    check = check_numerics(BASE, again, further)
    assert check.verdict == UNKNOWN
    assert mentions(check.because, "not seeded")
    assert check_numerics(BASE, again, rows(lambda _: math.nan, "f")).verdict == DIFFERS
    grown = rows(off(0.002, start=10), "e")
    assert check_numerics(BASE, grown, further).verdict == DIFFERS


def test_the_tolerance_is_the_callers() -> None:
    candidate = rows(off(0.01), "e")
    assert check_numerics(BASE, BASE, candidate, 0.02).verdict == ROUNDING
    assert check_numerics(BASE, BASE, candidate, 0.005).verdict == DIFFERS


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_differs(value: float) -> None:
    check = check_numerics(
        BASE, BASE, rows(lambda step: value if step == 9 else falling(step), "e")
    )
    assert check.verdict == DIFFERS
    assert check.loss.first_step == 9
    assert check.loss.largest == math.inf


@pytest.mark.parametrize(
    "candidate",
    [[], [NumericRow(step=99, loss=1.0, grad_norm=1.0, parameters="a", parameter_norm=1.0)]],
)
def test_with_no_common_step_nothing_is_said(candidate: Sequence[NumericRow]) -> None:
    check = check_numerics(BASE, BASE, candidate)
    assert check.verdict == UNKNOWN
    assert check.loss.largest is None
    assert check.num_parameters_equal is None


def test_without_a_second_baseline_its_noise_is_not_known() -> None:
    check = check_numerics(BASE, (), BASE)
    assert check.verdict == IDENTICAL
    assert check.is_deterministic is None
