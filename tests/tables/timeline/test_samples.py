"""The run folder's counters around a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.readers.run_folder.folder import RankRecord, read_run
from stepscope.tables.timeline.samples import sampled_series
from tests.live_runs import WALL_NS, add_samples, sample, wall, write_rank, write_run


def record(folder: Path, *samples: dict[str, Any], **notes: Any) -> RankRecord:
    run = write_run(folder / "run")
    add_samples(write_rank(run, 0, **notes), samples)
    return read_run(run).ranks[0]


def test_samples_are_kept_from_the_last_before_to_the_first_after(tmp_path: Path) -> None:
    told = record(
        tmp_path,
        *(sample(at, at, devices=[{"device": 0, "gpu_power_w": 100.0 + at}]) for at in range(10)),
    )
    found = {one.name: one for one in sampled_series(told, wall(4.5), wall(6.5))}
    assert found["device 0: gpu_power_w"].time_ns.tolist() == [wall(at) for at in (4, 5, 6, 7)]
    assert found["device 0: gpu_power_w"].value.tolist() == [104.0, 105.0, 106.0, 107.0]
    assert found["device 0: gpu_power_w"].unit == "W"
    assert found["rss_bytes"].unit == "bytes"
    assert "step" not in found


def test_what_is_no_number_is_no_counter(tmp_path: Path) -> None:
    odd = {"name": "x", "flag": True, "nothing": None, "list": [1], "gpu_util_percent": 3}
    told = record(
        tmp_path,
        sample(1, 1, **odd),
        sample(2, 2, devices=[{"device": 1, "throttle_reasons": []}, 7]),
    )
    assert [one.name for one in sampled_series(told, wall(1), wall(2))] == [
        "gpu_util_percent",
        "rss_bytes",
    ]


def test_samples_from_another_hour_say_nothing(tmp_path: Path) -> None:
    told = record(tmp_path, sample(1, 1), sample(3600, 2))
    assert sampled_series(told, wall(1000), wall(1001)) == []


def test_without_a_moment_on_both_clocks_nothing_is_placed(tmp_path: Path) -> None:
    assert sampled_series(record(tmp_path, sample(1, 1), perf_ns=None), WALL_NS, wall(2)) == []
