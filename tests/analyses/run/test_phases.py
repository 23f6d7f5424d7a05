"""A run of several phases is steady in each of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.analyses.run.phases import phases_of
from stepscope.protocol.run_folder import STEP_SUMMARY_COLUMNS
from tests.analyses.run.whole_runs import MS, Row, S, accounted, record, row


def noisy(step: int, ms: float, drawn: random.Random) -> Row:
    return row(step, ms * drawn.lognormvariate(0, 0.08))


def starts(*lengths: tuple[int, float], seed: int = 1) -> list[int]:
    """The first steps of the phases of a run of so many steps of so many milliseconds each."""
    drawn = random.Random(seed)
    rows: list[Row] = []
    for num, ms in lengths:
        rows += [noisy(len(rows) + n, ms, drawn) for n in range(1, num + 1)]
    phases = phases_of(record(rows))
    assert phases is not None
    return [phase.first_step for phase in phases.each]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (((100, 30), (100, 60)), [0, 101]),
        (((180, 30), (20, 60)), [0, 181]),
        (((20, 15), (180, 30)), [0, 21]),
        (((60, 10), (60, 20), (60, 40)), [0, 61, 121]),
        (((80, 30), (40, 60), (80, 30)), [0, 81, 121]),
        (((3000, 5), (7000, 8)), [0, 3001]),
        (((200, 30),), [0]),
        (((100, 30), (100, 33)), [0]),
        (((100, 30), (8, 300), (92, 30)), [0]),
    ],
)
def test_phases_begin_with_the_step_that_is_unlike(
    lengths: tuple[tuple[int, float], ...], expected: list[int], seed: int
) -> None:
    found = starts(*lengths, seed=seed)
    assert len(found) == len(expected)
    assert all(abs(a - b) <= 1 for a, b in zip(found, expected, strict=True))


def test_steps_of_both_phases_are_steady_and_stalls_are_measured_from_their_own() -> None:
    rows = [row(n, 30 if n <= 160 else 60) for n in range(1, 201)]
    for n in range(20, 201, 20):
        rows[n - 1]["dur_ns"] = (rows[n - 1]["dur_ns"] or 0) + 600 * MS
    run = accounted(record(rows, first_ns=0), tail_ns=0)
    assert run.ns_of("stalls") == 10 * 600 * MS
    assert run.ns_of("steady") == 160 * 30 * MS + 40 * 60 * MS
    assert [(each.first_step, each.num_clean_steps, each.step_ms) for each in run.phases] == [
        (0, 152, 30),
        (161, 38, 60),
    ]
    assert run.step_ms == 36


def test_a_pause_before_the_first_step_of_a_phase_is_none_of_it() -> None:
    rows = [row(n, 80 if n < 101 else 160, between_ns=MS) for n in range(1, 201)]
    rows[100] |= {"dur_ns": 460 * MS, "between_ns": 301 * MS}
    run = accounted(record(rows))
    assert [each.first_step for each in run.phases] == [0, 101]
    assert run.ns_of("stalls") == 300 * MS


@pytest.mark.parametrize(
    ("before", "after", "num"), [(0.01, 0.5, 1), (0.01, 0.02, 2), (0.8, 0.8, 2), (0.01, None, 2)]
)
def test_steps_that_wait_for_a_core_are_no_phase(
    before: float, after: float | None, num: int
) -> None:
    """Of 60 ms that are 30 more, 30 are spent in the run queue; or hardly any; or as much of them
    as before, on a full machine; or nobody knows."""
    made = record([row(n, 30 if n <= 100 else 60) for n in range(1, 201)])
    samples: list[dict[str, Any]] = []
    for step in range(5, 200, 15):
        share = before if step <= 100 else after
        samples.append({"at_ns": 0, "step": step, "main_thread_queued_share": share})
    phases = phases_of(replace(made, samples=tuple(samples)))
    assert phases is not None
    assert len(phases.each) == num


def test_a_long_runs_stretches_have_phases_too() -> None:
    made = record([row(n, 30) for n in range(1, 401)])
    now, stretches = made.rows[-1]["end_ns"] or 0, []
    for number in range(20):
        ms = 30 if number < 10 else 50
        spent = 100 * ms * MS + (S if number == 15 else 0)
        stretches.append(
            {
                **dict.fromkeys(STEP_SUMMARY_COLUMNS, 0),
                "first_step": 401 + 100 * number,
                "num_steps": 100,
                "from_ns": now,
                "to_ns": now + spent,
                "slow_ns": S if number == 15 else 0,
            }
        )
        now += spent
    made = replace(made, stretches=tuple(stretches))
    phases = phases_of(made)
    assert phases is not None
    assert [phase.first_step for phase in phases.each] == [0, 1401]
    run = accounted(made, tail_ns=now - (made.rows[-1]["end_ns"] or 0))
    assert run.ns_of("stalls") == S
    assert [each.step_ms for each in run.phases] == [30, 50]
