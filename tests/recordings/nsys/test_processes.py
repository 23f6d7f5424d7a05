"""One report of several processes, as `nsys profile torchrun ...` writes it: each process that runs
kernels is a rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.core.trace import Kind, Trace
from stepscope.errors import InputError
from stepscope.readers import cache
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.readers.inputs import assign_ranks, find_sources
from stepscope.recordings.nsys import sqlite as nsys_sqlite
from stepscope.recordings.nsys import target as nsys_target
from tests.nsys_files import PID, TID, Export, global_id, write_job
from tests.shared_data import lab_trace
from tests.wording import any_mentions, mentions

STEPS, PITCH = 6, 10_000_000
COMPUTE = (4_000_000, 8_000_000)
"""Of each rank. The slower one comes last to the all-reduce, and both leave it together."""
REDUCED = 8_500_000


def two_ranks(path: Path) -> Export:
    export = Export(path)
    for rank, compute in enumerate(COMPUTE):
        pid = PID + 10 * rank
        export.device(rank, "NVIDIA H100", cuda=rank, pid=pid)
        for step in range(STEPS):
            at = step * PITCH
            # Both processes count their calls alike.
            first, second, third = 3 * step + 1, 3 * step + 2, 3 * step + 3
            export.range(at, at + PITCH - 1_000, f"step {step}", pid=pid)
            export.call(at + 10_000, at + 20_000, first, pid=pid)
            export.call(at + 30_000, at + 40_000, second, pid=pid)
            export.kernel(at + 30_000, at + compute, first, "gemm", device=rank, pid=pid)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            export.kernel(at + compute, at + REDUCED, second, name, device=rank, stream=20, pid=pid)
            export.call(
                at + 50_000, at + REDUCED + 10_000, third, "cudaDeviceSynchronize_v3020", pid=pid
            )
    return export


def diagnosed(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert (
        main(["diagnose", *map(str, paths), "--no-cache", "--jobs", "1", "--format", "json"]) == 0
    )
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def kernels(trace: Trace) -> list[tuple[str, int, int]]:
    found = np.flatnonzero(trace.kind == Kind.KERNEL).tolist()
    return [
        (trace.names[trace.name[i]][:12], int(trace.start_ns[i]), int(trace.dur_ns[i]))
        for i in found
    ]


def test_each_process_is_diagnosed_as_a_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = diagnosed([two_ranks(tmp_path / "report.sqlite").close()], capsys)
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    # The slower rank computes for as long as the other waits: counted once, with the larger.
    assert told["verdict"]["shares"]["compute"] == pytest.approx(COMPUTE[1] / PITCH, rel=0.01)
    assert sum(told["verdict"]["shares"].values()) <= 1.0 + 1e-9
    assert mentions(told["verdict"]["summary"], "40% of rank 0", "waiting")
    (slow,) = [finding for finding in told["findings"] if finding["code"] == "throttled-gpu"]
    assert slow["ranks"] == [1]
    first, second = (rank["partition_ms"] for rank in told["ranks"])
    # The first waits from the end of its own compute to the end of the other's.
    assert first["comms_wait"] == pytest.approx((COMPUTE[1] - COMPUTE[0]) / 1e6, rel=0.01)
    assert second["comms_wait"] == pytest.approx(0.0, abs=0.01)
    for each, compute in zip((first, second), COMPUTE, strict=True):
        assert each["compute"] == pytest.approx((compute - 30_000) / 1e6, rel=0.01)
    notes = " ".join(told["notes"])
    assert mentions(notes, "2 processes", "one rank", f"({PID}, {PID + 10})")
    assert f"(process {PID}) is 0" in notes
    assert f"(process {PID + 10}) is 1" in notes


def test_each_part_has_its_own_events_devices_and_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MIN_CACHED_BYTES", 0)
    path = two_ranks(tmp_path / "report.sqlite").close()
    found = find_sources([path])
    assert [source.label for source in found.sources] == [
        f"{path} (process {PID})",
        f"{path} (process {PID + 10})",
    ]
    for _ in range(2):  # The second time out of the cache.
        for rank, (source, compute) in enumerate(zip(found.sources, COMPUTE, strict=True)):
            trace = read_trace(source)
            trace.self_check()
            assert len(kernels(trace)) == 2 * STEPS
            assert kernels(trace)[0] == ("gemm", 30_000, compute - 30_000)
            assert {thread.pid for thread in trace.threads} == {str(rank), str(PID + 10 * rank)}
            assert [device.index for device in trace.meta.devices] == [rank]
            assert (trace.meta.path, trace.meta.rank) == (source.label, None)
    assert len({cache._cache_path(source, None) for source in found.sources}) == 2
    assert all(cache.load(source) is not None for source in found.sources)
    assert cache.load(replace(found.sources[0], part=None)) is None
    assert not list(tmp_path.glob("*.stepscope-cache"))


def test_a_helper_with_little_work_is_no_rank(tmp_path: Path) -> None:
    export = two_ranks(tmp_path / "report.sqlite")
    export.kernel(0, 1_000, 1, "helper", pid=PID + 50)
    export.copy(0, 90_000_000, 1, 64, pid=PID + 51)  # It only copies.
    found = find_sources([export.close()])
    assert [source.label[-13:] for source in found.sources] == [
        f"(process {PID})",
        f"(process {PID + 10})",
    ]
    (note,) = [note for note in found.notes if "taken for no rank" in note]
    assert f"processes {PID + 51}, {PID + 50} had" in note


def test_one_rank_beside_a_helper_stays_one_source(tmp_path: Path) -> None:
    export = Export(tmp_path / "rank3.sqlite")
    export.kernel(0, 1_000_000, 1, "gemm")
    export.kernel(0, 100, 1, "helper", pid=PID + 1)
    (source,) = find_sources([export.close()]).sources
    assert (source.part, source.rank, source.label) == (None, 3, str(export.path))
    trace = read_trace(source, use_cache=False)
    assert kernels(trace) == [("gemm", 0, 1_000_000)]
    assert any_mentions(trace.notes, f"process {PID} was read", f"not process {PID + 1}")


def test_a_rank_in_the_name_is_not_given_to_all(tmp_path: Path) -> None:
    found = find_sources([two_ranks(tmp_path / "rank1.sqlite").close()])
    assert [source.rank for source in found.sources] == [None, None]
    assert any_mentions(found.notes, "rank 1", "2 ranks", "not used")


def test_two_machines_reports_are_one_job(tmp_path: Path) -> None:
    paths = [two_ranks(tmp_path / f"node{node}.sqlite").close() for node in range(2)]
    found = find_sources([tmp_path])
    assert [source.path for source in found.sources] == [paths[0], paths[0], paths[1], paths[1]]
    ranks, notes = assign_ranks(
        [read_trace(source, use_cache=False).meta for source in found.sources]
    )
    assert ranks == (0, 1, 2, 3)
    assert "counted in order" in notes[0]
    assert len(find_sources([paths[0], paths[0]]).sources) == 2


def test_compressed_and_archived_reports_are_parted_too(tmp_path: Path) -> None:
    import gzip
    import tarfile

    path = two_ranks(tmp_path / "report.sqlite").close()
    (tmp_path / "packed.sqlite.gz").write_bytes(gzip.compress(path.read_bytes()))
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(path, "report.sqlite")
    for name in ("packed.sqlite.gz", "all.tar.gz"):
        with find_sources([tmp_path / name]) as found:
            assert [
                len(kernels(read_trace(source, use_cache=False))) for source in found.sources
            ] == [2 * STEPS] * 2


def test_a_damaged_report_is_left_to_its_reading(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "report.sqlite").close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (source,) = find_sources([path]).sources
    assert source.part is None
    with pytest.raises(InputError, match=r"report\.sqlite.*nsys export"):
        read_trace(source, use_cache=False)
    path.write_bytes(whole)
    with pytest.raises(InputError, match=f"no such process.*processes {PID}, {PID + 10}"):
        nsys_sqlite.read(Source(path=path, label="report.sqlite", part=global_id(1)))


def test_many_processes_cost_no_more_than_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = Export(tmp_path / "report.sqlite")
    for number in range(12):
        export.kernel(0, 100, 1, pid=PID + number)
    export.close()
    monkeypatch.setattr(nsys_target, "MAX_PROCESSES", 8)
    found = find_sources([export.path])
    assert len(found.sources) == 8
    assert any("more than 8 processes" in note for note in found.notes)


def test_rows_of_no_process_are_counted_or_read_as_one(tmp_path: Path) -> None:
    export = two_ranks(tmp_path / "some.sqlite")
    for table, column in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
    ):
        export.connection.execute(f"UPDATE {table} SET {column} = NULL WHERE start > {5 * PITCH}")  # noqa: S608
    trace = read_trace(find_sources([export.close()]).sources[0], use_cache=False)
    assert len(kernels(trace)) == 2 * STEPS - 2
    assert any_mentions(
        trace.notes,
        "no process",
        "left out",
        "4 of CUPTI_ACTIVITY_KIND_KERNEL",
        "6 of CUPTI_ACTIVITY_KIND_RUNTIME",
    )

    export = Export(tmp_path / "none.sqlite")
    export.call(0, 10, 1)
    export.kernel(20, 50, 1, "gemm")
    export.range(0, 60, "step", tid=TID)
    export.connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL")
    trace = read_trace(find_sources([export.close()]).sources[0], use_cache=False)
    assert kernels(trace) == [("gemm", 20, 30)]
    assert any("tells no process" in note for note in trace.notes)


@pytest.mark.parametrize("name", ["ddp_straggler.slow"])
def test_a_real_job_in_one_report_gives_the_same_ranks(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [lab_trace(f"ranks2/{name}.rank{rank}") for rank in range(2)]
    traces = [
        read_trace(Source(path=path, label=str(rank)), use_cache=False)
        for rank, path in enumerate(paths)
    ]
    nsys, kineto = (
        diagnosed([write_job(traces, tmp_path / "job.sqlite")], capsys),
        diagnosed(paths, capsys),
    )
    assert nsys["verdict"]["bound"] == kineto["verdict"]["bound"]
    assert nsys["step"]["ms"] == pytest.approx(kineto["step"]["ms"], rel=1e-3)
    for mine, theirs in zip(nsys["ranks"], kineto["ranks"], strict=True):
        assert mine["device_ns"] == theirs["device_ns"]
        assert mine["partition_ms"] == pytest.approx(theirs["partition_ms"], abs=0.05)
