"""A folder that is being written: bounded pieces, whole lines, each line once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import InputError
from stepscope.live.liveness import liveness
from stepscope.live.shapes.live import RUNS
from stepscope.protocol.run_folder import OLD_STEP_SUMMARY_FILE, STEP_SUMMARY_FILE
from stepscope.readers.run_folder.line_tail import TAIL_BYTES, Lines
from stepscope.readers.run_folder.tail import NUM_ROWS, Follower
from tests.live_runs import (
    add_samples,
    add_steps,
    add_stretches,
    row,
    sample,
    wall,
    write_rank,
    write_run,
)


def test_a_look_gives_what_came_since_the_one_before(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    follower = Follower(run)
    add_steps(rank, [row(1), row(2)])
    assert [r["step"] for r in follower.look().ranks[0].new_rows] == [1, 2]
    add_steps(rank, [row(3)])
    (tail,) = follower.look().ranks
    assert [r["step"] for r in tail.new_rows] == [3]
    assert [r["step"] for r in tail.rows] == [1, 2, 3]
    assert follower.look().ranks[0].new_rows == ()


def test_a_rank_that_has_written_nothing_yet_is_as_old_as_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    folder = run / "rank-0"
    folder.mkdir()
    (tail,) = Follower(run).look().ranks
    assert tail.sign_wall_ns == folder.stat().st_mtime_ns
    assert liveness(tail, tail.sign_wall_ns + 10**9) == (RUNS, None)


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"a": 1}\n{"b"')
    lines = Lines(path)
    assert lines.new() == [{"a": 1}]
    with path.open("a") as file:
        file.write(": 2}\nnot json\n")
    assert lines.new() == [{"b": 2}]


def test_a_huge_file_is_read_at_its_end_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    add_steps(rank, [row(step) for step in range(20_000)])
    assert (rank / "steps.jsonl").stat().st_size > 10 * TAIL_BYTES
    (tail,) = Follower(run).look().ranks
    assert len(tail.new_rows) < 2000
    assert [r["step"] for r in tail.rows] == list(range(20_000 - NUM_ROWS, 20_000))
    assert [r["step"] for r in tail.head[:2]] == [0, 1]


def test_a_file_that_shrank_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("[1]\n[2]\n")
    lines = Lines(path)
    lines.new()
    path.write_text("[3]\n")
    assert lines.new() == [[3]]


def test_of_two_processes_of_a_rank_the_one_that_writes_is_followed(tmp_path: Path) -> None:
    import os

    run = write_run(tmp_path / "run")
    old = write_rank(run, 0)
    add_samples(old, [sample(1, 5)])
    new = run / "rank-0.77"
    new.mkdir()
    add_samples(new, [sample(2, 9)])
    os.utime(old / "samples.jsonl", (1, 1))
    os.utime(old / "steps.jsonl", (1, 1))
    (tail,) = Follower(run).look().ranks
    assert tail.samples[-1]["step"] == 9


def test_times_are_told_on_the_wall_clock_of_the_ranks_machine(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    add_samples(write_rank(run, 0), [sample(1, 5), sample(2, 6), sample(3, 6)])
    (tail,) = Follower(run).look().ranks
    assert (tail.sign_wall_ns, tail.step_wall_ns) == (wall(3), wall(2))


@pytest.mark.parametrize("name", [STEP_SUMMARY_FILE, OLD_STEP_SUMMARY_FILE])
def test_step_summaries_are_followed_under_both_names(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    add_stretches(rank, [[60, 100, 600_000_000, 1_600_000_000, 9_000_000, 11_000_000, 0]])
    (rank / STEP_SUMMARY_FILE).rename(rank / name)
    (tail,) = Follower(run).look().ranks
    assert [stretch["first_step"] for stretch in tail.stretches] == [60]


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"run\.json"):
        Follower(tmp_path / name)
