"""Compressed files: whole, in several parts, damaged, and made to hurt."""

from __future__ import annotations

import bz2
import gzip
import zlib
from pathlib import Path

import pytest
import zstandard

from stepscope.errors import FormatError, InputError
from stepscope.readers import stream
from stepscope.readers.kineto.trace import read as read_kineto
from tests.builders import event, same, source, trace_text
from tests.wording import any_mentions, mentions

TEXT = trace_text().encode()


def _zstd(data: bytes, **options: int) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]),
        gzip.compress(TEXT) + b"\x00" * 1000,
        _zstd(TEXT),
        _zstd(TEXT[:100]) + _zstd(TEXT[100:]),
        bz2.compress(TEXT),
        bz2.compress(TEXT[:100]) + bz2.compress(TEXT[100:]),
    ],
    ids=["plain", "gzip", "two members", "padded", "zstd", "two frames", "bzip2", "two streams"],
)
def test_every_wrapping_gives_the_same_trace(
    tmp_path: Path, data: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "t.json"
    plain.write_bytes(TEXT)
    expected = read_kineto(source(plain))
    monkeypatch.setattr(stream, "BLOCK_BYTES", block)
    # The name says nothing about the content.
    plain.write_bytes(data)
    trace = read_kineto(source(plain))
    assert same(trace, expected)
    assert trace.notes == ()


def test_bytes_after_the_gzip_data_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(TEXT) + b"garbage")
    trace = read_kineto(source(path))
    assert len(trace) == 9
    (note,) = trace.notes
    assert mentions(note, "in part", "gzip", "left out")


@pytest.mark.parametrize("pack", [gzip.compress, _zstd, lambda data: bz2.compress(data, 1)])
def test_a_truncated_file_keeps_what_came_before(tmp_path: Path, pack: object) -> None:
    events = [
        event(ts=i, name=f"op{zlib.crc32(bytes([i % 256, i // 256]))}") for i in range(20_000)
    ]
    data = pack(trace_text(events).encode())  # type: ignore[operator]
    path = tmp_path / "t.json.gz"
    path.write_bytes(data[: len(data) // 2])
    trace = read_kineto(source(path))
    trace.self_check()
    assert 5_000 < len(trace) < 15_000
    assert any_mentions(trace.notes, "ends before")


@pytest.mark.parametrize("pack", [gzip.compress, _zstd, lambda data: bz2.compress(data, 1)])
def test_damage_inside_ends_the_file_there(tmp_path: Path, pack: object) -> None:
    events = [
        event(ts=i, name=f"op{zlib.crc32(bytes([i % 256, i // 256]))}") for i in range(20_000)
    ]
    data = bytearray(pack(trace_text(events).encode()))  # type: ignore[operator]
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    path = tmp_path / "t.json.gz"
    path.write_bytes(data)
    trace = read_kineto(source(path))
    trace.self_check()
    assert trace.notes


@pytest.mark.parametrize(
    "data",
    [
        b"\x1f\x8b",
        b"\x1f\x8b\x08\x00junk",
        gzip.compress(b"", mtime=0),
        b"\x28\xb5\x2f\xfd",
        _zstd(b""),
        bz2.compress(b""),
    ],
)
def test_compressed_nothing_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"t\.json\.gz .*nothing"):
        read_kineto(source(path))


@pytest.mark.parametrize(
    ("pack", "filling"),
    [
        pytest.param(gzip.compress, b" ", id="spaces"),
        pytest.param(_zstd, b" ", id="spaces of zstd"),
        pytest.param(_zstd, b'{"ph":"X","ts":1,"dur":1},', id="events"),
        pytest.param(gzip.compress, b"[", id="brackets"),
        pytest.param(_zstd, b'"', id="quotes"),
        pytest.param(gzip.compress, b"1,", id="numbers"),
    ],
)
def test_a_bomb_is_stopped(
    tmp_path: Path, filling: bytes, pack: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "EXPANSION_FREE_BYTES", 1 << 20)
    # What is read at a time: of rubbish, each entry takes the slow path.
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1 << 17)
    path = tmp_path / "t.json.gz"
    path.write_bytes(pack(b"[" + filling * ((6 << 20) // len(filling))))  # type: ignore[operator]
    if filling in (b'"', b"1,"):
        with pytest.raises(FormatError, match="none of"):
            read_kineto(source(path))
        return
    trace = read_kineto(source(path))
    trace.self_check()
    assert any_mentions(trace.notes, "expands", "200 times")
    assert trace.meta.size_bytes <= 200 * path.stat().st_size + (2 << 20)


def test_a_zstd_window_beyond_reason_is_refused_with_advice(tmp_path: Path) -> None:
    options = zstandard.ZstdCompressionParameters.from_level(1, window_log=30)
    packer = zstandard.ZstdCompressor(compression_params=options).compressobj()
    path = tmp_path / "t.json.zst"
    path.write_bytes(packer.compress(TEXT) + packer.flush())
    with pytest.raises(InputError, match="without --long"):
        read_kineto(source(path))


def test_zstd_data_that_end_at_once_are_not_called_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json.zst"
    path.write_bytes(zstandard.compress(TEXT)[:6])
    with pytest.raises(InputError, match="zstd data"):
        read_kineto(source(path))


def test_damage_in_a_small_gzip_file_keeps_what_came_before_it(tmp_path: Path) -> None:
    text = "".join(f"{number * 7919 % 100_003} " for number in range(20_000)).encode()
    packed = bytearray(gzip.compress(text, mtime=0))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    path = tmp_path / "t.gz"
    path.write_bytes(packed)
    damaged = stream.Stream(path)
    read = b"".join(damaged.blocks())
    assert damaged.problem is not None
    assert read[: len(text) // 3] == text[: len(text) // 3]
