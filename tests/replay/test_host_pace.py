"""The host's pace in the run: told by a step that waits for it, open where the device limits that,
and never by a jump."""

from __future__ import annotations

import itertools

import pytest

from stepscope.replay.profiler_cost import likely_pace, wait_probability

US = 1_000.0


def host_alone(factor: float) -> float:
    return 100 * US * factor


def mostly_device(factor: float) -> float:
    """A host that has a tenth of the step to spare."""
    return max(100 * US, 90 * US * factor)


@pytest.mark.parametrize("step_us", [60, 90, 100, 130, 300])
def test_a_step_that_waits_for_the_host_tells_its_pace(step_us: int) -> None:
    pace = likely_pace(host_alone, step_us * US)
    assert pace.factor == pytest.approx(step_us / 100, rel=0.01)
    assert pace.open_share < 0.02


def test_a_step_that_the_device_limits_leaves_the_pace_open() -> None:
    pace = likely_pace(lambda factor: max(100 * US, 10 * US * factor), 100 * US)
    assert pace.factor == pytest.approx(1.0, rel=0.01)
    assert pace.open_share == pytest.approx(1.0, abs=0.05)


def test_kernels_that_took_longer_in_the_recording_say_nothing_of_the_host() -> None:
    def device(factor: float) -> float:
        return 105 * US + 2 * US * factor

    assert likely_pace(device, 100 * US).factor == pytest.approx(1.0, rel=0.03)


def test_a_host_that_would_be_too_slow_for_the_step_kept_up() -> None:
    pace = likely_pace(lambda factor: max(100 * US, 120 * US * factor), 100 * US)
    assert 0.7 < pace.factor < 0.86


def test_from_device_to_host_the_pace_has_no_jump() -> None:
    paces = [likely_pace(mostly_device, step_us * US) for step_us in range(95, 130)]
    for shorter, longer in itertools.pairwise(paces):
        assert shorter.factor <= longer.factor < 1.06 * shorter.factor
        assert longer.open_share == pytest.approx(shorter.open_share, abs=0.25)
    assert paces[0].factor < 1.02
    assert paces[-1].factor == pytest.approx(129 / 90, rel=0.01)


def test_no_pace_is_beyond_what_hosts_are() -> None:
    assert likely_pace(host_alone, 10 * US).factor == pytest.approx(0.5, rel=0.05)


def test_the_longer_a_step_the_likelier_it_waits_for_its_loader() -> None:
    likely = [wait_probability(host_alone, step_us * US, 200 * US) for step_us in range(80, 180, 5)]
    assert all(shorter < longer for shorter, longer in itertools.pairwise(likely))
    assert likely[0] < 0.05
    assert 0.1 < wait_probability(host_alone, 110 * US, 200 * US) < 0.3, "an ordinary host"
    assert likely[-1] > 0.9


def test_a_host_that_the_device_hides_must_be_much_slower_to_lengthen_the_step() -> None:
    def hidden(factor: float) -> float:
        return max(100 * US, 50 * US * factor)

    of_host, of_device = (
        wait_probability(each, 115 * US, 150 * US) for each in (host_alone, hidden)
    )
    assert of_device > 0.9 > of_host


def test_a_step_shorter_than_any_loader_could_bring_waits_for_none() -> None:
    assert 0.0 <= wait_probability(host_alone, 10 * US, 200 * US) < 0.01
