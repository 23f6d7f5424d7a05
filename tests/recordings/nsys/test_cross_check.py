"""A run that torch.profiler recorded, written as nsys would have recorded it: both give the same
facts.

nsys, with emit_nvtx's ranges, records less in exactly these ways, which `as_nsys_would` takes away
and nothing else: operators' input types, strides and values; a kernel's achieved occupancy; what
c10d says of a collective; marks drawn on the device; the profiler's span over the whole recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from msgspec import structs

from stepscope.analyses.links import link
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.analyses.steps.projection import project
from stepscope.cli.main import main
from stepscope.core.trace import NONE, Detail, Kind, Launch, OpInputs, Trace
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.recordings.nsys import sqlite as nsys_sqlite
from tests.format_samples import trimmed
from tests.nsys_files import write_export
from tests.shared_data import DEMO, lab_trace

LAB = (
    ("single/h2d_pageable.slow", False),
    ("single/nchw.fixed", True),
    ("ranks2/ddp_even.slow.rank0", False),
)
NOT_RECORDED_ALIKE = {"num_events", "path"}


def read_kineto(path: Path) -> Trace:
    return read_trace(Source(path=path, label="same"), use_cache=False)


def as_nsys_would(trace: Trace) -> Trace:
    kept = ~(
        trace.is_kind(Kind.DEVICE_MARK)
        | (trace.is_kind(Kind.OVERHEAD) & np.isin(trace.name, _profiler_spans(trace)))
    )
    columns = {name: getattr(trace, name)[kept] for name in Trace.COLUMNS}
    columns["start_ns"] = columns["start_ns"] - int(trace.start_ns.min())
    columns["collective"] = np.full(int(kept.sum()), NONE, np.int32)
    details: list[Detail] = []
    for detail in trace.details:
        if isinstance(detail, OpInputs):
            details.append(structs.replace(detail, types=None, strides=None, concrete=None))
        else:
            details.append(
                structs.replace(detail, occupancy_pct=None)
                if isinstance(detail, Launch)
                else detail
            )
    return replace(trace, **columns, details=tuple(details))


def _profiler_spans(trace: Trace) -> list[int]:
    return [code for code, name in enumerate(trace.names) if name.startswith("PyTorch Profiler")]


def assert_same_facts(trace: Trace, path: Path, *, old: bool = False) -> None:
    exported = nsys_sqlite.read(Source(path=write_export(trace, path, old=old), label="same"))
    exported.self_check()
    expected, found = (
        measure_rank(build_context(one, None), 0) for one in (as_nsys_would(trace), exported)
    )
    for name in expected.__struct_fields__:
        if name not in NOT_RECORDED_ALIKE:
            assert getattr(found, name) == getattr(expected, name), name
    assert expected.device.busy > 0
    assert expected.steps.is_step_interval
    assert expected.launches is not None
    assert expected.launches.num_unlinked < expected.launches.num_device_events / 2


@pytest.mark.parametrize(("name", "old"), LAB)
def test_lab_traces_give_the_same_facts(name: str, old: bool, tmp_path: Path) -> None:
    assert_same_facts(read_kineto(lab_trace(name)), tmp_path / "lab.sqlite", old=old)


def test_diagnose_gives_the_same_verdict(
    demo_export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for each in (DEMO, demo_export):
        assert main(["diagnose", str(each), "--no-cache", "--format", "json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    kineto, nsys = told
    assert nsys["verdict"]["bound"] == kineto["verdict"]["bound"] == "data"
    assert nsys["step"] == kineto["step"]
    for part in ("partition_ms", "gpu_busy_ms", "device_ns"):
        assert nsys["ranks"][0][part] == kineto["ranks"][0][part]
    first, same = kineto["findings"][0], nsys["findings"][0]
    assert first["code"] == same["code"] == "serial-loader"
    assert same["predicted_speedup"] == pytest.approx(first["predicted_speedup"], rel=0.01)


def test_projection_of_the_demo_is_what_its_launches_say(demo_export: Path) -> None:
    """nvtx_gpu_proj_sum's definition, worked out again with loops over the export's own rows."""
    trace = nsys_sqlite.read(Source(path=demo_export, label="demo"))
    projections = project(trace, link(trace), trace.is_kind(Kind.MARK, Kind.OP))
    lengths = projections.end_ns - projections.start_ns
    start, end, thread, correlation = (
        c.tolist() for c in (trace.start_ns, trace.end_ns, trace.thread, trace.correlation)
    )
    calls = {
        correlation[i]: i
        for i in np.flatnonzero(trace.kind == Kind.RUNTIME).tolist()
        if correlation[i] > 0
    }
    work = [
        (calls[correlation[i]], i)
        for i in np.flatnonzero(trace.device_work).tolist()
        if correlation[i] in calls
    ]
    for name in ("Optimizer.step#AdamW.step", "aten::mm", "ProfilerStep#3"):
        total, instances = 0, 0
        for at in np.flatnonzero(trace.name == trace.names.index(name)).tolist():
            inside = [
                (call, i)
                for call, i in work
                if start[call] >= start[at] and end[call] <= end[at] and thread[call] == thread[at]
            ]
            if inside:
                total += max(end[i] for _, i in inside) - min(start[i] for _, i in inside)
                instances += 1
        mine = lengths[trace.name[projections.ranges] == trace.names.index(name)]
        assert (mine.sum(), len(mine)) == (total, instances)
        assert instances > 0


def samples() -> Iterator[tuple[str, str, bytes]]:
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        trace.write_bytes(trimmed(DEMO))
        export = write_export(read_kineto(trace), Path(folder, "run.sqlite"))
        yield "nsys-sqlite", "run.sqlite", export.read_bytes()
