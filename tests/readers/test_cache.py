"""The cache gives back what was put in, or nothing."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard

from stepscope.core.trace import Trace
from stepscope.readers import cache
from stepscope.readers.cache_tables import Tables
from stepscope.readers.kineto import read_kineto
from stepscope.readers.source import Source
from tests.builders import event, source, step_events, trace_text, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


def _stored(tmp_path: Path, text: str | None = None) -> tuple[Source, Trace, Path]:
    one = source(write(tmp_path / "a.json", trace_text(record_shapes=1) if text is None else text))
    trace = read_kineto(one)
    cache.store(one, trace)
    return one, trace, tmp_path / ("a.json" + cache.SUFFIX)


def _equal(one: Trace, other: Trace) -> bool:
    columns = all(
        np.array_equal(getattr(one, n), getattr(other, n)) and getattr(one, n).dtype == getattr(other, n).dtype
        for n in Trace.COLUMNS
    )
    rest = ("names", "threads", "details", "collectives", "meta", "num_raw_events", "unknown", "notes")
    return columns and all(getattr(one, name) == getattr(other, name) for name in rest)


def test_everything_comes_back(tmp_path: Path) -> None:
    one, trace, _ = _stored(tmp_path, trace_text([*step_events(), event(cat="odd", ts=-3, dur=-1)]))
    loaded = cache.load(one)
    assert loaded is not None
    loaded.self_check()
    assert _equal(loaded, trace)
    assert loaded.memory is not None
    assert trace.memory is not None
    assert np.array_equal(loaded.memory.address, trace.memory.address)
    assert loaded.notes
    assert loaded.unknown


def test_a_trace_without_events_comes_back(tmp_path: Path) -> None:
    one, trace, _ = _stored(tmp_path, "[]")
    loaded = cache.load(one)
    assert loaded is not None
    assert _equal(loaded, trace)


def test_a_changed_file_has_no_cache(tmp_path: Path) -> None:
    one, _, _ = _stored(tmp_path)
    assert isinstance(one.path, Path)
    state = one.path.stat()
    os.utime(one.path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert cache.load(one) is None
    os.utime(one.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert cache.load(one) is not None
    one.path.write_bytes(one.path.read_bytes() + b" ")
    os.utime(one.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert cache.load(one) is None


def test_another_version_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, _ = _stored(tmp_path)
    for number in ("FORMAT", "SCHEMA"):
        with monkeypatch.context() as patch:
            patch.setattr(cache, number, 999)
            assert cache.load(one) is None
    assert cache.load(one) is not None


def test_a_link_counts_by_what_it_points_to(tmp_path: Path) -> None:
    one, _, _ = _stored(tmp_path)
    assert isinstance(one.path, Path)
    (tmp_path / "link.json").symlink_to(one.path)
    link = source(tmp_path / "link.json")
    cache.store(link, read_kineto(link))
    assert cache.load(link) is not None
    one.path.write_text("[]")
    assert cache.load(link) is None


def test_the_name_and_the_rank_are_those_of_now(tmp_path: Path) -> None:
    one, _, _ = _stored(tmp_path, trace_text(header={}))
    loaded = cache.load(replace(one, label="new", rank=4, rank_source="file name"))
    assert loaded is not None
    assert (loaded.meta.path, loaded.meta.rank, loaded.meta.rank_source) == ("new", 4, "file name")
    one, _, _ = _stored(tmp_path)
    loaded = cache.load(replace(one, rank=4, rank_source="file name"))
    assert loaded is not None
    assert (loaded.meta.rank, loaded.meta.rank_source) == (3, "distributedInfo")


def test_a_member_of_an_archive_goes_to_the_cache_folder(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path / "a.tar", trace_text())
    one = Source(path=path, label="a.tar:x", length=path.stat().st_size, archive=path)
    cache.store(one, read_kineto(one))
    assert len(list(folder.iterdir())) == 1
    assert cache.load(one) is not None
    assert cache.load(replace(one, offset=512)) is None


def test_a_folder_that_cannot_be_written_sends_it_to_the_cache_folder(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_one = cache._write

    def refuse(path: Path, parts: list[bytes]) -> None:
        if path.parent != folder:
            raise PermissionError(13, "read-only")
        write_one(path, parts)

    monkeypatch.setattr(cache, "_write", refuse)
    one, _, beside = _stored(tmp_path)
    assert not beside.exists()
    assert cache.load(one) is not None


def test_nowhere_to_write_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "file", "x")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "file" / "below"))
    one, trace, _ = _stored(tmp_path)
    member = replace(one, archive=one.path)
    cache.store(member, trace)
    assert cache.load(member) is None
    gone = source(tmp_path / "gone.json")
    cache.store(gone, trace)
    assert cache.load(gone) is None


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    one, _, beside = _stored(tmp_path)
    beside.unlink()
    os.mkfifo(beside)
    assert cache.load(one) is None


def test_nothing_is_left_of_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    _stored(tmp_path)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a.json"]


def _rewritten(path: Path, change: dict[str, object]) -> None:
    """The cache with other tables, and a head that fits them."""
    data = path.read_bytes()
    head = list(cache.HEAD.unpack(data[: cache.HEAD.size]))
    table, columns = data[cache.HEAD.size :][: head[5]], data[cache.HEAD.size + head[5] :]
    tables = msgspec.json.decode(zstandard.decompress(table))
    tables.update(change)
    table = zstandard.compress(msgspec.json.encode(tables))
    head[5] = len(table)
    path.write_bytes(cache.HEAD.pack(*head) + table + columns)


@pytest.mark.parametrize(
    "change",
    [
        {"names": []},
        {"threads": []},
        {"details": []},
        {"collectives": []},
        {"details": [[None, None, None]] * 10},
        {"columns": []},
        {"num_raw_events": -1},
        {"meta": None},
        {"names": [1, 2]},
        {"columns": [["start_ns", "i8", False, 2**60, 10]]},
        {"columns": [["start_ns", "f8", False, 9, 10]]},
        {"columns": [["start_ns", "i8", False, -1, -1]]},
    ],
)
def test_tables_that_do_not_fit_make_it_absent(tmp_path: Path, change: dict[str, object]) -> None:
    one, _, beside = _stored(tmp_path)
    _rewritten(beside, {})
    assert cache.load(one) is not None
    _rewritten(beside, change)
    assert cache.load(one) is None


def test_a_bomb_in_a_cache_is_not_unpacked(tmp_path: Path) -> None:
    one, _, beside = _stored(tmp_path)
    data = beside.read_bytes()
    head = list(cache.HEAD.unpack(data[: cache.HEAD.size]))
    bomb = zstandard.ZstdCompressor().compressobj(size=2**40).compress(b" " * 1000) + b"rest"
    head[5:] = [len(bomb), 0]
    beside.write_bytes(cache.HEAD.pack(*head) + bomb)
    assert cache.load(one) is None


def test_any_damage_makes_it_absent_or_harmless(tmp_path: Path) -> None:
    one, trace, beside = _stored(tmp_path)
    good = beside.read_bytes()
    chance = random.Random(5)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            how, at = chance.randrange(4), chance.randrange(len(data))
            if how == 0:
                data[at] ^= 1 << chance.randrange(8)
            elif how == 1:
                data[at : at + chance.randint(1, 9)] = chance.randbytes(chance.randint(0, 9))
            elif how == 2:
                del data[at:]
                data += b"\x00"
            else:
                data[at : at + 8] = chance.choice([2**31, 2**63, 2**64 - 1, 0]).to_bytes(8, "little")
        beside.write_bytes(data)
        loaded = cache.load(one)
        if loaded is not None:
            loaded.self_check()
            assert _equal(loaded, trace)


def test_damage_to_the_numbers_themselves_is_noticed(tmp_path: Path) -> None:
    one, _, beside = _stored(tmp_path)
    chance = random.Random(7)
    good = beside.read_bytes()
    refused = 0
    for _ in range(500):
        beside.write_bytes(good)
        data = zstandard.decompress(good[cache.HEAD.size :][: cache.HEAD.unpack(good[: cache.HEAD.size])[5]])
        columns = msgspec.json.decode(data, type=Tables).columns
        column = chance.choice(columns)
        column.dtype, column.delta, column.length = (
            chance.choice(["i1", "i2", "i4", "i8"]),
            chance.random() < 0.5,
            chance.randint(0, 20),
        )
        _rewritten(beside, {"columns": columns})
        loaded = cache.load(one)
        if loaded is None:
            refused += 1
        else:
            loaded.self_check()
    assert refused > 250
