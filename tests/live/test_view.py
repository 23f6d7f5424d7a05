"""What a glance at a running job shows, from files whose contents are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.live.report.watch.view import live_document
from stepscope.live.shapes.live import RUNS, SILENT, STALLED, SWITCHED_OFF, LiveView
from stepscope.live.view import live_view
from stepscope.protocol.run_folder import write_json
from stepscope.readers.run_folder.tail import Follower
from stepscope.report.document.terminal import to_text
from tests.live_runs import (
    MS,
    S,
    add_samples,
    add_steps,
    add_stretches,
    row,
    sample,
    wall,
    write_rank,
    write_run,
)
from tests.wording import mentions


def seen(run: Path, at_s: float = 5.0) -> LiveView:
    return live_view(Follower(run, lambda: wall(at_s)).look())


def test_now_is_told_beside_the_runs_own_baseline(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0, loaders=[{"is_feeding": True, "batch_size": 32}])
    add_steps(rank, [row(step, 10) for step in range(100)])
    add_steps(rank, [row(step, 20, wait_ns=5 * MS) for step in range(100, 200)])
    add_steps(rank, [row(step, 90, state=2) for step in range(200, 204)])
    add_samples(rank, [sample(4, 150), sample(5, 204)])
    view = seen(run)
    (one,) = view.ranks
    assert (one.step, one.state, one.step_ns, one.baseline_ns) == (204, RUNS, 20 * MS, 10 * MS)
    assert one.wait_share == 0.25
    assert one.samples_per_s == pytest.approx(1600)
    assert view.running_s == 5
    assert mentions(view.bound, "not known")


def test_steps_of_unlike_length_are_told_to_vary(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    add_steps(rank, [row(step, 10 if step % 2 else 30) for step in range(100)])
    add_samples(rank, [sample(4, 100)])
    (one,) = seen(run).ranks
    assert one.step_deviation == pytest.approx(0.5)
    assert mentions(to_text(live_document(seen(run))), "varies", "±50 %")


def test_a_loader_that_nobody_keeps_is_known_by_its_iterator(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0, loaders=[], loader_iter={"batch_size": 16})
    add_steps(rank, [row(step, 10) for step in range(100)])
    assert seen(run).samples_per_s == pytest.approx(1600)


def test_the_devices_clock_is_believed_before_the_hosts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    add_steps(rank, [row(step, 10, device_ns=60 * MS) for step in range(30)])
    assert seen(run).ranks[0].step_ns == 60 * MS


def test_a_long_run_is_told_by_its_last_stretch(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    add_steps(rank, [row(step, 10) for step in range(50)])
    add_stretches(rank, [[50, 100, 0, 3 * S, MS, 90 * MS, S]])
    (one,) = seen(run).ranks
    assert one.step_ns == 30 * MS
    assert one.wait_share == pytest.approx(1 / 3)


def test_before_any_row_samples_tell_the_pace(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    add_samples(write_rank(run, 0), [sample(1, 10), sample(2, 20), sample(3, 30)])
    assert seen(run).ranks[0].step_ns == 100 * MS


def test_the_bound_is_told_by_what_is_measured(tmp_path: Path) -> None:
    def bound(name: str, wait_ms: float, util: int | None) -> str:
        run = write_run(tmp_path / name)
        rank = write_rank(run, 0)
        add_steps(rank, [row(step, 10, wait_ns=int(wait_ms * MS)) for step in range(30)])
        devices = {} if util is None else {"devices": [{"device": 0, "gpu_util_percent": util}]}
        add_samples(rank, [sample(5, 30, **devices)])
        return seen(run).bound

    assert mentions(bound("a", 6, None), "the input: 60%", "loader")
    assert bound("b", 6, 97).startswith("the device: busy 97%")
    assert mentions(bound("c", 0, 30), "not the device (30% busy)", "not the loader (0%)")
    assert mentions(bound("d", 0, 75), "not known")


def test_a_diagnosis_has_the_last_word_and_a_recording_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    add_steps(rank, [row(step) for step in range(30)])
    (rank / "window-15.pt.trace.json").write_text("{}")
    told = seen(run).bound
    assert mentions(told, "not known", "1 of 1 ranks")
    assert told.endswith(f": stepscope diagnose {run}")
    write_json(run / "diagnosis.json", {"verdict": {"bound": "data", "summary": "It waits."}})
    assert seen(run).bound == "data (diagnosed): It waits."


def test_a_rank_that_tells_nothing_or_makes_no_steps_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for number in range(3):
        rank = write_rank(run, number)
        add_steps(rank, [row(step) for step in range(30)])
        add_samples(rank, [sample(1, 30)])
    add_samples(run / "rank-1", [sample(at, 30) for at in range(2, 31)])
    (run / "rank-2" / "problem.txt").write_text("Traceback\nKeyError: 'x'\n")
    view = seen(run, at_s=30)
    assert [(one.state, one.quiet_s) for one in view.ranks] == [
        (SILENT, 29),
        (STALLED, 29),
        (SWITCHED_OFF, None),
    ]


def test_slow_steps_and_rare_samples_are_not_silence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    slow = write_rank(run, 0)
    add_steps(slow, [row(step, 20_000) for step in range(30)])
    add_samples(slow, [sample(1, 30)])
    rare = write_rank(run, 1)
    add_samples(rare, [sample(at, at) for at in (10, 20, 30)])
    assert [one.state for one in seen(run, at_s=55).ranks] == [RUNS, RUNS]


def test_many_ranks_stand_on_one_line_and_outliers_on_their_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for number in range(40):
        rank = write_rank(run, number, world_size=41)
        add_steps(rank, [row(step, 13 if number == 7 else 10) for step in range(30)])
        add_samples(rank, [sample(5 if number != 9 else -40, 30)])
    view = seen(run)
    assert view.world_size == 41
    assert [(len(group.ranks), group.is_outlier) for group in view.groups] == [
        (38, False),
        (1, True),
        (1, True),
    ]
    assert [group.ranks for group in view.groups[1:]] == [(9,), (7,)]
    assert view.num_outliers_left_out == 0


def test_an_empty_run_is_an_answer(tmp_path: Path) -> None:
    view = seen(write_run(tmp_path / "run"))
    assert (view.ranks, view.step_ns, view.samples_per_s) == ((), None, None)
