"""Curves of the report: over a run, and memory over one step."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stepscope.analyses.run.curves import (
    MAX_POINTS,
    MAX_RANKS,
    memory_curve,
    peak_memory,
    run_curves,
)
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import measure
from stepscope.readers.cache import read_trace
from stepscope.readers.inputs import find_sources
from stepscope.readers.run_folder.folder import read_run
from tests.live_runs import MS, add_samples, add_steps, row, sample, write_rank, write_run
from tests.shared_data import lab_trace, unpacked

WITH_MEMORY = lab_trace("memory/small_fp32_sgd")


def test_a_run_is_drawn_from_its_steps_and_samples(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    folder = write_rank(run, 0)
    add_steps(folder, [row(n, 10.0 + n) for n in range(1, 6)])
    device = {"gpu_util_percent": 50, "sm_clock_mhz": 1500, "power_w": 300.5}
    told = {
        "cpu_user_cores": 0.5,
        "cpu_sys_cores": 0.25,
        "children_cores": 2.0,
        "allocators": [{"allocated_bytes": 7_000_000_000}],
    }
    add_samples(folder, [sample(second, second, devices=[device], **told) for second in (1, 2, 3)])
    curves = run_curves(read_run(run))
    assert set(curves) == {"steps", "util", "clock", "power", "memory", "cores"}, (
        "no temperature was measured, so there is none"
    )
    (name, points), *_ = curves["steps"].lines
    assert name == "rank 0"
    assert [ms for _, ms in points] == [11, 12, 13, 14, 15]
    assert points[0][0] == 0.0
    assert [value for _, value in curves["cores"].lines[0][1]] == [2.75] * 3
    assert [value for _, value in curves["power"].lines[0][1]] == [300.5] * 3
    assert "7.00 GB" in curves["memory"].words
    assert peak_memory(read_run(run)) == {}, "no peak was told"


def test_a_ranks_peak_is_of_its_devices_together(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    two = [{"peak_allocated_bytes": 3_000_000_000}, {"peak_allocated_bytes": 1_000_000_000}, "x"]
    add_samples(
        write_rank(run, 0),
        [sample(1, 1, allocators=two[:1]), sample(2, 2, allocators=two), sample(3, 3)],
    )
    add_samples(write_rank(run, 1), [sample(1, 1)])
    assert peak_memory(read_run(run)) == {0: 4e9}


def test_long_runs_keep_their_peaks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    add_steps(write_rank(run, 0), [row(n, 500.0 if n == 3456 else 10.0) for n in range(1, 8000)])
    points = run_curves(read_run(run))["steps"].lines[0][1]
    assert len(points) <= MAX_POINTS
    assert max(ms for _, ms in points) == 500
    assert points[-1][0] == pytest.approx((7999 - 1) * 10 * MS / 1e9, abs=0.5)


def test_of_many_ranks_those_that_differ_are_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for rank in range(20):
        add_steps(
            write_rank(run, rank), [row(n, 30.0 if rank == 13 else 10.0) for n in range(1, 6)]
        )
    names = [name for name, _ in run_curves(read_run(run))["steps"].lines]
    assert len(names) == MAX_RANKS
    assert "rank 13" in names


def test_damaged_samples_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    folder = write_rank(run, 0)
    add_samples(
        folder,
        [
            sample(1, 1, devices=["x"]),
            sample(2, 2, devices=[{"power_w": "much"}]),
            sample(3, 3, devices=None),
        ],
    )
    assert run_curves(read_run(run)) == {}


def test_memory_over_the_step_is_what_the_allocator_told() -> None:
    facts = measure([str(WITH_MEMORY)], Options(use_cache=False, jobs=1)).facts.ranks[0]
    with find_sources([str(WITH_MEMORY)]) as found:
        trace = read_trace(found.sources[0], use_cache=False)
    curve = memory_curve(trace, facts)
    assert curve is not None
    low, high = (
        trace.meta.base_ns + ns for ns in facts.steps.windows[facts.steps.median_windows[0]]
    )
    raw = msgspec.json.decode(unpacked(WITH_MEMORY))
    base = raw.get("baseTimeNanoseconds", 0)
    told = [
        event
        for event in raw["traceEvents"]
        if event.get("name") == "[memory]" and event["args"].get("Device Type") == 1
    ]
    mine = [
        e["args"]["Total Allocated"]
        for e in told
        if low <= base + round(float(e["ts"]) * 1000) < high
    ]
    shown = [value for _, value in curve.lines[0][1]]
    assert max(shown) == max(mine)
    assert min(shown) == min(mine)
