"""The compiled scanner gives what the Python one gives, to the nanosecond and to the last name."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from stepscope.core import compiled
from stepscope.core.trace import Trace
from stepscope.errors import StepscopeError
from stepscope.readers.kineto import native
from stepscope.readers.kineto import trace as kineto
from stepscope.readers.kineto.event_decoder import Scanner
from stepscope.readers.trace.columns import Args, InstantArgs
from tests.builders import event, kernel, source, step_events, trace_text
from tests.installed import need
from tests.scanning import damaged_chunks, difference
from tests.shared_data import DEMO, ROOT, lab_trace, needs_shared, shared_traces, some

need("the compiled library")
KEPT_TRACE = ROOT / "tests" / "kept" / "run" / "rank-0" / "window-20.pt.trace.json"
NUM_SEEDS = 300
SEEDS_AT_ONCE = 50
SAMPLES = [
    lab_trace("memory/small_fp32_sgd"),
    lab_trace("rank_traces/pp_gpipe_w4.slow.rank0"),
    lab_trace("single/recompiles.slow"),
    lab_trace("traces/pinn_tiny_kernels.fixed"),
    lab_trace("traces/sage_small_copies.slow.stacks"),
]
NUM_SHARED = 6


def read_with(path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> Trace | str:
    monkeypatch.setattr(kineto, "scanner_for_file", lambda: scanner)
    try:
        return kineto.read(source(path))
    except StepscopeError as problem:
        return str(problem)


def compiled_scanner(num_threads: int = 1) -> native.NativeScanner:
    library = compiled.load()
    assert library is not None
    return native.NativeScanner(library=library, num_threads=num_threads)


def assert_same(one: Trace | str, other: Trace | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    for name in Trace.COLUMNS:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs, name)
    for name in (
        "names", "threads", "details", "collectives", "meta", "num_raw_events", "unknown", "notes",
    ):  # fmt: skip
        assert getattr(one, name) == getattr(other, name), name
    assert (one.memory is None) == (other.memory is None)
    if one.memory is not None and other.memory is not None:
        for name in ("time_ns", "size_bytes", "address", "allocated_bytes", "reserved_bytes"):
            mine, theirs = getattr(one.memory, name), getattr(other.memory, name)
            np.testing.assert_array_equal(mine, theirs, name)
        np.testing.assert_array_equal(one.memory.device_type, other.memory.device_type)
        np.testing.assert_array_equal(one.memory.device, other.memory.device)


KERNEL = (
    b'{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.001, "dur": 2.5, '
    b'"args": {"device": 0, "registers per thread": 16, "grid": [1, 2, 3], "block": [8, 1, 1]}}'
)


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        (b'"gemm"', b'"gemm2"'),
        (b'"gemm"', b'"gem"'),
        (b'"gemm"', b'"gemm\\""'),
        (b'"gemm"', b"7"),
        (b'"kernel"', b'"kernel2"'),
        (b'"kernel"', b'"cpu_op"'),
        (b'"tid": 7,', b'"tid": 77,'),
        (b'"tid": 7,', b'"tid": 7.5,'),
        (b'"tid": 7,', b'"tid": "7",'),
        (b'"tid": 7,', b""),
        (b"16,", b"168,"),
        (b"16,", b"16.5,"),
        (b"16,", b"16 , "),
        (b"16,", b'16, "registers per thread": 17,'),
        (b"16,", b'17, "registers per thread": 16,'),
        (b"[1, 2, 3]", b"[1, 2, 3, 4]"),
        (b"[1, 2, 3]", b"[1, 2, 3]]"),
        (b'"grid": [1, 2, 3], ', b""),
        (b'"args": {', b'"args": {, '),
        (b'"args": {"device"', b'"args": {"Input Dims": [[2]], "device"'),
        (b', "ts"', b' "ts"'),
        (b', "ts"', b',, "ts"'),
        (b"]}}", b"],}}"),
    ],
)
def test_what_is_not_as_guessed_is_read_alike(usual: bytes, other: bytes) -> None:
    assert usual in KERNEL
    changed = KERNEL.replace(usual, other)
    events = [KERNEL] * 6 + [changed] * 3 + [KERNEL] * 3
    assert difference([b", ".join(events)]) is None
    assert difference([b", ".join([KERNEL] * 6), changed, b", ".join([KERNEL] * 6)]) is None


@pytest.mark.parametrize("path", [DEMO, KEPT_TRACE, *SAMPLES], ids=lambda path: path.name)
def test_own_traces_are_read_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pure = read_with(path, Scanner(), monkeypatch)
    for num_threads in (1, 2):
        scanner = compiled_scanner(num_threads)
        assert_same(pure, read_with(path, scanner, monkeypatch))
        assert scanner.num_refused == 0


@needs_shared
def test_shared_traces_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = ("lab/*/*.json.gz", "board/*.json.gz", "public/*/*.json.gz", "repros/*/*/*.json")
    paths = some(shared_traces(*wide), NUM_SHARED)
    assert len(paths) >= NUM_SHARED
    for path in paths:
        pure = read_with(path, Scanner(), monkeypatch)
        assert_same(pure, read_with(path, compiled_scanner(), monkeypatch))


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, SEEDS_AT_ONCE))
def test_damaged_chunks_are_scanned_alike(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        assert difference(damaged_chunks(seed)) is None, f"seed {seed}"


@pytest.mark.parametrize(
    "times",
    [
        ("1", "2"),
        ("1.5", "2.25"),
        ("10.0005", "0.0015"),
        ("10.00050001", "0.00249999"),
        ("-3.0005", "-1"),
        ("1700000000000000", "12"),
        ("1700000000000000.123", "12.5"),
        ("1700000000000000.1235", "12.0005"),
        ("8796093022207.999", "1"),
        ("8796093022207.9999", "1"),
        ("8796093022208", "1.5"),
        ("4611686018427386", "1"),
        ("4611686018427387", "1"),
        ("4611686018427388", "1"),
        ("99999999999999999999", "1"),
        ("1e3", "1E-3"),
        ('"7"', "1"),
        ("null", "1"),
        ("-0", "-0.0"),
    ],
)
def test_times_come_out_alike(times: tuple[str, str]) -> None:
    ts, dur = times
    odd = f'{{"ph": "X", "cat": "cpu_op", "name": "a", "ts": {ts}, "dur": {dur}}}'
    without = f'{{"ph": "X", "cat": "cpu_op", "name": "b", "ts": {ts}}}'
    plain = json.dumps(event(ts=5.001, dur=0.001))
    chunks = [f"{plain}, {odd}", without, plain, f"{odd}, {plain}"]
    assert difference([chunk.encode() for chunk in chunks]) is None


def test_times_that_need_their_text_may_stand_in_different_halves() -> None:
    large = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1700000000000000, "dur": 1}'
    small = '{"ph": "X", "cat": "cpu_op", "name": "b", "ts": 1.00049999999, "dur": 1.5}'
    chunks = [",".join([large] * 10 + [small] * 10), small, large]
    assert difference([chunk.encode() for chunk in chunks]) is None


def test_keys_follow_each_other_otherwise_in_an_event_than_in_its_arguments() -> None:
    names = ["id", *native.argument_names(), "id"]
    inside = [event(args={one: 1, other: 1}) for one, other in pairwise(names)]
    outside = [event(**{one: 1, other: 1}) for one, other in pairwise(names)]
    chunk = json.dumps(inside + outside + inside)[1:-1].encode()
    assert difference([chunk]) is None
    scanner = compiled_scanner()
    scanner.scan(chunk)
    assert scanner.num_refused == 0


def test_chunk_is_not_cut_where_no_json_is() -> None:
    half = json.dumps([event()] * 5)[1:-1]
    chunks = [f"{half},{between}{half}".encode() for between in ("\x0b", "\x0c", " ")]
    assert difference(chunks) is None


def test_refused_chunk_leaves_no_names_behind() -> None:
    chunks = [
        json.dumps(event(name="first")),
        json.dumps(event(name="second")) + ', {"ph": "B", "name": "open", "ts": 1}',
        json.dumps(event(name="third")) + "," + json.dumps(event(name="second")),
        json.dumps(event(name="fourth")) + ', {"ph": "E", "ts": 4}',
    ]
    assert difference([chunk.encode() for chunk in chunks]) is None


def test_details_are_numbered_hosts_first() -> None:
    shaped = event(args={"Input Dims": [[1]], "Collective name": "b"})
    sync = event(cat="cuda_sync", args={"cuda_sync_kind": "Event Sync"})
    both = [kernel(1, 1, 1, **{"Collective name": "a"}), sync, shaped, kernel(1, 1, 1)]
    text = json.dumps(both)[1:-1].encode()
    assert difference([text, text]) is None


def test_no_chunk_of_a_usual_trace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_text(trace_text(step_events()))
    scanner = compiled_scanner()
    assert_same(read_with(path, Scanner(), monkeypatch), read_with(path, scanner, monkeypatch))
    assert scanner.num_refused == 0


def test_library_knows_the_arguments_of_the_records() -> None:
    names = [
        field.encode_name
        for shape in (Args, InstantArgs)
        for field in msgspec.structs.fields(shape)
    ]
    assert sorted(native.argument_names()) == sorted(names)


def test_library_is_no_older_than_its_source() -> None:
    sources = [path.stat().st_mtime for path in (ROOT / "src").rglob("*.c")]
    assert len(sources) == 3
    assert compiled.LIBRARY.stat().st_mtime >= max(sources), "run scripts/build-native"
