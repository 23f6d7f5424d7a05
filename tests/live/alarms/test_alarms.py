"""Alerts of whole jobs: each episode once, ranks together, nothing said of a job that goes on as it
did."""

from __future__ import annotations

import json
from pathlib import Path

from stepscope.live.alarms.alarms import JobAlarms
from stepscope.live.shapes.alert import OVER, RAISED, Alert
from stepscope.protocol.run_folder import LIVE_FILE, write_json
from stepscope.readers.run_folder.tail import Follower
from tests.live_runs import (
    MS,
    S,
    add_samples,
    add_steps,
    row,
    sample,
    wall,
    write_rank,
    write_run,
)
from tests.wording import mentions


class Job:
    """A run folder, and alarms that look at it when told."""

    def __init__(self, path: Path, num_ranks: int = 1) -> None:
        self.run = write_run(path / "run")
        self.ranks = [write_rank(self.run, rank, world_size=num_ranks) for rank in range(num_ranks)]
        self.at_s = 0.0
        self.step = 0
        self._follower = Follower(self.run, lambda: wall(self.at_s))
        self._alarms = JobAlarms()

    def go(
        self, num: int, dur_ms: float = 10.0, ranks: list[int] | None = None, **more: object
    ) -> list[Alert]:
        """So many seconds of ten steps each, looked at every second."""
        found: list[Alert] = []
        for _ in range(num):
            self.at_s += 1
            for rank, folder in enumerate(self.ranks):
                if ranks is None or rank in ranks:
                    add_steps(folder, [self._row(i, dur_ms) for i in range(10)])
                    add_samples(folder, [sample(self.at_s, self.step + 10, **more)])
            self.step += 10
            found += self.look()
        return found

    def _row(self, i: int, dur_ms: float) -> list[int | None]:
        end_ns = int((self.at_s - 1 + (i + 1) / 10) * S)
        return row(self.step + i, dur_ms + 0.1 * (i % 3), end_ns=end_ns)

    def look(self) -> list[Alert]:
        return list(self._alarms.look(self._follower.look()))


def test_slower_steps_are_told_once_for_all_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    assert job.go(30) == []
    (alert,) = job.go(30, dur_ms=15)
    assert (alert.kind, alert.ranks) == ("step-time", (0, 1, 2))
    assert mentions(alert.words, "15.1 ms", "10.1 ms before")
    assert alert.step == 300
    assert alert.began_wall_ns == wall(30.1)
    assert alert.at_wall_ns <= wall(30 + 8)
    assert (alert.number, alert.state) == (1, RAISED)
    assert alert.measured is not None
    assert alert.measured.unit == "ms"
    (over,) = job.go(30)
    assert (over.number, over.state, over.kind) == (1, OVER, "step-time")


def test_a_job_that_keeps_changing_its_pace_does_not_fill_a_log(tmp_path: Path) -> None:
    job = Job(tmp_path)
    found = [alert for number in range(20) for alert in job.go(20, dur_ms=10 if number % 2 else 20)]
    raised = [alert for alert in found if alert.state == RAISED]
    assert len(raised) <= 5, "20 changes, ten of them for the worse"


def test_saves_and_recorded_steps_are_not_slow_steps(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.go(20) == []
    add_steps(job.ranks[0], [row(1000 + i, 50, state=2) for i in range(60)])
    add_steps(job.ranks[0], [row(1100 + i, 50, save_ns=40 * MS) for i in range(60)])
    assert job.look() == []


def test_a_long_run_is_followed_by_its_live_file(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for second in range(60):
        job.at_s += 1
        dur_ms = 10 if second < 40 else 20
        lines: list[object] = [job._row(i, dur_ms) for i in range(10)]
        lines.append(sample(job.at_s, job.step + 10))
        with (job.ranks[0] / LIVE_FILE).open("w" if second % 7 == 0 else "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        job.step += 10
        if found := job.look():
            break
    assert [alert.kind for alert in found] == ["step-time"]
    assert job.at_s <= 48


def test_an_idler_device_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.go(30, devices=[{"device": 0, "gpu_util_percent": 95}]) == []
    (alert,) = job.go(15, devices=[{"device": 0, "gpu_util_percent": 40}])
    assert alert.kind == "utilisation"
    assert mentions(alert.words, "rank 0", "device", "40%", "95% before")


def test_growing_memory_is_told_of_host_and_device(tmp_path: Path) -> None:
    job = Job(tmp_path)
    kinds = []
    for number in range(200):
        size = 10**9 + number * 10**7
        told = [{"device": 0, "reserved_bytes": size}]
        kinds += [alert.kind for alert in job.go(1, rss_bytes=size, allocators=told)]
    assert kinds == ["host-memory", "device-memory"]


def test_a_silent_rank_is_told_once_until_it_is_back(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    job.go(5)
    (alert,) = job.go(30, ranks=[0])
    assert (alert.kind, alert.ranks, alert.step) == ("silent", (1,), 50)
    assert [alert.state for alert in job.go(25)] == [OVER]
    assert [alert.kind for alert in job.go(30, ranks=[0])] == ["silent"]


def test_a_rank_that_ended_by_itself_is_not_silent(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.go(5)
    notes = {"rank": 0, "perf_ns": 0, "wall_ns": wall(0), "ended_ns": 5 * S}
    write_json(job.ranks[0] / "rank.json", notes)
    job.at_s += 60
    assert job.look() == []


def test_a_rank_that_lives_and_makes_no_steps_is_told_later(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.go(5)
    found = []
    for _ in range(200):
        job.at_s += 1
        add_samples(job.ranks[0], [sample(job.at_s, job.step)])
        found += job.look()
    assert [alert.kind for alert in found] == ["stalled"]
    assert "stepscope attach" in found[0].action


def test_nobody_is_silent_after_the_end(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.go(5)
    write_run(job.run, exit_code=0)
    job.at_s += 1000
    assert job.look() == []


def test_a_restarted_rank_begins_anew(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.go(30)
    write_json(job.ranks[0] / "rank.json", {"pid": 2, "perf_ns": 0, "wall_ns": wall(0)})
    job.step = 0
    assert job.go(15, dur_ms=30) == [], "another process has another baseline"
    assert [alert.kind for alert in job.go(20, dur_ms=60)] == ["step-time"]


def test_what_was_wrong_before_a_restart_is_over_with_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.go(30)
    (alert,) = job.go(20, dur_ms=30)
    write_json(job.ranks[0] / "rank.json", {"pid": 2, "perf_ns": 0, "wall_ns": wall(0)})
    (over,) = job.go(1, dur_ms=30)
    assert (over.number, over.state) == (alert.number, OVER)
    assert job.go(20, dur_ms=30) == []
