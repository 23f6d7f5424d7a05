"""The clock of `--timings`: each second is charged to one stage."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from stepscope.core.timings import Timings, stage, timed


class Clock:
    """Both clocks of a process that computes half of the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "process_time", lambda: self.now_s / 2)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def wall_s(timings: Timings) -> dict[str, float | None]:
    return {str(name): spent.wall_s for name, spent in timings.stages.items() if name != "workers"}


def test_a_stage_inside_another_is_counted_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with timed() as timings:
        clock.pass_s(1)
        with stage("read"):
            clock.pass_s(2)
            with stage("scan"):
                clock.pass_s(4)
            clock.pass_s(8)
        clock.pass_s(16)
        with stage("scan"):
            clock.pass_s(32)
    # Before it the process had computed for 50 s.
    assert wall_s(timings) == {"start": 50 + 1 + 16, "read": 10, "scan": 36}
    assert timings.stages["scan"].cpu_s == 18
    assert timings.stages["scan"].peak_bytes > 1e6


def test_a_stage_that_fails_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with timed() as timings:
        with suppress(ValueError), stage("read"):
            clock.pass_s(2)
            raise ValueError
        clock.pass_s(1)
    assert wall_s(timings) == {"start": 51, "read": 2}


def test_stages_of_other_threads_are_not_counted() -> None:
    def work() -> None:
        with stage("scan"):
            pass

    with timed() as timings:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "scan" not in timings.stages


def test_a_stage_costs_nothing_where_nobody_counts() -> None:
    with stage("read"):
        pass
    with timed() as timings:
        pass
    assert "read" not in timings.stages
