"""Timelines of torch.profiler: raw and table, the real one against a plain sum, and what is
none."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.memory.timeline import ORDER, is_mine, read
from tests.memory_snapshots import source_of
from tests.shared_data import SHARED, needs_shared
from tests.wording import any_mentions

RAW = SHARED / "public" / "hta" / "memory_timeline.raw.gz"
ROWS = [
    [-1, 1, 1000, 0],
    [5_000_000, 2, 300, 7],
    [6_000_000, 3, -300, 7],
    [6_000_000, 3, 300, 4],
    [7_000_000, 2, 50, 5],
    [9_000_000, 4, -300, 4],
]


@needs_shared
def test_the_real_timeline_is_the_plain_sum_of_its_rows() -> None:
    held: Counter[int] = Counter()
    best, at_best = 0, {}
    for _, _, size, category in json.loads(gzip.decompress(RAW.read_bytes())):
        held[category] += size
        if sum(held.values()) > best:
            best, at_best = sum(held.values()), dict(held)
    (record,) = read([Source(path=RAW, label="raw")]).records
    assert record.peak_bytes == best == 3_082_832_104
    assert record.held == {ORDER[category]: size for category, size in at_best.items() if size}
    assert record.held_bytes == sum(held.values())
    assert record.held["activations"] == max(record.held.values())
    assert (record.reserved_bytes, record.num_ooms, record.num_retries) == (None, None, None)


def test_a_small_one_by_hand(tmp_path: Path) -> None:
    (record,) = read([source_of(tmp_path / "m.raw.json", json.dumps(ROWS).encode())]).records
    assert record.peak_bytes == 1350
    assert record.held == {"weights": 1000, "activations": 300, "gradients": 50}
    assert record.most == {"weights": 1000, "unknown": 300, "activations": 300, "gradients": 50}
    assert record.held_bytes == 1050


def test_the_table_form_says_the_same(tmp_path: Path) -> None:
    """As torch/profiler/_memory_profiler.py makes it of the same rows: microseconds, a zero, then
    each category."""
    times = [5000, 5000, 6000, 7000, 9000]
    sizes = [
        [0, 1000, 0, 0, 0, 0, 0, 0, 0],
        [0, 1000, 0, 0, 0, 0, 0, 0, 300],
        [0, 1000, 0, 0, 0, 300, 0, 0, 0],
    ]
    sizes += [[0, 1000, 0, 0, 0, 300, 50, 0, 0], [0, 1000, 0, 0, 0, 0, 50, 0, 0]]
    text = json.dumps([times, sizes]).encode()
    (record,) = read([source_of(tmp_path / "m.json", text)]).records
    assert record.held == {"weights": 1000, "activations": 300, "gradients": 50}
    assert (record.peak_bytes, record.held_bytes) == (1350, 1050)
    for head in (text, text[:10], text[:30], json.dumps(ROWS).encode()):
        assert is_mine(head, "x")


def test_more_freed_than_made_is_told(tmp_path: Path) -> None:
    report = read(
        [source_of(tmp_path / "m.json", json.dumps([[1, 4, -70, 0], [2, 2, 500, 4]]).encode())]
    )
    assert report.records[0].held == {"activations": 500}
    assert any_mentions(report.recordings[0].notes, "more", "freed", "weights")


def test_a_picture_is_refused_with_what_to_record(tmp_path: Path) -> None:
    text = (
        b'<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline '
        b"HTML</title></head>\n<body><img src='x'>"
    )
    assert is_mine(text, "m.html")
    with pytest.raises(FormatError, match=r"m\.html: .*HTML.*raw\.json\.gz"):
        read([source_of(tmp_path / "m.html", text)])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"[[],[]]",
        b"[[1,2],[[0]]]",
        b"[[1],[[0,1,2,3]]]",
        b"[[1,2,3,9]]",
        b"[[1,2,3,4],[1,2,3]]",
        b"[[1,2,3,4],[1,2,3,8]]",
        b"[[1,2,3,4],[1,2,3,-1]]",
        b"[[1,2,3,4],[1,2,9999999999999999999999,4]]",
        b"[[1,2,3,4],[1,2,9000000000000000000,4]]",
        b"[[5],[[0,1,1,1,1,1,1,1,9000000000000000000]]]",
        b"[" * 100_000,
        json.dumps(ROWS).encode()[:-3],
    ],
)
def test_what_is_none_is_refused_in_words(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(FormatError, match=r"^m\.json: .*export_memory_timeline"):
        read([source_of(tmp_path / "m.json", text)])


@pytest.mark.parametrize(
    "text",
    [
        b'[{"ph": "X"}',
        b"[[]]",
        b"[[1.5, 2]]",
        b'[["a", 1]]',
        b'{"a": [[1, 2]]}',
        b"",
        b"<html><body>Memory",
        b"1,2,3",
    ],
)
def test_other_lists_are_not_claimed(text: bytes) -> None:
    assert not is_mine(text, "x.json")


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "memory-timeline", "memory.raw.json", json.dumps(ROWS).encode()
    times, sizes = [5000, 6000, 7000], [[0, 1000, 0, 0, 0, 300, 0, 0, 0]] * 3
    yield "memory-timeline", "memory.json", json.dumps([times, sizes]).encode()
