"""The step time of a run from its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.steps.unprofiled import unprofiled_steps
from stepscope.protocol.run_folder import STEP_COLUMNS

MS = 1_000_000


def row(step: int, dur_ns: int, **other: Any) -> dict[str, int | None]:
    values = dict.fromkeys(STEP_COLUMNS, 0) | {
        "step": step,
        "dur_ns": dur_ns,
        "device_ns": None,
        "num_backwards": 1,
        "state": 0,
    }
    return {**values, **other}


def rows(lengths_ms: Sequence[float], **other: Any) -> list[dict[str, int | None]]:
    return [row(number, round(length * MS), **other) for number, length in enumerate(lengths_ms)]


def test_a_loader_that_delivers_in_bursts_counts_whole() -> None:
    found = unprofiled_steps(rows([10, 10, 10, 90] * 20))
    assert found is not None
    assert found.step_ns == pytest.approx(30 * MS, rel=0.12)
    assert found.median_ns == 10 * MS


def test_one_hiccup_in_forty_does_not() -> None:
    found = unprofiled_steps(rows([10] * 39 + [4000]))
    assert found is not None
    assert found.step_ns == 10 * MS
    assert found.slowest_ns == 4000 * MS


def test_a_few_steps_that_compile_make_no_step_shorter_than_the_shortest() -> None:
    found = unprofiled_steps(rows([8.5] * 40 + [2000] * 4))
    assert found is not None
    assert found.low_ns == 8.5 * MS
    assert found.low_ns < found.step_ns < found.high_ns


def test_evaluations_and_saves_are_other_steps() -> None:
    usual = rows([10] * 20)
    odd = [row(100, 500 * MS, num_batches=40), row(101, 300 * MS, save_ns=200 * MS)]
    found = unprofiled_steps(usual + odd)
    assert found is not None
    assert (found.num, found.num_left_out, found.slowest_ns) == (20, 2, 10 * MS)


def test_steps_after_a_recording_are_left_out_where_there_are_enough_before() -> None:
    before, profiled = rows([10] * 12), [row(20 + n, 40 * MS, state=2) for n in range(4)]
    after = [row(30 + n, 14 * MS) for n in range(50)]
    found = unprofiled_steps(before + profiled + after)
    assert found is not None
    assert found.step_ns == 10 * MS
    few = unprofiled_steps(before[:4] + profiled + after)
    assert few is not None
    assert few.num == 54


def test_steps_that_something_else_held_up_before_a_recording_are_not_the_runs() -> None:
    """What stays of a profiler makes no step shorter."""
    held_up, profiled = rows([16, 19, 15, 21, 17, 18, 20, 16, 15]), row(9, 12 * MS, state=2)
    after = [row(10 + n, 10 * MS) for n in range(50)]
    found = unprofiled_steps([*held_up, profiled, *after])
    assert found is not None
    assert (found.num, found.step_ns) == (50, 10 * MS)
    few = unprofiled_steps([*held_up, profiled, *after[:4]])
    assert few is not None
    assert few.num == 9


def test_a_host_that_runs_ahead_shows_its_own_time() -> None:
    """Four short steps until the device's queue is full; then the host goes at its pace."""
    ahead = rows([20, 6, 5, 5, 4], device_ns=13 * MS, state=1)
    kept_up = [row(number, 13 * MS, device_ns=13 * MS) for number in range(10, 40)]
    recorded = [row(50, 2 * MS, device_ns=13 * MS, state=2)] * 3
    found = unprofiled_steps([*ahead, *kept_up, *recorded])
    assert found is not None
    assert found.host_ns == 5 * MS
    assert found.step_ns == 13 * MS
    # Two updates a step, one short and one long, on the device as on the host.
    pairs = [
        row(number, length * MS, device_ns=length * MS)
        for number, length in enumerate([4, 13, 13] * 10)
    ]
    for other in (kept_up, [*ahead[:2], *kept_up], rows([20, 6, 5, 5, 4] * 5), pairs):
        seen = unprofiled_steps(other)
        assert seen is not None
        assert seen.host_ns is None


def test_backward_passes_that_run_ahead_tell_what_recording_costs() -> None:
    """The host's step is as long as the device's, for its queue is full later on; the backward pass
    takes the host 10 ms, and 20 ms while it is recorded, of the device's 60."""
    passes = [8, 9, 10, 10, 10, 10, 10, 10, 11, 14] * 2
    behind = {"device_ns": 85 * MS, "device_backward_ns": 60 * MS}
    timed = [
        row(number, 85 * MS, backward_ns=ms * MS, **behind) for number, ms in enumerate(passes)
    ]
    recorded = [
        row(20 + number, 86 * MS, backward_ns=ms * MS, state=2, **behind)
        for number, ms in enumerate((16, 20, 20, 20))
    ]
    found = unprofiled_steps([*timed, *recorded])
    assert found is not None
    assert found.host_ns is None
    assert found.host_share == pytest.approx((0.5, 0.45, 0.55))
    # A host that waits for the device in its backward pass, before or while it is recorded.
    waiting = [each | {"backward_ns": 58 * MS} for each in timed]
    held_up = [each | {"backward_ns": 58 * MS} for each in recorded]
    for rows_of in ([*waiting, *recorded], [*timed, *held_up], timed):
        told = unprofiled_steps(rows_of)
        assert told is not None
        assert told.host_share is None


def test_the_devices_clock_goes_before_the_hosts() -> None:
    found = unprofiled_steps(
        [row(n, 1 * MS, device_ns=None if n == 0 else 20 * MS) for n in range(10)]
    )
    assert found is not None
    assert found.on_device
    assert found.step_ns == 20 * MS


def test_too_few_steps_tell_nothing() -> None:
    assert unprofiled_steps([]) is None
    assert unprofiled_steps(rows([10, 10])) is None


@given(st.lists(st.integers(1, 10**10), min_size=3, max_size=60))
def test_the_mean_lies_among_the_steps_and_inside_its_interval(lengths: list[int]) -> None:
    found = unprofiled_steps([row(number, length) for number, length in enumerate(lengths)])
    assert found is not None
    assert min(lengths) - 1 <= found.step_ns <= max(lengths) + 1
    assert found.low_ns <= found.step_ns <= found.high_ns
