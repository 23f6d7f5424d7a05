"""starved-loader: workers exist and most fetches wait."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.replay.changes import without_tasks
from stepscope.replay.simulate import play
from tests.ranges import left_open
from tests.rules.recorded import Run


def fetching(*waits_us: int) -> Run:
    run = Run()
    for wait in waits_us:
        run.step()
        run.fetch(wait)
        run.launch(10_000)
        run.sync()
    return run


def test_waits_in_most_steps_are_a_starved_loader() -> None:
    finding = fetching(20_000, 20_000, 20_000, 20_000, 20_000).finding("starved-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(30 / 11, rel=0.03)
    assert left_open(finding)[0] == pytest.approx(30 / 20, rel=0.03)


def test_more_workers_do_not_take_away_all_of_a_long_wait() -> None:
    # A batch every 100 ms; four times the workers bring one every 25.
    finding = fetching(*[90_000] * 5).finding("starved-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(4, rel=0.03)
    assert left_open(finding)[1] == pytest.approx(100 / 11, rel=0.03)


def test_ready_batches_and_one_slow_fetch_are_not() -> None:
    assert fetching(60, 60, 60, 60).gain("starved-loader") == 1.0
    assert fetching(60, 20_000, 60, 60).gain("starved-loader") == 1.0


def test_batches_that_come_in_bursts_too_far_apart_are() -> None:
    finding = fetching(60, 60, 200_000).finding("starved-loader")
    assert finding is not None
    assert finding.predicted_speedup > 2


def test_a_run_that_waits_for_its_workers_gains_nothing_from_the_rest() -> None:
    case = fetching(*[20_000] * 5).case()
    assert case.paced_by_loader
    assert case.graph is not None
    assert case.step_interval_ns is not None
    free = without_tasks(case.graph, np.ones(len(case.graph), np.bool_))
    assert play(free).step_interval_ns < 0.8 * case.step_interval_ns
    assert case.speedup(free) == 1.0
    assert case.facts.replayed is not None
    assert case.facts.replayed.shares["memory"] == 0.0
    assert case.facts.replayed.shares["data"] > 0.5
