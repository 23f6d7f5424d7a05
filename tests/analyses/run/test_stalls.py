"""What some steps hold beside what all do: saves, evaluations, collections of garbage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.analyses.run.metadata import rank_metadata
from stepscope.analyses.run.stalls import saves_of, stalls_of
from stepscope.analyses.run.step_extras import within_epochs
from stepscope.analyses.steps.unprofiled import unprofiled_steps
from stepscope.core.run import Saves, Stalls
from stepscope.protocol.run_folder import STEP_COLUMNS
from stepscope.readers.run_folder.folder import RankRecord

MS = 1_000_000
Row = dict[str, int | None]


def row(step: int, ms: float, **more: int) -> Row:
    usual: Row = {**dict.fromkeys(STEP_COLUMNS, 0), "device_ns": None, "num_backwards": 1}
    return {**usual, "step": step, "dur_ns": round(ms * MS), **more}


def found(rows: list[Row], *events: dict[str, Any]) -> dict[str, Stalls]:
    record = recorded(rows, *events)
    return stalls_of(record, unprofiled_steps(within_epochs(record)))


def recorded(rows: list[Row], *events: dict[str, Any]) -> RankRecord:
    end_ns = 0
    for each in rows:
        end_ns += each["dur_ns"] or 0
        each["end_ns"] = end_ns
    return RankRecord(
        rank=0,
        folder=Path("rank-0"),
        metadata={},
        rows=tuple(rows),
        samples=(),
        events=events,
        windows={},
        problem=None,
    )


def test_a_save_in_every_second_step_is_half_a_save_a_step() -> None:
    rows = [row(n, 10 if n % 2 else 30, save_ns=0 if n % 2 else 20 * MS) for n in range(40)]
    stalls = found(rows, {"kind": "save", "dur_ns": 1, "line": "train.py(3): main"})["save"]
    assert (stalls.num, stalls.every, stalls.once_ns) == (20, 2.0, 20 * MS)
    assert stalls.step_ns == 10 * MS
    assert stalls.lines == {"train.py(3): main": 1.0}


def test_the_start_of_a_loader_is_what_it_adds_to_its_step() -> None:
    rows = [row(n, 10, wait_ns=2 * MS) for n in range(48)]
    epochs = []
    for step in (12, 24, 36):
        rows[step] |= {"dur_ns": 50 * MS, "wait_ns": 30 * MS}
        epochs.append({"kind": "epoch", "step": step, "dur_ns": 12 * MS, "wait_ns": 30 * MS})
    stalls = found(rows, *epochs)["epoch"]
    assert (stalls.num, stalls.every, stalls.once_ns) == (3, 12.0, 40 * MS)
    # In turn, so that it is no matter where in a turn the 48 begin and end.
    assert stalls.step_ns == 40 * MS // 12
    irregular = [epoch | {"step": step} for epoch, step in zip(epochs, (12, 24, 40), strict=True)]
    rows[36], rows[40] = row(36, 10, wait_ns=2 * MS), rows[36] | {"step": 40}
    assert found(rows, *irregular)["epoch"].step_ns == 120 * MS // 48
    assert "epoch" not in found(rows)


def test_a_usual_step_begins_no_epoch_unless_most_do() -> None:
    rows = [row(n, 10 if n % 4 else 50) for n in range(48)]
    for num_epochs, step_ms in ((12, 10), (40, 20)):
        steps = range(0, 48, 4) if num_epochs == 12 else range(8, 48)
        events = tuple({"kind": "epoch", "step": step, "dur_ns": 1} for step in steps)
        timed = rank_metadata(recorded(rows, *events)).steps
        assert timed is not None
        assert timed.step_ns == pytest.approx(step_ms * MS, rel=0.12)


def test_a_steps_saves_are_one_and_none_without_a_size() -> None:
    save = {"kind": "save", "step": 3, "dur_ns": 8, "cpu_ns": 4, "bytes": 100}
    assert saves_of([save, save, {**save, "step": 9}, {"kind": "gc"}]) == Saves(
        num=2, once_ns=12, cpu_ns=6, size_bytes=150
    )
    assert saves_of([save, {**save, "bytes": None}]) is None
    assert saves_of([]) is None


def test_a_save_that_waits_for_the_device_costs_what_the_step_is_longer() -> None:
    rows = [row(n, 10) for n in range(30)] + [row(30, 14, save_ns=12 * MS)]
    assert found(rows)["save"].once_ns == 4 * MS


def test_a_save_in_every_step_is_in_the_usual_one() -> None:
    rows = [row(n, 30, save_ns=20 * MS) for n in range(40)]
    assert found(rows) == {}
    steps = unprofiled_steps(rows)
    assert steps is not None
    assert (steps.step_ns, steps.save_ns) == (30 * MS, 20 * MS)


@pytest.mark.parametrize("sign", [{"num_evals": 1}, {"num_batches": 5}])
def test_an_evaluation_is_known_by_eval_or_by_its_batches(sign: dict[str, int]) -> None:
    rows = [row(n, 110, **sign) if n % 10 == 5 else row(n, 10) for n in range(50)]
    stalls = found(rows)["evaluation"]
    assert (stalls.num, stalls.once_ns, stalls.step_ns) == (5, 100 * MS, 10 * MS)


def test_an_evaluation_is_not_charged_with_the_slow_step_that_it_falls_on() -> None:
    """Every 20th step stands still for 600 ms, and every fifth of these evaluates for 100."""
    rows = [
        row(n, 10 + 600 * (n % 20 == 0) + 100 * (n % 100 == 0), num_evals=int(n % 100 == 0))
        for n in range(1, 201)
    ]
    stalls = found(rows)["evaluation"]
    assert stalls.once_ns == pytest.approx(100 * MS, rel=0.02)


def test_eval_in_every_step_is_no_evaluation() -> None:
    """A teacher is told so again and again."""
    assert found([row(n, 10, num_evals=1) for n in range(50)]) == {}


def test_steps_that_accumulate_more_are_no_evaluation() -> None:
    more = row(50, 80, num_batches=8, num_backwards=8)
    assert found([*(row(n, 10, num_batches=1) for n in range(50)), more]) == {}


def test_collections_too_rare_for_the_mean_are_counted_with_all_steps() -> None:
    rows = [row(n, 60, gc_ns=50 * MS) if n % 50 == 25 else row(n, 10) for n in range(100)]
    stalls = found(rows)["gc"]
    assert (stalls.num, stalls.once_ns, stalls.step_ns) == (2, 50 * MS, 1 * MS)


def test_collections_in_most_steps_are_in_the_mean_already() -> None:
    assert "gc" not in found([row(n, 60, gc_ns=50 * MS) for n in range(100)])
