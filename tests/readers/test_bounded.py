"""What hostile files cost: lines of our code, what is read and held, steps of SQLite's machine are
counted, and grow no faster than the file."""

from __future__ import annotations

import contextlib
import gzip
import io
import sqlite3
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from stepscope.errors import StepscopeError
from stepscope.protocol.untrusted import parse_json
from stepscope.readers import stream
from stepscope.readers.format import Source
from stepscope.readers.stream import BLOCK, MAX_EXTENSION_BYTES, Archive
from stepscope.recordings.flight import dump as flight
from stepscope.recordings.memory import snapshot as memory
from stepscope.recordings.nsys import database, nvtx
from stepscope.recordings.nsys import sqlite as nsys
from stepscope.recordings.perfetto import trace as perfetto
from tests.counting import CountedFile, CountedPattern, counted, most_held, sized
from tests.nsys_files import PID, Export
from tests.recordings.perfetto.test_trace import END, START, field, packet
from tests.shared_pickles import Many, Once, pickled

SIZE = 4_000
MAX_LINES = 20
"""Of our code, for each byte of a file. Each shape took 1 to 13."""
MAX_GROWTH = 2.4
"""Of what is counted, where a file is twice as long."""
HELD_BYTES, HELD_PER_BYTE = 9 << 20, 200
"""What may be held for any file, which is read in blocks of 8 MiB, and for each byte of it."""

Bytes = Callable[[int], bytes]
NAMED = field(22, "kernel") + field(23, "a")


def event(kind: int, track: int, time: int, *more: bytes) -> bytes:
    return packet(
        field(8, time), field(10, 1), field(11, field(9, kind) + field(11, track) + b"".join(more))
    )


BACK = event(START, 5, 10**9, NAMED) + event(END, 5, 50)
"""A slice that ends before it begins: the file is read once more, and sorted."""


def begins(num: int, first: int, by: int) -> bytes:
    return b"".join(event(START, 5, first + by * each, NAMED) for each in range(num))


def ends(num: int, first: int) -> bytes:
    return b"".join(event(END, 5, first + each) for each in range(num))


def circle(size: int) -> bytes:
    return b"".join(
        packet(field(60, field(1, each) + field(5, each + 1)))
        + event(START, each, each + 1, NAMED)
        + event(END, each, each + 2)
        for each in range(1, size // 60)
    )


def writers(size: int) -> bytes:
    return b"".join(
        packet(field(10, each), field(13, 2), field(8, each)) for each in range(1, size // 12)
    )


def kinds(size: int) -> bytes:
    return b"".join(
        event(START, 5, each + 1, field(22, f"c{each}") + field(23, f"n{each}"))
        + event(END, 5, each + 2)
        for each in range(size // 60)
    )


PERFETTO: dict[str, Bytes] = {
    "begins": lambda size: begins(size // 30, 100, 1),
    "begins that wait for their order": lambda size: BACK + begins(size // 30, 200, 1),
    "falling times": lambda size: (
        BACK + begins(size // 60, 10**6, -1) + ends(size // 60, 10**7)
    ),
    "one moment": lambda size: (
        BACK + (event(START, 5, 70, NAMED) + event(END, 5, 70)) * (size // 50)
    ),
    "empty packets": lambda size: b"\x0a\x00" * (size // 2),
    "a writer that begins anew": lambda size: (
        packet(field(10, 1), field(13, 1), field(12, b"")) * (size // 10)
    ),
    "parents in a circle": circle,
    "one text again": lambda size: packet(
        field(10, 1), field(12, field(2, field(1, 1) + field(2, "x")) * (size // 8))
    ),
    "empty annotations": lambda size: packet(
        field(10, 1), field(11, field(9, START) + b"\x22\x00" * (size // 2))
    ),
    "clocks": lambda size: (
        packet(field(10, 1), field(6, field(1, field(1, 64) + field(2, 5)) * 5)) * (size // 50)
    ),
    "writers": writers,
    "categories": kinds,
}  # fmt: skip

EVENT = {"action": "alloc", "addr": 4096, "size": 512, "time_us": 5, "frames": []}
FRAME = {"name": "forward", "filename": "/a/b.py", "line": 3}
USED = {"address": 4096, "size": 512, "state": "active_allocated", "frames": []}
STEPPED = {"name": "Optimizer.step", "stage": "END", "time_us": 4}


def segment(blocks: Any, device: int = 0, **more: Any) -> dict[str, Any]:
    return {"device": device, "address": 0, "total_size": 1 << 30, "blocks": blocks} | more


def snapshot(events: Any, **more: Any) -> bytes:
    return pickled({"segments": [segment([])], "device_traces": [events], **more})


def devices(size: int) -> bytes:
    trace = Once(Many(EVENT, size // 2))
    segments = [segment([], device) for device in range(16)]
    return pickled({"segments": segments, "device_traces": [trace] * 16})


def annotated(size: int) -> bytes:
    segments = [segment([], device) for device in range(16)]
    return pickled({"segments": segments, "external_annotations": Many(STEPPED, size // 2)})


def blocks(size: int) -> bytes:
    named = Once(Many(USED, size // 4))
    return pickled({"segments": [segment(named) for _ in range(size // 80)]})


def allocations(size: int, *actions: str, by: int) -> bytes:
    return snapshot(
        [
            {"action": action, "addr": (1 << 29) + by * each, "size": 512}
            for action in actions
            for each in range(size // 30 // len(actions))
        ]
    )


def cuts_beside_blocks(size: int) -> bytes:
    """One segment with many blocks in it, and many stretches behind them that are given back."""
    num, middle, end = size // 110, 1 << 39, 1 << 40
    cuts = [middle + 4096 * each for each in range(num)]
    places = [("segment_map", 0, end), *(("alloc", 4096 * each, 512) for each in range(num))]
    places += [("segment_unmap", cut, 512) for cut in reversed(cuts)]
    rest = zip([0, *(cut + 512 for cut in cuts)], [*cuts, end], strict=True)
    return pickled(
        {
            "segments": [
                {"address": first, "total_size": last - first, "is_expandable": True}
                for first, last in rest
            ],
            "device_traces": [
                [{"action": action, "addr": addr, "size": size} for action, addr, size in places]
            ],
        }
    )


SNAPSHOTS: dict[str, Bytes] = {
    "one event": lambda size: snapshot(Many(EVENT, size // 2)),
    "an event of many frames": lambda size: snapshot(
        Many(EVENT | {"frames": Many(FRAME, size // 4)}, size // 4)
    ),
    "segments that are given back": lambda size: snapshot(
        Many(EVENT | {"action": "segment_free", "frames": Many(FRAME, size // 4)}, size // 4)
    ),
    "events of one stack": lambda size: snapshot(
        [
            EVENT | {"action": "segment_free", "frames": stack}
            for stack in [Once(Many(FRAME, size // 4))]
            for _ in range(size // 80)
        ]
    ),
    "one list of events": devices,
    "one annotation": annotated,
    "one block": lambda size: pickled({"segments": [segment(Many(USED, size // 2))]}),
    "one list of blocks": blocks,
    "one segment": lambda size: pickled({"segments": Many(segment([USED] * 3), size // 2)}),
    "falling addresses": lambda size: allocations(size, "alloc", by=-512),
    "rising addresses": lambda size: allocations(size, "alloc", "free_requested", by=512),
    "segments": lambda size: allocations(size, "segment_alloc", by=-4096),
    "cuts beside blocks": lambda size: cuts_beside_blocks(5 * size),
    "cuts": lambda size: allocations(size, "segment_map", "alloc", "segment_unmap", by=1024),
}  # fmt: skip

CALL = {"record_id": 1, "profiling_name": "nccl:all_reduce", "state": "completed", "frames": []}


def calls(size: int, what: str, value: Any) -> bytes:
    """Calls of their own that name one value."""
    named = Once(Many(value, size // 4))
    return pickled({"entries": [CALL | {what: named} for _ in range(size // 60)]})


def groups(size: int, ranks: Any) -> bytes:
    named = Once(ranks)
    names = [f"c{each}" for each in range(size // 90)]
    return pickled(
        {
            "pg_config": {name: {"ranks": named} for name in names},
            "entries": [CALL | {"process_group": [name, "d"]} for name in names],
        }
    )


DUMPS: dict[str, Bytes] = {
    "one call": lambda size: pickled({"entries": Many(CALL, size // 2)}),
    "one stack": lambda size: calls(size, "frames", FRAME),
    "one list of sizes": lambda size: calls(size, "input_sizes", [1]),
    "one list of types": lambda size: calls(size, "input_dtypes", "Float"),
    "one group": lambda size: calls(size, "process_group", ["x"]),
    "one list of ranks": lambda size: groups(size, Many(1, size // 4)),
    "one text of ranks": lambda size: groups(size, "1 " * 100),
}  # fmt: skip
SHAPES = [
    (name, make, read)
    for shapes, read in ((PERFETTO, perfetto.read), (SNAPSHOTS, memory.read), (DUMPS, flight.read))
    for name, make in shapes.items()
]


def cost(read: Callable[[Any], object], path: Path, data: bytes) -> tuple[int, int]:
    """Lines, and bytes held at the most, to read a file or to refuse it."""
    path.write_bytes(data)
    source = Source(path=path, label=path.name, rank=0)
    given = source if read is perfetto.read else [source]

    def run() -> None:
        with contextlib.suppress(StepscopeError):
            read(given)

    with counted() as count:
        run()
    return count.num_lines, most_held(run)


@pytest.mark.parametrize(("name", "make", "read"), SHAPES, ids=[shape[0] for shape in SHAPES])
def test_lines_and_memory_grow_no_faster_than_the_file(
    name: str, make: Bytes, read: Callable[[Any], object], tmp_path: Path
) -> None:
    small, large = make(SIZE), make(2 * SIZE)
    once, _ = cost(read, tmp_path / f"{name} 1", small)
    twice, held = cost(read, tmp_path / f"{name} 2", large)
    assert twice <= MAX_LINES * len(large)
    assert twice <= MAX_GROWTH * once
    assert held <= HELD_BYTES + HELD_PER_BYTE * len(large)


def test_packets_that_are_compressed_cost_what_they_expand_to(tmp_path: Path) -> None:
    inner = packet(field(8, 1), field(10, 1)) * 100
    data = packet(field(50, zlib.compress(inner))) * 50
    lines, _ = cost(perfetto.read, tmp_path / "x", data)
    assert lines <= MAX_LINES * 50 * len(inner)


def tar_of(*members: tuple[bytes, int, bytes]) -> bytes:
    """Headers of a kind, with the length that they declare and what follows."""
    out = b""
    for kind, length, body in members:
        header = tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT)
        header = header[:124] + b"%011o\0" % length + header[136:156] + kind + header[157:]
        total = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
        out += header[:148] + b"%06o\0 " % total + header[156:] + body
    return out


TARS: dict[str, Callable[[int], bytes]] = {
    "empty files": lambda num: tar_of((b"0", 0, b"")) * num,
    "folders": lambda num: tar_of((b"5", 0, b"")) * num,
    "long names": lambda num: tar_of((b"L", BLOCK, b"n" * BLOCK)) * num,
    "extensions": lambda num: tar_of((b"x", BLOCK, b"9 path=a\n" * 50 + b" " * 62)) * num,
    "a name that says it is huge": lambda num: (
        tar_of((b"L", 1 << 33, b"")) + tar_of((b"0", 0, b"")) * num
    ),
    "extensions that say they are huge": lambda num: (
        tar_of((b"x", 1 << 33, b"")) + tar_of((b"x", MAX_EXTENSION_BYTES, b"")) * num
    ),
    "no headers": lambda num: b"x" * BLOCK * num,
}  # fmt: skip


@pytest.mark.parametrize("name", TARS)
def test_a_tars_headers_are_each_read_once(name: str) -> None:
    sizes = {}
    for num in (20, 40):
        data = TARS[name](num)
        file = CountedFile(data)
        with counted() as count:
            list(Archive(file, len(data)).members())
        assert file.num_read <= len(data) + 2 * BLOCK
        assert file.num_reads <= len(data) // BLOCK + 2
        sizes[num] = count.num_lines
    assert sizes[40] <= MAX_GROWTH * sizes[20]


PACKED: dict[str, Callable[[int], bytes]] = {
    "gzip": lambda num: gzip.compress(b"a" * num),
    "members of gzip": lambda num: gzip.compress(b"") * (num // 20),
    "zeros between members": lambda num: gzip.compress(b"") + b"\0" * num,
    "gzip cut off": lambda num: gzip.compress(bytes(range(256)) * (num // 256))[:-9],
    "zstd": lambda num: zstandard.compress(b"a" * num),
    "frames of zstd": lambda num: zstandard.compress(b"") * (num // 10),
    "damaged zstd": lambda num: zstandard.compress(b"a" * num)[:-3] + b"\xff" * 9,
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_what_is_compressed_is_read_once_and_never_held_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks to the scale of these files."""
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(stream, "PACKED_BYTES", 1 << 9)
    lines = []
    for num in (30_000, 60_000):
        path = tmp_path / f"{num}"
        path.write_bytes(PACKED[name](num))
        file = CountedFile(path.read_bytes())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream, "open_bytes", lambda _, file=file: file)
            text = stream.Stream(path)
            with counted() as count:
                num_text = sum(map(len, text.blocks()))
        assert file.num_read <= len(path.read_bytes()) + 8
        lines.append((count.num_lines, path.stat().st_size + num_text))
    (once, small), (twice, large) = lines
    assert twice <= MAX_LINES * large
    assert twice - once <= MAX_GROWTH * max(once, large - small)


def kernels_of_one_call(export: Export, num: int) -> None:
    for at in range(num):
        export.kernel(at, at + 1, 5)
        export.call(at, at + 1, 5)


def ranges_of_one_name(export: Export, num: int) -> None:
    for at in range(num):
        export.range(at, at + 1, ", seq" * 800)


def ranges_in_ranges(export: Export, num: int) -> None:
    for at in range(num):
        export.range(at, 10**6 - at, "a")


def everything_once(export: Export, num: int) -> None:
    for at in range(num):
        export.kernel(at, at + 1, at, f"k{at}", stream=at, pid=PID + at, grid=(at + 1, 1, 1))
        export.copy(at, at + 1, at, at, kind=at, source=at, target=at)
        export.range(at, at + 9, f"aten::a{at}, op_id = 5, sizes = [[{at}]]", tid=at)


def processes(export: Export, num: int) -> None:
    for at in range(num):
        export.kernel(at % 7, at + 1, at, pid=PID + at % 60)


def names_without_a_key(export: Export, num: int) -> None:
    export.connection.execute("ALTER TABLE StringIds RENAME TO other")
    export.connection.execute("CREATE TABLE StringIds (id INT, value TEXT)")
    for at in range(num):
        export.range(at, at + 9, f"a{at}")
        export.kernel(at, at + 1, at, f"b{at}")


@pytest.mark.parametrize(
    "fill",
    [
        kernels_of_one_call, ranges_of_one_name, ranges_in_ranges, everything_once, processes,
        names_without_a_key,
    ],
)  # fmt: skip
def test_a_databases_steps_grow_no_faster_than_its_rows(
    fill: Callable[[Export, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = [0]
    sized(monkeypatch, database.Database, "tick", work, lambda _: 100)
    monkeypatch.setattr(database, "STEPS_AT_ONCE", 100)
    monkeypatch.setattr(database, "ROWS_AT_ONCE", 64)
    for name in ("USUAL", "NUMBERED", "OPERATOR", "BACKWARD_NODE"):
        monkeypatch.setattr(nvtx, name, CountedPattern(getattr(nvtx, name), work))
    costs = []
    for num in (200, 400):
        export = Export(tmp_path / f"{num}.sqlite")
        fill(export, num)
        source = Source(path=export.close(), label="x", rank=0)
        nvtx.operator_of.cache_clear()
        work[0] = 0
        with counted() as count:
            assert nsys.READER.parts is not None
            nsys.READER.parts(source)
            assert nsys.READER.read_trace is not None
            nsys.READER.read_trace(source, None)
        costs.append(count.num_lines + work[0])
    assert costs[1] <= MAX_GROWTH * costs[0]


def test_a_query_that_goes_round_in_circles_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)")
        connection.commit()
    again = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(x) FROM r"
    source = Source(path=path, label="x", rank=0)
    with database.opened(source) as opened:
        opened.connection.set_authorizer(None)
        with pytest.raises(StepscopeError, match="more steps"):
            list(opened.query(again))


JSONS: dict[str, Bytes] = {
    "digits": lambda size: b"1" * size,
    "open lists": lambda size: b"[" * size,
    "lists in lists": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "objects in objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "one field": lambda size: b"{" + b'"a":1,' * (size // 6) + b'"a":1}',
    "empty objects": lambda size: b"[" + b"{}," * (size // 3) + b"{}]",
    "escapes": lambda size: b'"' + b"\\u00e9" * (size // 6) + b'"',
    "half letters": lambda size: b'"' + b"\\ud800" * (size // 6) + b'"',
    "exponents": lambda size: b"[" + b"1e999," * (size // 6) + b"1]",
    "zeros": lambda size: b"0." + b"0" * size,
}  # fmt: skip


@pytest.mark.parametrize("name", JSONS)
def test_json_costs_lines_and_memory_for_its_bytes(name: str) -> None:
    data = JSONS[name](50_000)

    def read() -> None:
        with contextlib.suppress(ValueError):
            parse_json(data)

    with counted() as count:
        read()
    assert count.num_lines <= MAX_LINES * len(data)
    assert most_held(read) <= (1 << 20) + HELD_PER_BYTE * len(data)


def test_what_counts_does_count(tmp_path: Path) -> None:
    """Reading line after line of a file costs lines of ours and memory."""
    data = PERFETTO["begins"](SIZE)
    lines, held = cost(perfetto.read, tmp_path / "x", data)
    assert lines > len(data) // 30
    assert held > len(data)
    file = CountedFile(b"abc")
    assert (file.read(2), file.read(), file.num_read, file.num_reads) == (b"ab", b"c", 3, 2)
    assert isinstance(file, io.BytesIO)
