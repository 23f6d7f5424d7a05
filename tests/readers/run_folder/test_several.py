"""A job on several machines: a run folder for each, read as one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.readers.inputs import find_sources
from stepscope.readers.run_folder.folder import RunRecord, read_run
from stepscope.readers.run_folder.several import one_job
from tests.live_runs import WALL_NS, S, write_rank, write_run


def machine(folder: Path, rank: int, windows: tuple[int, ...] = (20,), **more: Any) -> Path:
    """The folder of one machine, with one rank of two."""
    width = more.pop("world_size", 2)
    times = {"started_wall_ns": WALL_NS, "ended_wall_ns": WALL_NS + 60 * S, "exit_code": 0}
    run = write_run(folder, **(times | more))
    ranked = write_rank(run, rank, world_size=width)
    for step in windows:
        trace = {"traceEvents": [], "distributedInfo": {"rank": rank, "world_size": width}}
        (ranked / f"window-{step}.pt.trace.json").write_text(json.dumps(trace))
    return run


def joined(*folders: Path) -> RunRecord | None:
    return one_job([read_run(folder) for folder in folders])


def test_folders_of_two_machines_are_one_run(tmp_path: Path) -> None:
    first = machine(tmp_path / "node-0", 1, ended_wall_ns=WALL_NS + 61 * S)
    second = machine(tmp_path / "node-1", 0, started_wall_ns=WALL_NS + S, exit_code=3)
    run = joined(first, second)
    assert run is not None
    assert run.path == tmp_path
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.metadata == {
        "started_wall_ns": WALL_NS,
        "ended_wall_ns": WALL_NS + 61 * S,
        "exit_code": 3,
    }


def test_a_machine_that_has_not_ended_leaves_the_end_open(tmp_path: Path) -> None:
    still: dict[str, Any] = {"ended_wall_ns": None, "exit_code": None}
    run = joined(machine(tmp_path / "a", 0), machine(tmp_path / "b", 1, **still))
    assert run is not None
    assert run.metadata["ended_wall_ns"] is None
    assert run.metadata["exit_code"] is None


@pytest.mark.parametrize(
    "other",
    [
        {"rank": 0},
        {"rank": 1, "world_size": 3},
        {"rank": 1, "started_wall_ns": WALL_NS + 61 * S, "ended_wall_ns": WALL_NS + 90 * S},
    ],
)
def test_runs_of_different_jobs_stay_apart(tmp_path: Path, other: dict[str, Any]) -> None:
    assert joined(machine(tmp_path / "a", 0), machine(tmp_path / "b", **other)) is None


def test_single_processes_are_no_job(tmp_path: Path) -> None:
    folders = [machine(tmp_path / str(rank), rank, world_size=1) for rank in (0, 1)]
    assert joined(*folders) is None


def test_a_folder_of_runs_is_read_as_the_runs_in_it(tmp_path: Path) -> None:
    machine(tmp_path / "node-0", 0, windows=(20, 40))
    machine(tmp_path / "node-1", 1, windows=(20, 30))
    with find_sources([tmp_path]) as found:
        assert found.run is not None
        assert found.notes == ()
        # The step that both recorded: what came after it is of one machine alone.
        assert [(s.rank, s.path.name) for s in found.sources] == [
            (0, "window-20.pt.trace.json"),
            (1, "window-20.pt.trace.json"),
        ]


def test_a_trace_beside_runs_is_read_too(tmp_path: Path) -> None:
    machine(tmp_path / "node-0", 0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rank3.json").write_text(json.dumps({"traceEvents": []}))
    with find_sources([tmp_path]) as found:
        assert found.run is None
        assert [source.rank for source in found.sources] == [3, 0]
