"""A run over time, as its live page draws it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.live.series import NUM_STRETCHES, RunSeries
from stepscope.live.shapes.alert import OVER, Alert
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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def steps(first: int, last: int, dur_ms: float = 10.0, **more: int) -> list[list[int | None]]:
    return [
        row(step, dur_ms=dur_ms, end_ns=int(step * dur_ms * MS), **more)
        for step in range(first, last)
    ]


def test_each_rank_has_a_line_and_what_came_since_goes_on(run: Path) -> None:
    for rank, dur_ms in ((0, 10.0), (1, 20.0)):
        add_steps(write_rank(run, rank), steps(1, 41, dur_ms))
    series = RunSeries(run)
    first = series.look(())
    assert first["ranks"] == [0, 1]
    assert {value for value in first["steps"][0] if value is not None} == {10.0}
    assert {value for value in first["steps"][1] if value is not None} == {20.0}
    add_steps(run / "rank-0", steps(41, 81, 10.0))
    later = series.look(())
    assert len(later["steps"][0]) > len(first["steps"][0])
    assert later["steps"][1] == first["steps"][1]


def test_the_parts_of_a_step_sum_to_it(run: Path) -> None:
    parts = {"wait_ns": 2 * MS, "backward_ns": 6 * MS, "optimizer_ns": MS, "comm_ns": 3 * MS}
    add_steps(write_rank(run, 0), steps(1, 9, 10.0, **parts))
    made = {each["part"]: each["ms"][-1] for each in RunSeries(run).look(())["parts"]}
    assert sum(made.values()) == pytest.approx(10.0)
    # What torch.distributed takes lies in the backward pass here.
    assert made["backward"] == pytest.approx(4.0)


def test_a_long_run_keeps_its_number_of_stretches_and_counts_a_step_once(run: Path) -> None:
    rank = write_rank(run, 0)
    add_steps(rank, steps(1, 11, 1000.0))
    # The same ten steps once more, and a thousand in one line.
    add_stretches(
        rank,
        [
            [1, 10, 0, 10 * S, 0, 0, 0, 0, 0, 0, 0],
            [11, 1000, 10 * S, 2010 * S, 1, 1, 1000 * S, 0, 0, 0, 0],
        ],
    )
    made = RunSeries(run).look(())
    assert len(made["steps"][0]) <= NUM_STRETCHES
    assert made["stretch_s"] * NUM_STRETCHES >= 2010
    assert made["steps"][0][0] == 1000.0
    assert made["steps"][0][-1] == 2000.0
    waits = next(each["ms"] for each in made["parts"] if each["part"] == "input")
    assert waits[-1] == 1000.0


def test_memory_and_loss_are_where_they_were_measured_and_nowhere_else(run: Path) -> None:
    rank = write_rank(run, 0)
    add_steps(rank, steps(1, 3))
    add_samples(
        rank,
        [
            sample(1.0, 1, losses=[[S, 3.0], [2 * S, "nan"]]),
            sample(4.0, 2, losses=[[4 * S, 1.0]], allocators=[{"reserved_bytes": 2_000_000_000}]),
        ],
    )
    made = RunSeries(run).look(())
    assert made["memory_of"] == "device"
    assert [value for value in made["memory"][0] if value is not None] == [2.0]
    assert [value for value in made["loss"][0] if value is not None] == [3.0, 1.0]
    assert json.loads(json.dumps(made)) == made


def test_an_alert_lasts_until_it_is_over(run: Path) -> None:
    first = Alert(
        number=1, kind="late-rank", ranks=(1,), step=5, words="rank 1 is late",
        at_wall_ns=wall(20), began_wall_ns=wall(10),
    )  # fmt: skip
    alerts = [
        first,
        replace(first, number=2, at_wall_ns=wall(30), began_wall_ns=None),
        replace(first, state=OVER, at_wall_ns=wall(26), ended_wall_ns=wall(25)),
    ]
    made = RunSeries(run).look(alerts)["alerts"]
    assert [(each["from_s"], each["to_s"]) for each in made] == [(10.0, 25.0), (30.0, None)]


@pytest.mark.parametrize(
    "lines",
    [
        "[1, 2\n[]\n{}\n[1,2,3]\nnull\n",
        '[1, "x", 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 13]\n',
        "[1, 1e400, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 13]\n",
        f"[1, {10**30}, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 13]\n",
        "[1, -5, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 13]\n",
    ],
)
def test_what_is_no_step_is_left_out(run: Path, lines: str) -> None:
    rank = write_rank(run, 0)
    with (rank / "steps.jsonl").open("a") as file:
        file.write(lines)
    (rank / "samples.jsonl").write_text('{"at_ns": "x", "losses": 3, "rss_bytes": -1}\n[1]\n')
    add_steps(rank, steps(10, 12))
    made = RunSeries(run).look(())
    assert {value for value in made["steps"][0] if value is not None} == {10.0}
