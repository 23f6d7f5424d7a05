"""Perfetto's own form: our own export and back, a file as Perfetto's SDK writes it for rocprofv3,
and damaged ones."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from stepscope.analyses.links import link
from stepscope.cli.main import main
from stepscope.core.device_label import device_label, device_of_label
from stepscope.core.trace import DeviceProperties, Kind, Launch, OpInputs, Trace
from stepscope.errors import InputError
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.readers.inputs import FoundSources, find_sources
from stepscope.readers.kineto.trace import read as read_kineto
from stepscope.recordings.perfetto import bulk as perfetto_bulk
from stepscope.recordings.perfetto import trace as perfetto_trace
from stepscope.recordings.perfetto.wire import WireError, fields
from tests.shared_data import DEMO, lab_trace

SMALL = lab_trace("single/nchw.fixed")
from tests.wording import any_mentions, mentions

START, END = 1, 2


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def packet(*parts: bytes) -> bytes:
    return field(1, b"".join(parts))


def annotation(name: str, value: int) -> bytes:
    return field(4, field(10, name) + field(3, value))


def sdk_file() -> bytes:
    """As Perfetto's SDK writes it: an incremental clock of the sequence, interned names, a default
    track."""
    clock = field(1, field(1, 6) + field(2, 1_000_000)) + field(
        1, field(1, 64) + field(2, 500) + field(3, 1)
    )
    names = field(2, field(1, 1) + field(2, "gemm_kernel")) + field(
        2, field(1, 2) + field(2, "hipLaunchKernel")
    )
    kinds = field(1, field(1, 1) + field(2, "kernel_dispatch")) + field(
        1, field(1, 2) + field(2, "hip_api")
    )
    texts = names + kinds + field(3, field(1, 9) + field(2, "corr_id"))
    defaults = field(59, field(58, 64) + field(11, field(11, 10)))
    queue = field(60, field(1, 77) + field(2, "COMPUTE AGENT [4] QUEUE [0] (GPU)"))
    thread = field(
        60, field(1, 10) + field(5, 1) + field(4, field(1, 42) + field(2, 43) + field(5, "main"))
    )
    process = field(60, field(1, 1) + field(3, field(1, 42) + field(6, "python")))
    linked = field(4, field(1, 9) + field(3, 5))
    kernel = field(9, START) + field(11, 77) + field(10, 1) + field(3, 1) + linked
    sizes = (
        annotation("agent", 4)
        + annotation("queue", 3)
        + annotation("workgroup_size", 256)
        + annotation("grid_size", 1024)
    )
    sequence = field(10, 3)
    return b"".join(
        [
            packet(field(6, clock), sequence, field(13, 1), defaults),
            packet(sequence, process),
            packet(sequence, thread),
            packet(sequence, queue),
            packet(
                field(8, 100),
                sequence,
                field(12, texts),
                field(11, field(9, START) + field(10, 2) + field(3, 2) + linked),
            ),
            packet(field(8, 50), sequence, field(11, field(9, END))),
            packet(field(8, 10), sequence, field(11, kernel + sizes)),
            packet(field(8, 2_000), sequence, field(11, field(9, END) + field(11, 77))),
            packet(
                field(8, 1_000_001),
                field(58, 6),
                sequence,
                field(11, field(9, START) + field(22, "marker_api") + field(23, "step")),
            ),
            packet(field(8, 1_009_000), field(58, 6), sequence, field(11, field(9, END))),
        ]
    )


def read(path: Path, data: bytes) -> Trace:
    path.write_bytes(data)
    trace = perfetto_trace.read(Source(path=path, label="x.pftrace"))
    trace.self_check()
    return trace


def bag(trace: Trace) -> Counter[tuple[object, ...]]:
    first = int(trace.start_ns.min())
    names = [trace.names[code] for code in trace.name.tolist()]
    columns = (
        (trace.start_ns - first).tolist(),
        trace.dur_ns.tolist(),
        names,
        trace.kind.tolist(),
        trace.correlation.tolist(),
    )
    return Counter(zip(*columns, strict=True))


def test_our_own_export_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "small.pftrace"
    assert main(["export", "perfetto", str(SMALL), "-o", str(file), "--no-cache"]) == 0
    before, after = (
        read_kineto(Source(path=SMALL, label="small")),
        perfetto_trace.read(Source(path=file, label="x")),
    )
    after.self_check()
    assert len(after) == len(before)
    assert bag(after) == bag(before)
    streams = [np.sort(trace.stream[trace.device_work]).tolist() for trace in (before, after)]
    assert streams[0] == streams[1]
    assert perfetto_trace.is_mine(file.read_bytes()[:65_536], "x")
    # What peaks and FLOPs are told by.
    assert after.meta.devices == before.meta.devices
    assert after.meta.devices[0].name == "NVIDIA H200"
    assert after.meta.has_shapes == before.meta.has_shapes
    assert details(after) == details(before)


def details(trace: Trace) -> Counter[object]:
    """Inputs of operators, but for those too long to be a text of a timeline, and launches."""
    found = (trace.details[detail] for detail in trace.detail.tolist() if detail != -1)
    return Counter(
        detail
        for detail in found
        if not isinstance(detail, OpInputs)
        or max(map(len, filter(None, structs.astuple(detail)))) <= 2000
    )


def test_chromes_form_of_our_export_keeps_devices_and_shapes(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    assert main(["export", "perfetto", str(SMALL), "-o", str(file), "--no-cache"]) == 0
    before, after = (read_kineto(Source(path=path, label="small")) for path in (SMALL, file))
    assert after.meta.devices == before.meta.devices
    assert after.meta.has_shapes == before.meta.has_shapes
    inputs = [each.dims for each in after.details if isinstance(each, OpInputs)]
    assert {json.dumps(json.loads(dims)) for dims in inputs if dims} <= {
        json.dumps(json.loads(each.dims))
        for each in before.details
        if isinstance(each, OpInputs) and each.dims
    }
    assert any(inputs)


def test_a_label_that_is_no_device_is_none() -> None:
    assert device_of_label("renderer") is None
    assert device_of_label("device 1: Radeon; 12 SMs; many") is None
    plain = DeviceProperties(
        index=1,
        name="A;B",
        memory_bytes=None,
        num_sms=None,
        compute_capability=(9, 0),
        warp_size=None,
    )
    assert device_of_label(device_label(plain)) == structs.replace(plain, name="A,B")


def test_what_perfettos_sdk_writes_for_rocprofv3(tmp_path: Path) -> None:
    trace = read(tmp_path / "a.pftrace", sdk_file())
    start = (trace.start_ns + trace.meta.base_ns).tolist()
    found = list(
        zip(
            (Kind(k).name for k in trace.kind),
            (trace.names[n] for n in trace.name),
            start,
            trace.dur_ns.tolist(),
            strict=True,
        )
    )
    # The clock of the sequence showed 500 when the file's showed 1 000 000, and each packet adds to
    # it.
    assert found == [
        ("MARK", "step", 1_000_001, 8_999),
        ("RUNTIME", "hipLaunchKernel", 1_000_100, 50),
        ("KERNEL", "gemm_kernel", 1_000_160, 2_000),
    ]
    assert trace.correlation.tolist() == [-1, 5, 5]
    assert (trace.device[2], trace.stream[2]) == (4, 3)
    assert trace.details[trace.detail[2]] == Launch(
        grid=(4, 1, 1), block=(256, 1, 1), registers=None, shared_bytes=None, occupancy_pct=None
    )
    assert [(one.pid, one.tid, one.name) for one in trace.threads][:1] == [("42", "43", "main")]


def test_many_messages_decoded_together_are_what_each_is_alone() -> None:
    """Random messages, some damaged, against the reader of one message at a time."""
    rng = np.random.default_rng(3)
    messages = []
    for number in range(600):
        parts = []
        for _ in range(int(rng.integers(0, 7))):
            key = int(rng.choice([1, 3, 15, 16, 60, 2047]))
            if rng.random() < 0.4:
                parts.append(
                    field(key, bytes(rng.integers(0, 256, int(rng.integers(0, 9)), dtype=np.uint8)))
                )
            elif rng.random() < 0.2:
                parts.append(varint(key << 3 | 1) + bytes(rng.integers(0, 256, 8, dtype=np.uint8)))
            else:
                parts.append(
                    field(
                        key,
                        int(rng.integers(0, 2**63))
                        << int(rng.integers(0, 2))
                        >> int(rng.integers(0, 63)),
                    )
                )
        made = bytearray(b"".join(parts))
        if made and number % 3 == 0:
            made[int(rng.integers(0, len(made)))] = int(rng.integers(0, 256))
        messages.append(bytes(made))
    ends = np.cumsum([len(message) for message in messages])
    starts = ends - [len(message) for message in messages]
    text = b"".join(messages)
    found = perfetto_bulk.decode(
        perfetto_bulk.padded(text), starts.astype(np.int64), ends.astype(np.int64)
    )
    num_bad = 0
    for place, message in enumerate(messages):
        mine = found.owner == place
        rows = zip(
            found.number[mine].tolist(),
            found.value[mine].tolist(),
            found.size[mine].tolist(),
            strict=True,
        )
        told = [
            (number, value % 2**64 if size == -1 else text[value : value + size])
            for number, value, size in rows
        ]
        try:
            assert told == fields(message)
            assert not found.bad[place]
        except WireError:
            assert found.bad[place]
            assert told == []
            num_bad += 1
    assert 30 < num_bad < 300


def test_a_message_without_end_is_taken_for_damage() -> None:
    long, short = field(9, 1) * (perfetto_bulk.MAX_FIELDS + 1), field(9, 2)
    ends = np.array([len(long), len(long) + len(short)], np.int64)
    found = perfetto_bulk.decode(
        perfetto_bulk.padded(long + short), np.array([0, len(long)], np.int64), ends
    )
    assert found.bad.tolist() == [True, False]
    assert found.numbers(9) == [-1, 2]


def test_tracks_of_large_numbers_and_packed_categories_are_read(tmp_path: Path) -> None:
    """Perfetto's track numbers are hashes of 64 bits."""
    uuid, sequence = 2**64 - 5, field(10, 1)
    texts = field(12, field(1, field(1, 300) + field(2, "hip_api")))
    track = packet(
        sequence,
        texts,
        field(60, field(1, uuid) + field(2, "lane") + field(4, field(1, 42) + field(2, 43))),
    )
    begin = field(9, START) + field(11, uuid) + field(23, "a") + field(3, varint(300) + varint(7))
    data = [
        track,
        packet(field(8, 5), sequence, field(11, begin)),
        packet(field(8, 9), sequence, field(11, field(9, END) + field(11, uuid))),
    ]
    trace = read(tmp_path / "a", b"".join(data))
    assert (trace.kind.tolist(), trace.dur_ns.tolist(), trace.threads[0].pid) == (
        [Kind.RUNTIME],
        [4],
        "42",
    )


def test_compressed_packets_are_opened(tmp_path: Path) -> None:
    plain, squeezed = sdk_file(), packet(field(50, zlib.compress(sdk_file())))
    assert bag(read(tmp_path / "a", squeezed)) == bag(read(tmp_path / "b", plain))
    bomb = packet(field(50, zlib.compress(field(2, bytes(15 << 20)))))
    stopped = read(tmp_path / "c", plain + 6 * bomb)
    assert len(stopped) == 3
    assert any_mentions(stopped.notes, "expand", "200 times")
    for rubbish in (bytes(1 << 16), b"\x08\x01" * (1 << 16)):
        with pytest.raises(InputError, match=r"x\.pftrace"):
            read(tmp_path / "e", packet(field(50, zlib.compress(rubbish))))
    damaged = read(tmp_path / "d", plain + packet(field(50, b"no zlib at all")))
    assert any_mentions(damaged.notes, "1 damaged packet", "left out")


def test_cut_anywhere_keeps_what_came_before(tmp_path: Path) -> None:
    data, counts = sdk_file(), []
    for end in range(0, len(data), 3):
        try:
            counts.append(len(read(tmp_path / "a", data[:end])))
        except InputError:
            counts.append(0)
    assert counts == sorted(counts)
    assert counts[-1] == 2
    assert 1 in counts


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    data, rng = sdk_file(), np.random.default_rng(5)
    num_read = 0
    for _ in range(100):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 3).tolist():
            damaged[at] = int(rng.integers(0, 256))
        try:
            num_read += len(read(tmp_path / "a", bytes(damaged))) > 0
        except InputError:
            continue
    assert num_read > 15


def rank_packets(pid: int, kernel_ns: int, *, name: str = "python", track: int = 0) -> list[bytes]:
    """One process: a call and its kernel, with the correlation number 1 that every process begins
    at."""
    track = track or pid
    sequence, call, queue = field(10, track), 100 * track, 100 * track + 1
    linked = annotation("corr_id", 1)

    def slice_(
        track: int, category: str, name: str, start: int, end: int, *more: bytes
    ) -> list[bytes]:
        begin = (
            field(9, START)
            + field(11, track)
            + field(22, category)
            + field(23, name)
            + linked
            + b"".join(more)
        )
        closing = field(9, END) + field(11, track)
        return [
            packet(field(8, start), sequence, field(11, begin)),
            packet(field(8, end), sequence, field(11, closing)),
        ]

    return [
        packet(sequence, field(60, field(1, track) + field(3, field(1, pid) + field(6, name)))),
        packet(
            sequence,
            field(60, field(1, call) + field(5, track) + field(4, field(1, pid) + field(2, 9))),
        ),
        packet(
            sequence,
            field(
                60,
                field(1, queue) + field(5, track) + field(2, "COMPUTE AGENT [4] QUEUE [0] (GPU)"),
            ),
        ),
        *slice_(call, "hip_api", f"hipLaunchKernel {track}", 1_000 + pid, 1_100),
        *slice_(
            queue,
            "kernel_dispatch",
            f"gemm {track}",
            2_000,
            2_000 + kernel_ns,
            annotation("agent", 4),
        ),
    ]


def test_of_several_processes_the_busiest_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    data = b"".join([*rank_packets(7, 100), *rank_packets(8, 900), *rank_packets(9, 300)])
    trace = read(tmp_path / "a", data)
    assert [trace.names[name] for name in trace.name] == ["hipLaunchKernel 8", "gemm 8"]
    assert link(trace).launch.tolist() == [-1, 0]
    assert any_mentions(trace.notes, "3 processes", "process 8 was read", "not 7, 9")
    assert len(read(tmp_path / "b", b"".join(rank_packets(7, 100)))) == 2


def parts_of(path: Path, *ranks: list[bytes]) -> FoundSources:
    path.write_bytes(b"".join(one for rank in ranks for one in rank))
    return find_sources([path])


def names_of(source: Source) -> list[str]:
    trace = read_trace(source, use_cache=False)
    trace.self_check()
    return [trace.names[name] for name in trace.name]


def test_each_process_with_kernels_is_a_rank(tmp_path: Path) -> None:
    idle = rank_packets(9, 8)  # Less than a hundredth of the busiest one's.
    found = parts_of(tmp_path / "rank1.pftrace", rank_packets(8, 900), rank_packets(7, 100), idle)
    assert [source.label[-11:] for source in found.sources] == ["(process 7)", "(process 8)"]
    assert [source.rank for source in found.sources] == [None, None], (
        "the file's name is of neither"
    )
    for source, number in zip(found.sources, (7, 8), strict=True):
        assert names_of(source) == [f"hipLaunchKernel {number}", f"gemm {number}"]
        assert link(read_trace(source, use_cache=False)).launch.tolist() == [-1, 0]
    notes = " ".join(found.notes)
    assert mentions(notes, "2 processes", "process 7, process 8")
    assert mentions(notes, "process 9", "no kernels", "1%", "no rank")
    assert mentions(notes, "its name", "rank 1", "2 ranks")


def test_a_process_that_is_named_for_its_rank_is_that_rank(tmp_path: Path) -> None:
    ours = [
        packet(
            field(10, 3), field(60, field(1, 99) + field(3, field(1, 99) + field(6, "stepscope")))
        )
    ]
    found = parts_of(
        tmp_path / "a.pftrace",
        ours,
        rank_packets(7, 100, name="rank 5"),
        rank_packets(8, 100, name="rank 2"),
    )
    assert [(source.rank, source.label[-8:]) for source in found.sources] == [
        (5, "(rank 5)"),
        (2, "(rank 2)"),
    ]
    assert [read_trace(source, use_cache=False).meta.rank for source in found.sources] == [5, 2]
    twice = parts_of(
        tmp_path / "b.pftrace",
        rank_packets(7, 100, name="rank 5"),
        rank_packets(8, 100, name="rank 5"),
    )
    assert [source.rank for source in twice.sources] == [None, None]


def test_processes_of_one_number_on_two_machines_are_two(tmp_path: Path) -> None:
    found = parts_of(
        tmp_path / "a.pftrace", rank_packets(7, 100, track=70), rank_packets(7, 300, track=71)
    )
    assert [source.label.partition(" (")[2] for source in found.sources] == [
        "process 7)",
        "process 7 (number 2 of them))",
    ]
    assert [names_of(source) for source in found.sources] == [
        ["hipLaunchKernel 70", "gemm 70"],
        ["hipLaunchKernel 71", "gemm 71"],
    ]


def test_work_of_no_process_is_no_ranks(tmp_path: Path) -> None:
    begin = field(9, START) + field(11, 5) + field(22, "kernel_dispatch") + field(23, "stray")
    stray = [
        packet(field(8, 10), field(10, 1), field(11, begin)),
        packet(field(8, 20), field(10, 1), field(11, field(9, END) + field(11, 5))),
    ]
    found = parts_of(tmp_path / "a.pftrace", stray, rank_packets(7, 100), rank_packets(8, 100))
    for source in found.sources:
        assert "stray" not in names_of(source)
        assert any_mentions(
            read_trace(source, use_cache=False).notes, "1 piece", "no process", "left out"
        )


def test_more_ranks_than_are_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto_trace, "MAX_RANKS", 2)
    found = parts_of(tmp_path / "a.pftrace", *(rank_packets(7 + n, 100 + n) for n in range(4)))
    assert [source.label[-12:] for source in found.sources] == [" (process 9)", "(process 10)"]
    assert any_mentions(found.notes, "4 processes", "2 busiest")


def test_one_process_stays_one_source(tmp_path: Path) -> None:
    for number, data in enumerate(
        (
            sdk_file(),
            b"".join(rank_packets(7, 100)),
            b"".join([*rank_packets(7, 900), *rank_packets(8, 1)]),
        )
    ):
        found = parts_of(tmp_path / f"{number}.pftrace", [data])
        (source,) = found.sources
        assert (source.part, found.notes) == (None, ())
    assert perfetto_trace.parts(Source(path=DEMO, label="no packets")) == ([], [])


def test_copies_to_the_host_belong_to_their_device(tmp_path: Path) -> None:
    sequence, track = field(10, 1), field(11, 5)

    def copy(name: str, source: int, target: int) -> list[bytes]:
        about = (
            annotation("src_agent", source)
            + annotation("dst_agent", target)
            + annotation("corr_id", 0)
        )
        begin = field(9, START) + track + field(22, "memory_copy") + field(23, name) + about
        return [
            packet(field(8, 10), sequence, field(11, begin)),
            packet(field(8, 20), sequence, field(11, field(9, END) + track)),
        ]

    described = packet(
        sequence, field(60, field(1, 5) + field(2, "COPY to AGENT [0] THREAD [1] (CPU)"))
    )
    copies = [*copy("MEMORY_COPY_DEVICE_TO_HOST", 4, 0), *copy("MEMORY_COPY_HOST_TO_DEVICE", 0, 4)]
    trace = read(tmp_path / "a", described + b"".join(copies))
    assert [trace.names[name] for name in trace.name] == ["Memcpy DtoH", "Memcpy HtoD"]
    assert trace.device.tolist() == [4, 4]
    assert trace.correlation.tolist() == [-1, -1]  # rocprofv3 counts from 1.


def test_the_wall_clock_is_told_where_a_snapshot_has_it(tmp_path: Path) -> None:
    clocks = field(1, field(1, 6) + field(2, 1_000)) + field(
        1, field(1, 1) + field(2, 1_700_000_000_000_000_000)
    )
    event = field(9, START) + field(11, 5) + field(22, "hip_api") + field(23, "a")
    data = [
        packet(field(6, clocks), field(10, 1)),
        packet(field(8, 3_000), field(10, 1), field(11, event)),
        packet(field(8, 3_500), field(10, 1), field(11, field(9, END) + field(11, 5))),
    ]
    trace = read(tmp_path / "a", b"".join(data))
    assert trace.meta.base_ns + int(trace.start_ns[0]) == 1_700_000_000_000_002_000


def test_slices_too_deep_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto_trace, "MAX_DEPTH", 3)
    sequence = field(10, 1)
    begin = field(9, START) + field(11, 5) + field(22, "hip_api") + field(23, "a")
    opened = [packet(field(8, at), sequence, field(11, begin)) for at in range(1, 6)]
    closed = [
        packet(field(8, at), sequence, field(11, field(9, END) + field(11, 5)))
        for at in range(10, 15)
    ]
    trace = read(tmp_path / "a", b"".join([*opened, *closed]))
    assert sorted(zip(trace.start_ns.tolist(), trace.dur_ns.tolist(), strict=True)) == [
        (0, 13),
        (1, 11),
        (2, 9),
    ]
    assert any_mentions(trace.notes, "2 slice", "inside 3 others", "left out")


def test_slices_that_do_not_close_and_ends_of_none_are_counted(tmp_path: Path) -> None:
    sequence = field(10, 1)
    event = field(9, START) + field(11, 5) + field(22, "hip_api") + field(23, "a")
    data = b"".join(
        [
            packet(field(8, 5), sequence, field(11, field(9, END) + field(11, 5))),
            packet(field(8, 6), sequence, field(11, event)),
            packet(field(8, 7), sequence, field(11, event)),
            packet(field(8, 9), sequence, field(11, field(9, END) + field(11, 5))),
            packet(field(8, 9), sequence, field(11, field(9, 77))),
        ]
    )
    trace = read(tmp_path / "a", data)
    assert (len(trace), trace.dur_ns.tolist()) == (1, [2])
    assert any_mentions(trace.notes, "1 slice", "never end", "left out")
    assert any_mentions(trace.notes, "1 end", "never begin", "left out")
    assert list(trace.unknown.values()) == [1]
    assert any_mentions(trace.unknown, "type 77")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x0a", b"{}", b"plain text, no packets in it", b"\x0a\xff\xff\xff\xff\x7f" + b"x" * 99],
)
def test_what_is_none_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match=r"x\.pftrace"):
        read(tmp_path / "a", data)
    assert not perfetto_trace.is_mine(data, "a.bin")
    assert not perfetto_trace.is_mine(data, "a.pftrace")


def test_text_is_not_taken_for_packets() -> None:
    head = b'\n{"traceEvents": [\n{"ph": "X"}\n' * 40
    assert not perfetto_trace.is_mine(head, "trace.pftrace")
    assert not perfetto_trace.is_mine(b"\n\n\n\n\n\n\n\n\n\n\n\n", "log.txt")
    assert perfetto_trace.is_mine(sdk_file(), "results")


def torch_file(device: int = 0) -> bytes:
    """As PyTorch's cupti monitor writes it (monitor_pftrace.cpp, formed by hand after it): of each
    kind all begins, then all ends; a device is a process, a stream a thread of it; Kineto's
    categories and names of arguments."""
    names = ("gemm", "cudaLaunchKernel", "ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3")
    kinds = ("kernel", "cuda_runtime", "user_annotation")
    texts = b"".join(field(2, field(1, i) + field(2, name)) for i, name in enumerate(names, 1))
    texts += b"".join(field(1, field(1, i) + field(2, kind)) for i, kind in enumerate(kinds, 1))
    process = field(1, 1) + field(3, field(1, 42) + field(6, "python"))
    thread = field(1, 2) + field(5, 1) + field(4, field(1, 42) + field(2, 43) + field(5, "t"))
    gpu = field(1, 3) + field(3, field(1, device) + field(6, "python"))
    stream = field(1, 4) + field(5, 3) + field(4, field(1, device) + field(2, 7) + field(5, "s 7"))
    out = b"".join(packet(field(60, track)) for track in (process, thread, gpu, stream))
    out += packet(field(10, 1), field(13, 1), field(12, texts))
    groups: dict[str, list[tuple[int, int, int, bytes]]] = {kind: [] for kind in kinds}
    for step in range(3):
        low = 1_000_000_000 + step * 10_000_000
        groups["user_annotation"].append((3 + step, low, low + 9_900_000, b""))
        for at in range(5):
            number = annotation("correlation", 5 * step + at + 1)
            call = low + 5_000 + at * 100_000
            groups["cuda_runtime"].append((2, call, call + 10_000, number))
            # One after the other without a gap: an end and a begin at one moment.
            begin = low + 1_000_000 + at * 1_500_000
            where = number + annotation("device", device) + annotation("stream", 7)
            groups["kernel"].append((1, begin, begin + 1_500_000, where))
    for code, (kind, rows) in enumerate(groups.items(), 1):
        track = 4 if kind == "kernel" else 2
        for name, begin, _, more in rows:
            slice_ = field(9, START) + field(11, track) + field(10, name) + field(3, code) + more
            out += packet(field(8, begin), field(10, 1), field(13, 2), field(11, slice_))
        for _, _, end, _ in rows:
            out += packet(field(8, end), field(10, 1), field(11, field(9, END) + field(11, track)))
    return out


@pytest.mark.parametrize("device", [0, 1])
def test_begins_and_ends_that_pytorch_writes_apart_are_paired_by_time(
    tmp_path: Path, device: int
) -> None:
    trace = read(tmp_path / "t.pftrace", gzip.compress(torch_file(device)))
    kernels = trace.is_kind(Kind.KERNEL)
    assert trace.dur_ns[kernels].tolist() == [1_500_000] * 15
    assert set(trace.device[kernels].tolist()) == {device}
    assert set(trace.stream[kernels].tolist()) == {7}
    assert sorted(trace.correlation[kernels].tolist()) == list(range(1, 16))
    assert trace.dur_ns[trace.is_kind(Kind.RUNTIME)].tolist() == [10_000] * 15
    assert trace.dur_ns[trace.is_kind(Kind.MARK)].tolist() == [9_900_000] * 3
    assert not [note for note in trace.notes if "slice" in note or "end before" in note]


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "perfetto", "run.pftrace", sdk_file()
