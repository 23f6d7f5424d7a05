"""Nsight Systems' export: what each table becomes, and what a hostile file may not do."""

from __future__ import annotations

import gzip
import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest

from stepscope.core.trace import (
    NONE,
    CollectiveArgs,
    Kind,
    Launch,
    OpInputs,
    Thread,
    Trace,
)
from stepscope.errors import FormatError, InputError
from stepscope.readers.detect import format_of, head_of
from stepscope.readers.format import Source
from stepscope.readers.inputs import find_sources
from stepscope.recordings.nsys import database as nsys_database
from stepscope.recordings.nsys import metrics as nsys_metrics
from stepscope.recordings.nsys.nvtx import Operator, operator_of
from stepscope.recordings.nsys.sqlite import is_mine, read
from tests.nsys_files import (
    DOMAIN,
    MARK,
    NCCL_DOMAIN,
    PID,
    START_END,
    TID,
    Export,
    add_nccl_schemas,
    call_payload,
    global_id,
    init_payload,
)
from tests.wording import any_mentions, mentions


def source_of(path: Path) -> Source:
    return Source(path=path, label=path.name)


def read_whole(path: Path) -> Trace:
    trace = read(source_of(path))
    trace.self_check()
    return trace


def small(path: Path, *, old: bool = False) -> Export:
    """Two steps of one launch each, a copy, a set and a wait."""
    export = Export(path, old=old)
    export.device(3, "NVIDIA H100", cuda=0)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    export.add("ThreadNames", nameId=export.string("pt_main"), globalTid=global_id(PID, TID))
    for step in range(2):
        at = step * 10_000
        export.range(at + 100, at + 9_000, f"iteration {step}")
        export.range(
            at + 200,
            at + 2_000,
            f"aten::mm, seq = {step + 5}, op_id = 7, sizes = [[8, 16], [16, 4]]",
        )
        export.call(at + 300, at + 400, 10 + step)
        export.kernel(
            at + 1_000,
            at + 5_000,
            10 + step,
            "gemm",
            grid=(4, 2, 1),
            block=(128, 1, 1),
            registers=40,
            shared=1024,
        )
    export.call(2_500, 2_600, 20, "cudaMemcpyAsync_v3020")
    export.copy(5_000, 5_500, 20, 65_536)
    export.call(2_700, 2_800, 21, "cudaMemsetAsync_v3020")
    export.fill(5_500, 5_600, 21, 128)
    export.call(3_000, 5_700, 22, "cudaStreamSynchronize_v3020")
    export.wait(3_100, 5_650, 22, 3)
    return export


def events(trace: Trace, kind: Kind) -> list[tuple[str, int, int]]:
    found = np.flatnonzero(trace.kind == kind).tolist()
    return [
        (trace.names[trace.name[i]], int(trace.start_ns[i]), int(trace.dur_ns[i])) for i in found
    ]


@pytest.mark.parametrize("old", [False, True])
def test_every_table_becomes_its_kind_in_torch_profilers_words(old: bool, tmp_path: Path) -> None:
    trace = read_whole(small(tmp_path / "run.sqlite", old=old).close())
    assert events(trace, Kind.KERNEL) == [("gemm", 1_000, 4_000), ("gemm", 11_000, 4_000)]
    assert events(trace, Kind.MEMCPY) == [("Memcpy HtoD (Pinned -> Device)", 5_000, 500)]
    assert events(trace, Kind.MEMSET) == [("Memset (Device)", 5_500, 100)]
    assert events(trace, Kind.SYNC) == [("Stream Sync", 3_100, 2_550)]
    assert events(trace, Kind.MARK) == [("iteration 0", 100, 8_900), ("iteration 1", 10_100, 8_900)]
    assert events(trace, Kind.OP) == [("aten::mm", 200, 1_800), ("aten::mm", 10_200, 1_800)]
    names = {name for name, _, _ in events(trace, Kind.RUNTIME)}
    assert names == {
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaStreamSynchronize",
    }
    kernel = int(np.flatnonzero(trace.kind == Kind.KERNEL)[0])
    assert trace.details[trace.detail[kernel]] == Launch(
        grid=(4, 2, 1), block=(128, 1, 1), registers=40, shared_bytes=1024, occupancy_pct=None
    )
    assert (
        int(trace.correlation[kernel]),
        int(trace.stream[kernel]),
        int(trace.device[kernel]),
    ) == (10, 7, 0)
    assert trace.threads[trace.thread[kernel]] == Thread(pid="0", tid="7", name="stream 7 ")
    operator = int(np.flatnonzero(trace.kind == Kind.OP)[0])
    assert trace.threads[trace.thread[operator]] == Thread(
        pid="426", tid="427", name="thread 427 (pt_main)"
    )
    assert int(trace.sequence[operator]) == 5
    assert trace.details[trace.detail[operator]] == OpInputs(
        dims="[[8, 16], [16, 4]]", types=None, strides=None, concrete=None
    )
    wait = int(np.flatnonzero(trace.kind == Kind.SYNC)[0])
    assert trace.names[trace.name[wait]] == "Stream Sync"
    assert int(trace.size_bytes[np.flatnonzero(trace.kind == Kind.MEMCPY)[0]]) == 65_536


def test_device_is_numbered_as_the_process_numbers_it(tmp_path: Path) -> None:
    export = small(tmp_path / "run.sqlite")
    export.device(4, "Another", cuda=0, pid=PID + 1)
    meta = read_whole(export.close()).meta
    (device,) = meta.devices
    assert (device.index, device.name, device.memory_bytes, device.num_sms) == (
        0,
        "NVIDIA H100",
        80 << 30,
        132,
    )
    assert device.compute_capability == (9, 0)
    assert meta.base_ns == 1_700_000_000_000_000_000
    assert meta.versions == {"nsys": "2024.6.2.225", "nsys_schema": "3.16.1"}
    assert meta.has_shapes


@pytest.mark.parametrize(
    ("kind", "source", "target", "name"),
    [
        (1, 0, 2, "Memcpy HtoD (Pageable -> Device)"),
        (2, 2, 1, "Memcpy DtoH (Device -> Pinned)"),
        (8, 2, 2, "Memcpy DtoD (Device -> Device)"),
        (10, 2, 2, "Memcpy PtoP (Device -> Device)"),
        (11, 4, 2, "Memcpy HtoD (Unified memory)"),
        (8, None, None, "Memcpy DtoD"),
        (99, 2, 2, "Memcpy Unknown (Device -> Device)"),
    ],
)
def test_copies_have_torch_profilers_names(
    kind: int, source: int | None, target: int | None, name: str, tmp_path: Path
) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.copy(0, 1, 1, 4, kind, source, target)
    assert [found for found, _, _ in events(read_whole(export.close()), Kind.MEMCPY)] == [name]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("aten::mm, seq = 3", Operator("aten::mm", 3)),
        (
            "aten::mm, op_id = 4, sizes = [[1, 2], []], input_op_ids = [(3,0)]",
            Operator("aten::mm", NONE, "[[1, 2], []]"),
        ),
        ("MmBackward0, stashed seq=9", Operator("MmBackward0", 9)),
        ("aten::relu", Operator("aten::relu")),
        ("c10d::allreduce_", Operator("c10d::allreduce_")),
        (
            "autograd::engine::evaluate_function: MmBackward0, seq = 1",
            Operator("autograd::engine::evaluate_function: MmBackward0", 1),
        ),
        ("step 4", None),
        ("Trainer::step", None),
        ("Optimizer.step#AdamW.step", None),
        ("loss, then seq", None),
    ],
)
def test_operators_are_told_from_ranges_that_somebody_named(
    text: str, found: Operator | None
) -> None:
    assert operator_of(text) == found


def test_graphs_recorded_whole_are_work_and_those_recorded_by_node_are_not_counted_twice(
    tmp_path: Path,
) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.call(0, 10, 1, "cudaGraphLaunch_v10000")
    export.graph(100, 900, 1, graph=5)
    export.call(20, 30, 2, "cudaGraphLaunch_v10000")
    export.graph(1_000, 1_900, 2, graph=6)
    export.kernel(1_000, 1_400, 2, "a")
    export.kernel(1_500, 1_900, 2, "b")
    trace = read_whole(export.close())
    assert events(trace, Kind.KERNEL) == [
        ("CUDA graph 5", 100, 800),
        ("a", 1_000, 400),
        ("b", 1_500, 400),
    ]
    assert any(
        "1 CUDA graph(s)" in note and "--cuda-graph-trace=node" in note for note in trace.notes
    )


def test_graphs_and_kernels_that_tell_no_call_are_both_kept(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.graph(100, 900, 0, graph=5)
    export.kernel(1_000, 1_400, 0, "a")
    export.connection.execute("UPDATE CUPTI_ACTIVITY_KIND_GRAPH_TRACE SET correlationId = NULL")
    assert [name for name, _, _ in events(read_whole(export.close()), Kind.KERNEL)] == [
        "CUDA graph 5",
        "a",
    ]


def test_kernels_keep_their_names_and_calls_lose_their_release(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.call(0, 10, 1, "cudaLaunchKernel_ptsz_v7000")
    export.kernel(20, 30, 1, "my_gemm_v2048")
    export.kernel(40, 50, 2, "short")
    export.kernel(60, 70, 3, "lost")
    for change in (
        "CREATE TABLE loose AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",  # Without NOT NULL.
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "ALTER TABLE loose RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = NULL WHERE correlationId = 2",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 999 WHERE correlationId = 3",
    ):
        export.connection.execute(change)
    trace = read_whole(export.close())
    assert [name for name, _, _ in events(trace, Kind.KERNEL)] == [
        "my_gemm_v2048",
        "short",
        "string 999",
    ]
    assert [name for name, _, _ in events(trace, Kind.RUNTIME)] == ["cudaLaunchKernel"]
    assert any_mentions(trace.notes, "1 name", "StringIds")


def test_counters_are_those_of_the_devices_that_were_used(tmp_path: Path) -> None:
    export = small(tmp_path / "run.sqlite")  # On the machine's device 3.
    for device, value in ((2, 10), (3, 70)):
        kind = (5 << 32) | device
        export.add(
            "TARGET_INFO_GPU_METRICS",
            typeId=kind,
            sourceId=1,
            typeName="x",
            metricId=1,
            metricName="SMs Active [%]",
        )
        export.add(
            "GPU_METRICS", rawTimestamp=0, timestamp=1_500, typeId=kind, metricId=1, value=value
        )
    assert any_mentions(read_whole(export.close()).notes, "GPU metrics", "SMs Active 70 %")


def test_counters_are_weighed_by_the_work_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.device(3, "NVIDIA H100", cuda=0)
    export.kernel(1_000, 2_000, 1, "a")
    export.kernel(1_200, 1_500, 2, "inside", stream=9)
    export.kernel(3_000, 3_500, 3, "b")
    export.kernel(4_500, 5_000, 4, "c")
    kind = (5 << 32) | 3
    export.add(
        "TARGET_INFO_GPU_METRICS",
        typeId=kind,
        sourceId=1,
        typeName="x",
        metricId=1,
        metricName="SMs Active [%]",
    )
    # Another device's times lie between them, and a stranger's names are no counters.
    other = kind + 1
    export.add(
        "TARGET_INFO_GPU_METRICS",
        typeId=other,
        sourceId=1,
        typeName="x",
        metricId=1,
        metricName="SMs Active [%]",
    )
    export.add(
        "TARGET_INFO_GPU_METRICS",
        typeId="x",
        sourceId=1,
        typeName="x",
        metricId=1,
        metricName="SMs Active [%]",
    )
    for time in range(1_001, 5_000, 500):
        export.add(
            "GPU_METRICS", rawTimestamp=time, timestamp=time, typeId=other, metricId=1, value=1
        )
    # Each tells of the 500 ns before it: four of them all busy, one half busy, three idle.
    for time, value in (
        (1_500, 80),
        (2_000, 60),
        (2_500, 0),
        (3_000, 0),
        (3_500, 90),
        (4_000, 0),
        (4_750, 40),
        (5_000, 70),
    ):
        export.add(
            "GPU_METRICS", rawTimestamp=time, timestamp=time, typeId=kind, metricId=1, value=value
        )
    path = export.close()
    whole, busy = [note for note in read_whole(path).notes if note.startswith("GPU metrics")]
    mean = (80 + 60 + 90 + 40 + 70) / 8
    assert mentions(whole, "recorded", f"SMs Active {mean:.0f} %")
    weighed = (80 + 60 + 90 + 0.5 * 40 + 70) / 4.5
    assert mentions(busy, "on the device", f"SMs Active {weighed:.0f} %")
    monkeypatch.setattr(nsys_metrics, "MAX_SAMPLES", 2)
    notes = read_whole(path).notes
    assert any_mentions(notes, "GPU metrics", "first 2 samples")
    assert any_mentions(notes, "GPU metrics", "on the device", "SMs Active 70 %")


def test_ranges_of_other_domains_carry_their_names_and_open_ones_get_no_end(tmp_path: Path) -> None:
    export = small(tmp_path / "run.sqlite")
    export.range(0, None, "cuBLAS", kind=DOMAIN, domain=9)
    export.range(310, 390, "gemmEx", domain=9)
    export.range(50, None, "never ends")
    export.range(60, None, "an instant", kind=MARK)
    export.range(20, 90, "across", kind=START_END, end_tid=TID + 1)
    trace = read_whole(export.close())
    assert ("cuBLAS:gemmEx", 310, 80) in events(trace, Kind.MARK)
    # nvtx_gpu_proj_sum projects only ranges that end on the thread they began on.
    assert events(trace, Kind.OTHER) == [("across", 20, 70)]
    assert any_mentions(trace.notes, "1 NVTX range", "another thread")
    assert not {"never ends", "an instant"} & set(trace.names)
    (unknown,) = trace.unknown.items()
    assert mentions(unknown[0], "NVTX", "without")
    assert unknown[1] == 1


@pytest.mark.parametrize("as_hex", [False, True])
def test_nccl_payloads_tell_bytes_group_and_rank(as_hex: bool, tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    add_nccl_schemas(export)

    def packed(payload: bytes) -> bytes | str:
        return payload.hex() if as_hex else payload

    export.range(
        0, 10, "ncclCommInitRank", domain=NCCL_DOMAIN, payload=packed(init_payload(0xABC, 8, 3))
    )
    export.range(
        20, 60, "ncclAllReduce", domain=NCCL_DOMAIN, payload=packed(call_payload(0xABC, 4096))
    )
    export.range(
        70, 90, "ncclAllGather", domain=NCCL_DOMAIN, payload=packed(call_payload(0xABC, 1000))
    )
    export.range(91, 92, "ncclGroupEnd", domain=NCCL_DOMAIN, payload=packed(b"short"))
    export.call(30, 40, 1)
    export.kernel(100, 200, 1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    trace = read_whole(export.close())
    reduce, gather = trace.collectives
    assert (reduce.name, reduce.group, reduce.group_size, reduce.in_elements) == (
        "ncclAllReduce",
        "0xabc",
        8,
        4096,
    )
    assert (gather.in_elements, gather.out_elements) == (1000, 8000)
    assert isinstance(reduce, CollectiveArgs)
    told = [trace.names[trace.name[i]] for i in np.flatnonzero(trace.collective != NONE).tolist()]
    assert told == ["nccl:ncclAllReduce", "nccl:ncclAllGather"]
    assert (trace.meta.rank, trace.meta.world_size) == (None, None)
    assert any_mentions(trace.notes, "0xabc", "8 ranks", "number 3")


def test_one_process_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    for number, length in ((0, 100), (1, 300), (2, 200)):
        pid = PID + number
        export.call(0, 10, 1, pid=pid)
        export.kernel(20, 20 + length, 1, f"k{number}", pid=pid)
        export.range(0, 50, f"step {number}", pid=pid)
    path = export.close()
    trace = read_whole(path)
    assert events(trace, Kind.KERNEL) == [("k1", 20, 300)]
    assert [name for name, _, _ in events(trace, Kind.MARK)] == ["step 1"]
    assert len(events(trace, Kind.RUNTIME)) == 1
    assert any_mentions(trace.notes, f"process {PID + 1}", f"not processes {PID + 2}, {PID}")
    other = read(Source(path=path, label="x", part=global_id()))
    assert events(other, Kind.KERNEL) == [("k0", 20, 100)]


def test_os_calls_counters_and_warnings_are_told(tmp_path: Path) -> None:
    export = small(tmp_path / "run.sqlite")
    export.os_call(6_000, 2_006_000, "read")
    export.os_call(3_000_000, 3_000_500, "brk")
    export.os_call(0, 900_000, "pthread_cond_wait", tid=TID + 5)
    kind = (5 << 32) | 0
    for metric, name in ((1, "SMs Active [Throughput %]"), (2, "Unasked [Throughput %]")):
        export.add(
            "TARGET_INFO_GPU_METRICS",
            typeId=kind,
            sourceId=1,
            typeName="x",
            metricId=metric,
            metricName=name,
        )
    for time, value in (
        (500, 100),
        (1_500, 40),
        (12_000, 60),
        (99_000, 100),
    ):  # The first and the last lie outside the work.
        export.add(
            "GPU_METRICS", rawTimestamp=time, timestamp=time, typeId=kind, metricId=1, value=value
        )
    export.add("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", id=2, name="Warning", label="Warning")
    for severity, text in (
        (1, "all is well"),
        (2, "Not all CUDA events might have been collected."),
    ):
        export.add(
            "DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=severity, text=text
        )
    trace = read_whole(export.close())
    assert events(trace, Kind.OTHER) == [
        ("pthread_cond_wait", 0, 900_000),
        ("read", 6_000, 2_000_000),
        ("brk", 3_000_000, 500),
    ]
    assert any_mentions(trace.notes, "operating system", "thread that launches", "read 2.0 ms")
    assert any_mentions(trace.notes, "GPU metrics", "SMs Active 50 %")
    assert "nsys warned: Not all CUDA events might have been collected." in trace.notes


def test_compressed_and_archived_files_are_read(tmp_path: Path) -> None:
    path = small(tmp_path / "run.sqlite").close()
    packed = tmp_path / "run.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read_whole(packed)) == len(read_whole(path))
    inside = tmp_path / "padded.bin"
    inside.write_bytes(b"x" * 512 + path.read_bytes() + b"y" * 512)
    member = Source(path=inside, label="member", offset=512, length=path.stat().st_size)
    assert len(read(member)) == len(read_whole(path))
    packed.write_bytes(gzip.compress(path.read_bytes())[:-200])
    with pytest.raises((InputError, FormatError)):
        read(source_of(packed))


def test_it_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = small(tmp_path / "run.sqlite").close()
    found = format_of(head_of(source_of(path)), "anything")
    assert found is not None
    assert found.name == "nsys-sqlite"
    with find_sources([path]) as sources:
        assert sources.sources[0].format == "nsys-sqlite"
    other = sqlite3.connect(tmp_path / "study.sqlite")
    other.execute("CREATE TABLE studies (id INTEGER)")
    other.commit()
    other.close()
    assert not is_mine((tmp_path / "study.sqlite").read_bytes(), "study.sqlite")
    head = bytearray(path.read_bytes()[:4096])
    # A long list of tables stands on other pages: the name decides.
    head[100:] = bytes([5]) + bytes(len(head) - 101)
    for name in ("run.sqlite", "run.sqlite.zst", "runs.tar.gz"):
        assert is_mine(bytes(head), name), name
    for name in ("study.db", "trace"):
        assert not is_mine(bytes(head), name), name
    assert not is_mine(b'{"traceEvents": []}', "run.sqlite")


def test_views_in_place_of_tables_are_refused(tmp_path: Path) -> None:
    export = small(tmp_path / "run.sqlite")
    export.connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO real_one")
    export.connection.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT *, randomblob(1000000000) FROM real_one"
    )
    with pytest.raises(FormatError, match=r"views.*nsys export"):
        read(source_of(export.close()))


def test_computed_columns_and_triggers_do_nothing(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.kernel(0, 10, 1)
    export.connection.execute("DROP TABLE StringIds")
    export.connection.execute(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT GENERATED ALWAYS AS "
        "(hex(zeroblob(3000000))) VIRTUAL)"
    )
    export.connection.execute("INSERT INTO StringIds (id) VALUES (1)")
    export.connection.execute(
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL; "
        "END"
    )
    trace = read_whole(export.close())
    assert events(trace, Kind.KERNEL) == [("string 1", 0, 10)]


def test_nothing_but_reading_passes_the_authorizer(tmp_path: Path) -> None:
    path = small(tmp_path / "run.sqlite").close()
    with nsys_database.opened(source_of(path)) as database:
        for query in (
            "DELETE FROM StringIds",
            "ATTACH DATABASE ':memory:' AS other",
            "SELECT load_extension('x')",
            "SELECT randomblob(1000000000)",
            (
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) "
                "FROM "
                "n"
            ),
            "PRAGMA writable_schema = ON",
        ):
            with pytest.raises(FormatError, match=r"run\.sqlite"):
                list(database.query(query))


def test_endless_queries_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path / "run.sqlite").close()
    monkeypatch.setattr(nsys_database, "FREE_STEPS", 1_000)
    monkeypatch.setattr(nsys_database, "STEPS_PER_BYTE", 0)
    with (
        pytest.raises(FormatError, match="more steps"),
        nsys_database.opened(source_of(path)) as database,
    ):
        list(
            database.query(
                " CROSS JOIN ".join(
                    ["SELECT 1 FROM StringIds a", *(f"StringIds b{i}" for i in range(9))]
                )
            )
        )


def test_pages_that_point_at_one_another_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three levels of pages that all lead to one leaf: 500 ** 3 leaves, in a file of a few
    pages."""
    export = Export(tmp_path / "run.sqlite")
    for number in range(500):
        export.kernel(number * 10, number * 10 + 5, number + 1)
    path = export.close()
    asking = sqlite3.connect(path)
    (root,) = asking.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
    ).fetchone()
    (size,) = asking.execute("PRAGMA page_size").fetchone()
    asking.close()
    data = bytearray(path.read_bytes())
    at = (root - 1) * size
    assert data[at] == 5  # An interior page of a table.
    (child,) = struct.unpack_from(">I", data, at + 8)
    for _ in range(2):
        data += interior_page(child, size)
        child = len(data) // size
    data[at : at + size] = interior_page(child, size)
    struct.pack_into(">I", data, 28, len(data) // size)
    path.write_bytes(bytes(data))
    monkeypatch.setattr(nsys_database, "FREE_STEPS", 1_000_000)
    with pytest.raises(FormatError, match="more steps"):
        read(source_of(path))


def interior_page(child: int, size: int, cells: int = 500) -> bytes:
    page = bytearray(size)
    first = size - 5 * cells
    struct.pack_into(">BHHHBI", page, 0, 5, 0, cells, first, 0, child)
    for cell in range(cells):
        struct.pack_into(">H", page, 12 + 2 * cell, first + 5 * cell)
        struct.pack_into(">IB", page, first + 5 * cell, child, 1)
    return bytes(page)


def test_odd_cells_are_counted_not_believed(tmp_path: Path) -> None:
    export = small(tmp_path / "run.sqlite")
    for start, end in (("soon", 5), (None, 5), (5, "later"), (-3, 5), (2**62, 2**62 + 5), (50, 40)):
        export.connection.execute(
            "CREATE TABLE IF NOT EXISTS loose AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE 0"
        )
        export.connection.execute("INSERT INTO loose (start, end, deviceId, streamId, "
"globalPid) VALUES (?, ?, 99999, "
"-4, ?)",
                                  (start, end, global_id()))  # fmt: skip
    export.connection.execute("INSERT INTO loose SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
    export.connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    export.connection.execute("ALTER TABLE loose RENAME TO CUPTI_ACTIVITY_KIND_KERNEL")
    trace = read_whole(export.close())
    assert events(trace, Kind.KERNEL) == [
        ("(no name)", 50, 0),
        ("gemm", 1_000, 4_000),
        ("gemm", 11_000, 4_000),
    ]
    assert any_mentions(trace.notes, "5 event", "without", "time", "left out")
    assert any_mentions(trace.notes, "1 event", "negative duration")


def test_a_foreign_database_is_named(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "x.sqlite")
    other.execute("CREATE TABLE studies (id INTEGER)")
    other.commit()
    other.close()
    with pytest.raises(FormatError, match=r"Nsight Systems.*studies"):
        read(source_of(tmp_path / "x.sqlite"))
    (tmp_path / "empty.sqlite").write_bytes(b"")
    with pytest.raises(FormatError, match=r"SQLite.* empty"):
        read(source_of(tmp_path / "empty.sqlite"))


def test_damage_never_ends_in_anything_but_words(tmp_path: Path) -> None:
    whole = small(tmp_path / "run.sqlite").close().read_bytes()
    rng = np.random.default_rng(1)
    path = tmp_path / "damaged.sqlite"
    outcomes = set()
    for round_ in range(150):
        data = bytearray(whole[: int(rng.integers(1, len(whole)))] if round_ % 3 == 0 else whole)
        for place in rng.integers(16, max(len(data), 17), 40 if round_ % 3 else 0).tolist():
            if place < len(data):
                data[place] = int(rng.integers(0, 256))
        path.write_bytes(bytes(data))
        try:
            read_whole(path)
            outcomes.add("read")
        except InputError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
