"""Perfetto's own form: our own export and back, a file as Perfetto's SDK writes it for rocprofv3, and damaged ones."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stepscope.cli.main import main
from stepscope.core.trace import Kind, Launch, Trace
from stepscope.errors import InputError
from stepscope.readers import perfetto_trace
from stepscope.readers.kineto import read_kineto
from stepscope.readers.source import Source
from tests.shared_data import DEMO

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
    """As Perfetto's SDK writes it: an incremental clock of the sequence, interned names, a default track."""
    clock = field(1, field(1, 6) + field(2, 1_000_000)) + field(1, field(1, 64) + field(2, 500) + field(3, 1))
    names = field(2, field(1, 1) + field(2, "gemm_kernel")) + field(2, field(1, 2) + field(2, "hipLaunchKernel"))
    kinds = field(1, field(1, 1) + field(2, "kernel_dispatch")) + field(1, field(1, 2) + field(2, "hip_api"))
    texts = names + kinds + field(3, field(1, 9) + field(2, "corr_id"))
    defaults = field(59, field(58, 64) + field(11, field(11, 10)))
    queue = field(60, field(1, 77) + field(2, "COMPUTE AGENT [4] QUEUE [0] (GPU)"))
    thread = field(60, field(1, 10) + field(5, 1) + field(4, field(1, 42) + field(2, 43) + field(5, "main")))
    process = field(60, field(1, 1) + field(3, field(1, 42) + field(6, "python")))
    linked = field(4, field(1, 9) + field(3, 5))
    kernel = field(9, START) + field(11, 77) + field(10, 1) + field(3, 1) + linked
    sizes = annotation("agent", 4) + annotation("queue", 3) + annotation("workgroup_size", 256) + annotation("grid_size", 1024)
    sequence = field(10, 3)
    return b"".join(
        [
            packet(field(6, clock), sequence, field(13, 1), defaults),
            packet(sequence, process),
            packet(sequence, thread),
            packet(sequence, queue),
            packet(field(8, 100), sequence, field(12, texts), field(11, field(9, START) + field(10, 2) + field(3, 2) + linked)),
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
    columns = ((trace.start_ns - first).tolist(), trace.dur_ns.tolist(), names, trace.kind.tolist(), trace.correlation.tolist())
    return Counter(zip(*columns, strict=True))


def test_our_own_export_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "demo.pftrace"
    assert main(["export", "perfetto", str(DEMO), "-o", str(file), "--no-cache"]) == 0
    before, after = read_kineto(Source(path=DEMO, label="demo")), perfetto_trace.read(Source(path=file, label="x"))
    after.self_check()
    assert len(after) == len(before)
    assert bag(after) == bag(before)
    streams = [np.sort(trace.stream[trace.device_work]).tolist() for trace in (before, after)]
    assert streams[0] == streams[1]
    assert perfetto_trace.is_mine(file.read_bytes()[:65_536], "x")


def test_what_perfettos_sdk_writes_for_rocprofv3(tmp_path: Path) -> None:
    trace = read(tmp_path / "a.pftrace", sdk_file())
    start = (trace.start_ns + trace.meta.base_ns).tolist()
    found = list(
        zip((Kind(k).name for k in trace.kind), (trace.names[n] for n in trace.name), start, trace.dur_ns.tolist(), strict=True)
    )
    # The clock of the sequence showed 500 when the file's showed 1 000 000, and each packet adds to it.
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


def test_compressed_packets_are_opened(tmp_path: Path) -> None:
    plain, squeezed = sdk_file(), packet(field(50, zlib.compress(sdk_file())))
    assert bag(read(tmp_path / "a", squeezed)) == bag(read(tmp_path / "b", plain))
    bomb = b"".join(packet(field(50, zlib.compress(field(2, bytes(15 << 20)), 9))) for _ in range(6))
    stopped = read(tmp_path / "c", plain + bomb)
    assert len(stopped) == 3
    assert any("expand more than 200 times" in note for note in stopped.notes)
    for rubbish in (bytes(1 << 20), b"\x08\x01" * (1 << 20)):
        with pytest.raises(InputError, match=r"x\.pftrace"):
            read(tmp_path / "e", packet(field(50, zlib.compress(rubbish))))
    damaged = read(tmp_path / "d", plain + packet(field(50, b"no zlib at all")))
    assert "1 damaged packet(s) were left out" in damaged.notes


def test_cut_anywhere_keeps_what_came_before(tmp_path: Path) -> None:
    data, counts = sdk_file(), []
    for end in range(len(data)):
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
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 3).tolist():
            damaged[at] = int(rng.integers(0, 256))
        try:
            num_read += len(read(tmp_path / "a", bytes(damaged))) > 0
        except InputError:
            continue
    assert num_read > 50


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
    assert "1 slice(s) never end and were left out" in trace.notes
    assert "1 end(s) of slices that never begin were left out" in trace.notes
    assert trace.unknown == {"track event of type 77": 1}


@pytest.mark.parametrize("data", [b"", b"\x0a", b"{}", b"plain text, no packets in it", b"\x0a\xff\xff\xff\xff\x7f" + b"x" * 99])
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
