"""Counters of the allocator as JSON: flat, nested, of several devices; and what is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.memory.stats import is_mine, read
from tests.memory_snapshots import source_of
from tests.recording_texts import texts_of
from tests.shared_data import SAMPLES
from tests.wording import mentions

STATS = SAMPLES / "formats" / "memory_stats.json"
FLAT: dict[str, Any] = {
    "allocated_bytes.all.peak": 9000,
    "allocated_bytes.all.current": 4000,
    "reserved_bytes.all.peak": 12000,
    "inactive_split_bytes.all.peak": 700,
    "num_alloc_retries": 3,
    "num_ooms": 0,
}
NESTED = {"allocated_bytes": {"all": {"peak": 9000, "current": 4000}}, "num_alloc_retries": 3}


def test_the_real_counters() -> None:
    report = read([Source(path=STATS, label="stats")])
    (record,) = report.records
    assert record.peak_bytes == 4_499_450_368
    assert record.reserved_bytes == 4_966_055_936
    assert record.split_bytes == 1_236_438_016
    assert (record.num_retries, record.num_ooms) == (0, 0)
    assert (record.held, record.capacity_bytes, record.reserved_at_peak_bytes) == (None, None, None)
    assert ("peak", "4.50 GB in tensors") in texts_of(report)[0].pairs
    note = report.recordings[0].notes[0]
    assert mentions(note, "4.97 GB were reserved", "3.19 GB", "free", "598 MB")


def test_a_list_of_looks_at_one_device_is_one_record(tmp_path: Path) -> None:
    """Its peaks rise from each to the next; those of four devices do not."""
    looks = [FLAT | {"allocated_bytes.all.peak": 9000 + i} for i in range(4)]
    (record,) = read([source_of(tmp_path / "looks.json", json.dumps(looks).encode())]).records
    assert (record.peak_bytes, len(record.steps), record.device) == (9003, 4, None)
    devices = [looks[1], looks[0], looks[3], looks[2]]
    records = read([source_of(tmp_path / "devices.json", json.dumps(devices).encode())]).records
    assert [(each.device, each.steps) for each in records] == [(i, ()) for i in range(4)]


def test_flat_nested_and_what_is_missing(tmp_path: Path) -> None:
    (flat,) = read([source_of(tmp_path / "flat.json", json.dumps(FLAT).encode())]).records
    assert (flat.peak_bytes, flat.held_bytes, flat.reserved_bytes, flat.split_bytes) == (
        9000,
        4000,
        12000,
        700,
    )
    assert (flat.num_retries, flat.num_ooms) == (3, 0)
    (nested,) = read([source_of(tmp_path / "nested.json", json.dumps(NESTED).encode())]).records
    assert (nested.peak_bytes, nested.num_retries) == (9000, 3)
    assert (nested.num_ooms, nested.reserved_bytes, nested.split_bytes) == (None, None, None)
    for head in (json.dumps(FLAT), json.dumps(NESTED)):
        assert is_mine(head.encode(), "x")


def test_several_devices_and_the_devices_size(tmp_path: Path) -> None:
    two = {
        "cuda:0": {**FLAT, "total_memory": 16000},
        "cuda:1": {**FLAT, "allocated_bytes.all.peak": 1},
    }
    for told in (two, list(two.values())):
        report = read([source_of(tmp_path / "two.json", json.dumps(told).encode())])
        assert [(one.device, one.peak_bytes, one.capacity_bytes) for one in report.records] == [
            (0, 9000, 16000),
            (1, 1, None),
        ]


@pytest.mark.parametrize(
    ("names", "devices"),
    [(("cuda:3", "cuda:1"), [3, 1]), (("7", "2"), [7, 2]), (("first", "2"), [0, 1])],
)
def test_devices_have_the_numbers_that_they_are_named_by(
    tmp_path: Path, names: tuple[str, str], devices: list[int]
) -> None:
    report = read(
        [source_of(tmp_path / "two.json", json.dumps(dict.fromkeys(names, FLAT)).encode())]
    )
    assert [one.device for one in report.records] == devices


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b'{"allocated_bytes.all.peak": "many"}',
        b'{"allocated_bytes.all.peak": -1}',
        b'{"allocated_bytes.all.peak": true}',
        b'{"allocated_bytes": {"all": 5}}',
        b'{"allocated_bytes.all.peak": 1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
        b"\xff\xfe\x00",
        json.dumps(FLAT).encode()[:-9],
    ],
)
def test_what_is_none_is_refused_in_words(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(FormatError, match=r"^stats\.json: .*memory_stats"):
        read([source_of(tmp_path / "stats.json", text)])


def test_a_trace_that_mentions_counters_is_not_claimed() -> None:
    assert not is_mine(
        b'{"x": 1, "traceEvents": [{"name": "allocated_bytes.all.peak", '
        b'"allocated_bytes.all.peak": 1}',
        "x",
    )
    assert not is_mine(b'step 1: "allocated_bytes.all.peak": 5', "log.txt")
    assert not is_mine(b'{"Total Reserved": 5}', "x.json")


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "memory-stats", "stats.json", json.dumps(FLAT).encode()
    yield "memory-stats", "nested.json", json.dumps([NESTED] * 2).encode()
