"""rocprofv3's JSON: a real recording against plain json, a small one with everything in it, and
damaged ones."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stepscope.core.trace import NONE, Kind, Launch, Trace
from stepscope.errors import FormatError, InputError
from stepscope.readers.format import Source
from stepscope.recordings.rocm import json_walk as rocprof_walk
from stepscope.recordings.rocm import rocprofv3_json
from tests.shared_data import SHARED, needs_shared
from tests.wording import any_mentions, mentions

REAL = SHARED / "public" / "tracelens" / "rocprofv3_908_results.json.gz"


def record(
    kind: int, operation: int, correlation: int, start: int, end: int, thread: int = 11, **more: Any
) -> dict[str, Any]:
    times = {"start_timestamp": start, "end_timestamp": end, "thread_id": thread}
    return (
        {
            "size": 64,
            "kind": kind,
            "operation": operation,
            "correlation_id": {"internal": correlation, "external": 0},
        }
        | times
        | more
    )


def small() -> dict[str, Any]:
    """Two kernels, their launches, a copy, ROCTx ranges and a collective."""
    info = {
        "agent_id": {"handle": 900},
        "queue_id": {"handle": 3},
        "kernel_id": 7,
        "group_segment_size": 512,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
    }
    tool = {
        "metadata": {"pid": 42, "command": ["python", "train.py"]},
        "agents": [
            {
                "id": {"handle": 899},
                "type": 1,
                "name": "EPYC",
                "product_name": "EPYC",
                "wave_front_size": 0,
                "cu_count": 64,
            },
            {
                "id": {"handle": 900},
                "type": 2,
                "name": "gfx942",
                "product_name": "AMD Instinct MI300X",
                "cu_count": 304,
                "wave_front_size": 64,
                "logical_node_type_id": 0,
                "mem_banks": [
                    {"heap_type": 1, "size_in_bytes": 1000},
                    {"heap_type": 1, "size_in_bytes": 24},
                ],
            },
        ],
        "strings": {
            "callback_records": [],
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipMemcpyAsync", "hipLaunchKernel"]},
                {
                    "kind": "MARKER_CORE_API",
                    "operations": ["roctxMarkA", "roctxRangePushA", "roctxRangePop"],
                },
                {
                    "kind": "MEMORY_COPY",
                    "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"],
                },
                {"kind": "RCCL_API", "operations": ["ncclAllReduce"]},
            ],
            "marker_api": [{"key": 20, "value": 'step "1" },{"size":'}],
        },
        "code_objects": [{"uri": "}]},{["}],
        "kernel_symbols": [
            {
                "size": 8,
                "kernel_id": 7,
                "formatted_kernel_name": "void k<float>()",
                "arch_vgpr_count": 24,
                "accum_vgpr_count": 8,
            },
            {
                "size": 8,
                "kernel_id": 8,
                "formatted_kernel_name": "ncclDevKernel_Generic_1(x)",
                "arch_vgpr_count": 64,
            },
        ],
        "buffer_records": {
            "kernel_dispatch": [
                record(0, 2, 100, 5_000, 9_000, dispatch_info=info, stream_id={"handle": 5}),
                record(0, 2, 101, 9_500, 9_900, dispatch_info=info | {"kernel_id": 8}),
                record(
                    0,
                    2,
                    0,
                    9_950,
                    9_960,
                    dispatch_info=info | {"kernel_id": 99},
                    stream_id={"handle": 5},
                ),
            ],
            "hip_api": [
                record(1, 1, 100, 4_000, 4_100),
                record(1, 1, 101, 4_200, 4_300),
                record(1, 77, 102, 4_400, 4_500),
            ],
            "hsa_api": [],
            "marker_api": [record(2, 1, 20, 3_000, 9_000), record(2, 2, 21, 9_000, 9_001)],
            "rccl_api": [record(4, 0, 103, 4_150, 4_350, thread=12)],
            "memory_copy": [
                record(
                    3,
                    1,
                    102,
                    4_600,
                    4_700,
                    src_agent_id={"handle": 899},
                    dst_agent_id={"handle": 900},
                    bytes=4096,
                ),
            ],
            "scratch_memory": [record(5, 1, 0, 1, 2)],
        },
    }
    return {"rocprofiler-sdk-tool": [tool]}


def read(path: Path, data: bytes | dict[str, Any]) -> Trace:
    path.write_bytes(
        data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    )
    trace = rocprofv3_json.read(Source(path=path, label="x.json"))
    trace.self_check()
    return trace


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    names = [trace.names[code] for code in trace.name.tolist()]
    columns = (
        trace.start_ns + trace.meta.base_ns,
        trace.dur_ns,
        trace.device,
        trace.stream,
        trace.correlation,
        trace.size_bytes,
    )
    return [
        (Kind(k).name, name, *rest)
        for k, name, *rest in zip(trace.kind, names, *(c.tolist() for c in columns), strict=True)
    ]


@needs_shared
def test_real_recording_has_the_figures_of_its_own_json() -> None:
    tool = msgspec.json.decode(gzip.decompress(REAL.read_bytes()))["rocprofiler-sdk-tool"][0]
    dispatches = tool["buffer_records"]["kernel_dispatch"]
    names = {
        symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in tool["kernel_symbols"]
    }
    trace = rocprofv3_json.read(Source(path=REAL, label="real"))
    trace.self_check()
    assert len(trace) == len(dispatches) == 43_915
    by_name: Counter[str] = Counter()
    by_stream: Counter[int] = Counter()
    for one in dispatches:
        by_name[names[one["dispatch_info"]["kernel_id"]]] += (
            one["end_timestamp"] - one["start_timestamp"]
        )
        by_stream[one["stream_id"]["handle"]] += 1
    found: Counter[str] = Counter()
    for code, dur in zip(trace.name.tolist(), trace.dur_ns.tolist(), strict=True):
        found[trace.names[code]] += dur
    assert found == by_name
    assert found["ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"] == 4_158_756_678
    assert Counter(trace.stream.tolist()) == by_stream
    assert trace.meta.base_ns == min(one["start_timestamp"] for one in dispatches)
    assert int(trace.end_ns.max()) + trace.meta.base_ns == max(
        one["end_timestamp"] for one in dispatches
    )
    device = trace.meta.devices[0]
    assert (device.name, device.num_sms, device.warp_size, device.memory_bytes) == (
        "AMD Instinct MI350X",
        256,
        64,
        309_220_868_096,
    )
    assert len(trace.meta.devices) == 8
    assert set(trace.device.tolist()) == {0}
    launch = trace.details[trace.detail[-1]]
    last = dispatches[-1]["dispatch_info"]
    assert isinstance(launch, Launch)
    assert launch.grid == (last["grid_size"]["x"] // last["workgroup_size"]["x"], 1, 1)
    assert any("no host calls" in note for note in trace.notes)


def test_every_kind_of_record_becomes_its_row(tmp_path: Path) -> None:
    trace = read(tmp_path / "a.json", small())
    assert rows(trace) == [
        ("MARK", 'step "1" },{"size":', 3_000, 6_000, -1, -1, -1, -1),
        ("RUNTIME", "hipLaunchKernel", 4_000, 100, -1, -1, 100, -1),
        ("RUNTIME", "ncclAllReduce", 4_150, 200, -1, -1, 103, -1),
        ("RUNTIME", "hipLaunchKernel", 4_200, 100, -1, -1, 101, -1),
        ("RUNTIME", "hip_api 77", 4_400, 100, -1, -1, 102, -1),
        ("MEMCPY", "Memcpy HtoD", 4_600, 100, 0, -1, 102, 4096),
        ("KERNEL", "void k<float>()", 5_000, 4_000, 0, 5, 100, -1),
        ("KERNEL", "ncclDevKernel_Generic_1(x)", 9_500, 400, 0, 3, 101, -1),
        ("KERNEL", "kernel 99", 9_950, 10, 0, 5, -1, -1),
    ]
    assert trace.details[trace.detail[6]] == Launch(
        grid=(4, 2, 1), block=(256, 1, 1), registers=32, shared_bytes=512, occupancy_pct=None
    )
    assert trace.unknown == {"scratch_memory": 1}
    assert trace.meta.devices[0].memory_bytes == 1024
    (unnamed,) = [note for note in trace.notes if "no name" in note]
    assert mentions(unnamed, "1 kernel")
    assert {thread.tid for thread in trace.threads if thread.pid == "42"} == {"11", "12"}


def test_pieces_of_any_size_give_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small()
    dispatches = data["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"]
    many = [copy.deepcopy(dispatches[at % 2]) for at in range(300)]
    for at, one in enumerate(many):
        one["start_timestamp"], one["end_timestamp"] = 10_000 + at, 10_500 + at
        one["args"] = [{"a": 1}, {"size": 2}, {"b": "},{"}]
    data["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"] = many
    whole = rows(read(tmp_path / "a.json", data))
    assert len(whole) == 306
    pretty = json.dumps(data, indent=2).encode()
    for size in (200, 1000, 5000):
        monkeypatch.setattr(rocprof_walk, "PIECE_BYTES", size)
        monkeypatch.setattr("stepscope.readers.stream.BLOCK_BYTES", size // 2 + 7)
        assert rows(read(tmp_path / "b.json", data)) == whole
        assert rows(read(tmp_path / "c.json", pretty)) == whole


def test_a_list_that_ends_inside_a_piece_does_not_slow_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece that reaches into the next list does not decode; what follows it does again."""
    data = small()
    tool = data["rocprofiler-sdk-tool"][0]
    tool["buffer_records"]["kernel_dispatch"] *= 400
    tool["buffer_records"]["memory_copy"] *= 400
    monkeypatch.setattr(rocprof_walk, "PIECE_BYTES", 4_000)
    monkeypatch.setattr("stepscope.readers.stream.BLOCK_BYTES", 2_000)
    one_by_one = []
    skim = rocprof_walk.Walk._skim

    def counted(walk: rocprof_walk.Walk, *, keep: int) -> bytes | None:
        one_by_one.append(keep)
        return skim(walk, keep=keep)

    monkeypatch.setattr(rocprof_walk.Walk, "_skim", counted)
    trace = read(tmp_path / "a.json", data)
    assert len(trace) > 1_000
    assert len(one_by_one) < 100


def test_cut_anywhere_keeps_what_came_before(tmp_path: Path) -> None:
    text = json.dumps(small(), separators=(",", ":")).encode()
    counts = []
    for end in range(0, len(text), 31):
        try:
            trace = read(tmp_path / "a.json", text[:end])
        except InputError:
            counts.append(0)
            continue
        counts.append(len(trace))
        assert any("before its end" in note for note in trace.notes)
    assert counts == sorted(counts)
    assert counts[-1] >= 8
    assert 3 in counts


def test_damaged_records_cost_themselves_alone(tmp_path: Path) -> None:
    data = small()
    records = data["rocprofiler-sdk-tool"][0]["buffer_records"]
    records["kernel_dispatch"].insert(1, {"start_timestamp": "soon"})
    records["kernel_dispatch"].insert(1, 7)
    records["kernel_dispatch"].append(record(0, 2, 1, 10**30, 10**30))
    records["hip_api"].append(record(1, 1, 1, 0, 0))
    records["hip_api"].append(record(1, 1, 1, 500, 400))
    trace = read(tmp_path / "a.json", data)
    assert Counter(kind for kind, *_ in rows(trace)) == {
        "KERNEL": 3,
        "RUNTIME": 5,
        "MARK": 1,
        "MEMCPY": 1,
    }
    assert any_mentions(trace.notes, "3 record", "damaged")
    assert any_mentions(trace.notes, "1 row", "without", "time", "left out")
    assert any_mentions(trace.notes, "1 row", "end before", "0 long")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "empty"),
        (b"not json at all", "not the JSON"),
        (b'{"rocprofiler-sdk-tool": 7}', "no records"),
        (b'{"rocprofiler-sdk-tool": [', "no records"),
        (b'{"rocprofiler-sdk-tool":' + b"[" * 100_000, "no records"),
        (
            b'{"rocprofiler-sdk-tool":[{"buffer_records":{"hip_api":[' + b"1," * 20_000 + b"1]}}]}",
            "are no records",
        ),
    ],
)
def test_what_holds_nothing_is_refused_in_words(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(InputError, match=words):
        rocprofv3_json.read(Source(path=tmp_path / "a.json", label="a.json"))


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    text = bytearray(json.dumps(small()).encode())
    rng = np.random.default_rng(3)
    num_read = 0
    for _ in range(75):
        damaged = bytearray(text)
        for at in rng.integers(0, len(text), 4).tolist():
            damaged[at] = int(rng.integers(0, 256))
        try:
            num_read += len(read(tmp_path / "a.json", bytes(damaged))) > 0
        except InputError:
            continue
    assert num_read > 50


def test_of_several_processes_the_busiest_is_read_with_its_own_tables(tmp_path: Path) -> None:
    data = small()
    second = copy.deepcopy(data["rocprofiler-sdk-tool"][0])
    second["metadata"]["pid"] = 43
    second["kernel_symbols"][0]["formatted_kernel_name"] = "other"
    second["buffer_records"]["kernel_dispatch"][0]["end_timestamp"] += 100
    alone = read(tmp_path / "a.json", {"rocprofiler-sdk-tool": [second]})
    data["rocprofiler-sdk-tool"].append(second)
    trace = read(tmp_path / "b.json", data)
    assert rows(trace) == rows(
        alone
    )  # Both count their launches from one: together, kernels would be linked to the other's.
    assert [name for kind, name, *_ in rows(trace) if kind == "KERNEL"].count("other") == 1
    assert any_mentions(trace.notes, "2 processes", "process 43 was read", "not 42")


def test_the_first_bytes_tell_it_from_others() -> None:
    assert rocprofv3_json.is_mine(b' {\n "rocprofiler-sdk-tool" : [', "x")
    assert not rocprofv3_json.is_mine(
        b'{"schemaVersion": 1, "rocprofiler-sdk-tool": []', "results.json"
    )
    assert issubclass(FormatError, InputError)
    assert NONE == -1


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "rocprofv3-json", "results.json", json.dumps(small()).encode()


def test_a_run_with_counters_is_no_timeline(tmp_path: Path) -> None:
    recorded = small()
    counted = [{"thread_id": 1, "dispatch_data": {}, "records": [{"value": 3.0}]}] * 2
    recorded["rocprofiler-sdk-tool"][0]["callback_records"] = {"counter_collection": counted}
    path = tmp_path / "counted.json"
    path.write_text(json.dumps(recorded))
    with pytest.raises(FormatError, match=r"counters of 2 launches.*no timeline"):
        rocprofv3_json.read(Source(path=path, label="counted.json"))
    recorded["rocprofiler-sdk-tool"][0]["callback_records"] = {"counter_collection": []}
    path.write_text(json.dumps(recorded))
    assert len(rocprofv3_json.read(Source(path=path, label="counted.json")))
