"""Ranges on the device, as nvtx_gpu_proj_sum defines them: values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.analyses.links import link
from stepscope.analyses.steps import range_projection
from stepscope.analyses.steps.range_projection import ProjectionRow, project, projection_rows
from stepscope.core.trace import NONE, Kind
from stepscope.pipeline.measure import measure_file
from stepscope.readers.nsys import sqlite as nsys_sqlite
from stepscope.readers.open_trace import read_trace
from stepscope.readers.source import Source
from tests.nsys_files import TID, Export
from tests.shared_data import DEMO


def rows_of(export: Export) -> dict[str, ProjectionRow]:
    trace = nsys_sqlite.read(Source(path=export.close(), label="run"))
    return {row.name: row for row in projection_rows(trace, project(trace, link(trace)))}


@pytest.mark.parametrize("pairs_at_once", [4_000_000, 2])
def test_projection_runs_from_the_first_work_launched_inside_to_the_last(
    pairs_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_projection, "PAIRS_AT_ONCE", pairs_at_once)
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
    rows = rows_of(export)
    assert set(rows) == {"outer", "inner"}
    assert rows["outer"] == ProjectionRow(
        name="outer",
        instances=1,
        total_proj_ns=2_100,
        total_range_ns=1_000,
        min_ns=2_100,
        median_ns=2_100,
        max_ns=2_100,
        num_ops=3,
    )
    assert rows["inner"] == ProjectionRow(
        name="inner",
        instances=2,
        total_proj_ns=950,
        total_range_ns=300,
        min_ns=50,
        median_ns=475,
        max_ns=900,
        num_ops=3,
    )


def test_graph_is_one_op_and_all_of_its_kernels_count(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.range(0, 100, "replay")
    export.call(10, 20, 1, "cudaGraphLaunch_v10000")
    export.kernel(200, 300, 1)
    export.kernel(400, 700, 1)
    row = rows_of(export)["replay"]
    assert (row.total_proj_ns, row.num_ops) == (500, 1)


def test_a_trace_without_ranges_or_work_projects_nothing(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.range(0, 100, "alone")
    assert rows_of(export) == {}


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
