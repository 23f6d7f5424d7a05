"""Ranges on the device, as nvtx_gpu_proj_sum defines them: values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.analyses.links import link
from stepscope.analyses.steps import projection
from stepscope.analyses.steps.projection import median_lengths, project
from stepscope.core.trace import NONE, Kind
from stepscope.pipeline.measure import measure_file
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.recordings.nsys import sqlite as nsys_sqlite
from tests.nsys_files import TID, Export
from tests.shared_data import DEMO


def lengths_of(export: Export) -> tuple[dict[str, list[int]], dict[str, float]]:
    """By name, of each range that contains work, and their median."""
    trace = nsys_sqlite.read(Source(path=export.close(), label="run"))
    projections = project(trace, link(trace), trace.is_kind(Kind.MARK, Kind.OP))
    lengths: dict[str, list[int]] = {}
    for at, length in zip(
        projections.ranges, projections.end_ns - projections.start_ns, strict=True
    ):
        lengths.setdefault(trace.names[trace.name[at]], []).append(int(length))
    return lengths, median_lengths(trace, projections)


@pytest.mark.parametrize("pairs_at_once", [4_000_000, 2])
def test_projection_runs_from_the_first_work_launched_inside_to_the_last(
    pairs_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "PAIRS_AT_ONCE", pairs_at_once)
    export = Export(tmp_path / "run.sqlite")
    # Thread 1: outer [0, 1000) holds inner [100, 300) and a launch of its own; the device is 4000
    # late.
    export.range(0, 1_000, "outer")
    export.range(100, 300, "inner")
    export.call(150, 200, 1)
    export.kernel(4_000, 4_500, 1)
    export.call(210, 260, 2, "cudaMemcpyAsync_v3020")
    export.copy(4_700, 4_900, 2, 64)
    export.call(400, 450, 3)
    export.kernel(6_000, 6_100, 3, stream=9)
    # Begins inside outer and ends behind it: not contained.
    export.call(990, 1_010, 4)
    export.kernel(9_000, 9_900, 4)
    # Another thread's launch at the same time.
    export.call(500, 510, 5, tid=TID + 1)
    export.kernel(20_000, 20_100, 5)
    # A second inner, with a shorter projection, and one without work.
    export.range(2_000, 2_100, "inner")
    export.call(2_000, 2_100, 6)
    export.fill(10_000, 10_050, 6, 8)
    export.range(3_000, 3_100, "inner")
    export.range(3_000, 3_050, "idle")
    lengths, medians = lengths_of(export)
    assert lengths == {"outer": [2_100], "inner": [900, 50]}
    assert medians == {"outer": 2_100, "inner": 475}


def test_all_kernels_of_a_graph_count(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.range(0, 100, "replay")
    export.call(10, 20, 1, "cudaGraphLaunch_v10000")
    export.kernel(200, 300, 1)
    export.kernel(400, 700, 1)
    assert lengths_of(export)[0] == {"replay": [500]}


def test_a_trace_without_ranges_or_work_projects_nothing(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.range(0, 100, "alone")
    assert lengths_of(export) == ({}, {})


def test_a_ranks_marks_tell_their_extent() -> None:
    """By plain loops: the calls inside each mark on its thread, the first start and the last end of
    what they launched."""
    trace = read_trace(Source(path=DEMO, label="demo"), use_cache=False)
    measured = measure_file(Source(path=DEMO, label="demo"), None, use_cache=False)
    assert measured.facts is not None
    (row,) = [mark for mark in measured.facts.marks if mark.name == "Optimizer.step#AdamW.step"]
    links, spans = link(trace), []
    work = [i for i in np.flatnonzero(trace.device_work).tolist() if links.launch[i] != NONE]
    for mark in np.flatnonzero(trace.is_kind(Kind.MARK)).tolist():
        if trace.names[trace.name[mark]] != row.name:
            continue
        mine = [
            i
            for i in work
            if trace.thread[links.launch[i]] == trace.thread[mark]
            and trace.start_ns[mark] <= trace.start_ns[links.launch[i]]
            and trace.end_ns[links.launch[i]] <= trace.end_ns[mark]
        ]
        if mine:
            spans.append(int(trace.end_ns[mine].max() - trace.start_ns[mine].min()))
    assert len(spans) > 1
    assert row.projected_ns == round(float(np.median(spans)))
