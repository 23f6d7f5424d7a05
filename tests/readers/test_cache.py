"""The cache gives back what was put in, or nothing."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from msgspec.structs import replace

from stepscope.core.trace import Trace
from stepscope.readers import cache
from stepscope.readers.cache_tables import Tables
from stepscope.readers.format import Source
from stepscope.readers.kineto.trace import read as read_kineto
from tests.builders import event, source, step_events, trace_text, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


def _stored(tmp_path: Path, text: str | None = None) -> tuple[Source, Trace, Path]:
    one = source(write(tmp_path / "a.json", trace_text(record_shapes=1) if text is None else text))
    trace = read_kineto(one)
    cache.store(one, trace)
    return one, trace, _place(one)


def _place(one: Source) -> Path:
    place = cache._cache_path(one, None)
    assert place is not None
    return place


def _equal(one: Trace, other: Trace) -> bool:
    columns = all(
        np.array_equal(getattr(one, n), getattr(other, n))
        and getattr(one, n).dtype == getattr(other, n).dtype
        for n in Trace.COLUMNS
    )
    rest = (
        "names",
        "threads",
        "details",
        "collectives",
        "meta",
        "num_raw_events",
        "unknown",
        "notes",
    )
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
    one, _, _ = _stored(tmp_path)
    assert cache.load(one) is not None
    write(tmp_path / "a.json", trace_text(record_shapes=1) + " ")
    assert cache.load(one) is None


def test_other_content_of_the_same_size_and_time_has_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a copy that keeps times leaves, or a build that sets them all: content alone tells
    it."""
    one, _, _ = _stored(tmp_path)
    assert isinstance(one.path, Path)
    state, text = one.path.stat(), one.path.read_bytes()
    real = os.fstat

    def frozen(handle: int) -> os.stat_result:
        told = real(handle)
        if not os.path.samestat(told, state):
            return told
        return os.stat_result(
            told[:10], {"st_mtime_ns": state.st_mtime_ns, "st_ctime_ns": state.st_ctime_ns}
        )

    monkeypatch.setattr(os, "fstat", frozen)
    assert cache.load(one) is not None
    for at in (0, len(text) // 2, len(text) - 1):
        with one.path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([text[at] ^ 1]))
        assert cache.load(one) is None, at
        with one.path.open("r+b") as file:
            file.write(text)
        assert cache.load(one) is not None


def test_a_file_whose_time_was_set_back_has_no_cache(tmp_path: Path) -> None:
    one, _, _ = _stored(tmp_path)
    assert isinstance(one.path, Path)
    state, text = one.path.stat(), one.path.read_bytes()
    one.path.write_bytes(text.replace(b"aten", b"etna"))
    os.utime(one.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert one.path.stat().st_mtime_ns == state.st_mtime_ns
    assert cache.load(one) is None


def test_a_large_file_is_looked_at_in_few_places(tmp_path: Path) -> None:
    for size in (0, 1, 200_000, 300_000, 500 << 20, 1 << 40):
        samples = cache._samples(size)
        assert sum(length for _, length in samples) <= 260 << 10
        assert samples[0][0] == 0
        assert sum(samples[-1]) == size
        ends = [(start, start + length) for start, length in samples]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        if size > 260 << 10:
            assert max(b[0] - a[1] for a, b in pairwise(ends)) <= size // 25


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    one = source(write(tmp_path / "a.json", trace_text()))
    assert isinstance(one.path, Path)
    was = cache.identity(one)
    trace = read_kineto(one)
    one.path.write_text(trace_text() + " ")
    cache.store(one, trace, was)
    assert cache.load(one) is None
    cache.store(one, trace, cache.identity(one))
    assert cache.load(one) is not None


def test_nothing_is_kept_or_read_beside_the_trace(tmp_path: Path, folder: Path) -> None:
    one, _, kept = _stored(tmp_path)
    assert kept.parent == folder
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "kept"]
    forged = kept.read_bytes()
    kept.unlink()
    for name in ("a.json" + cache.SUFFIX, kept.name):
        (tmp_path / name).write_bytes(forged)
    assert cache.load(one) is None


def test_the_cache_of_another_file_is_not_taken(tmp_path: Path) -> None:
    one, _, kept = _stored(tmp_path)
    other = source(write(tmp_path / "b.json", trace_text([event(ts=9)])))
    cache.store(other, read_kineto(other))
    kept.write_bytes(_place(other).read_bytes())
    assert cache.load(one) is None


def test_another_users_cache_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, kept = _stored(tmp_path)
    assert kept.stat().st_mode & 0o077 == 0
    assert kept.parent.stat().st_mode & 0o077 == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert cache.load(one) is None
    for mode in (0o620, 0o602):
        kept.chmod(mode)
        assert cache.load(one) is None
    kept.chmod(0o600)
    assert cache.load(one) is not None


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    one, _, kept = _stored(tmp_path)
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert cache.load(one) is None


def test_the_folder_is_kept_bounded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = []
    for number in range(6):
        one = source(write(tmp_path / f"{number}.json", trace_text([event(ts=number)])))
        cache.store(one, read_kineto(one))
        os.utime(_place(one), (number, number))
        sources.append(one)
    size = max(_place(one).stat().st_size for one in sources)
    others = [
        folder / "notes.txt",
        folder / f"mine{cache.SUFFIX}",
        folder / f".part-young{cache.SUFFIX}",
    ]
    for path in others:
        path.write_bytes(b"x" * size)
    (folder / f".part-old{cache.SUFFIX}").write_bytes(b"x")
    os.utime(folder / f".part-old{cache.SUFFIX}", (1, 1))
    assert cache.load(sources[0]) is not None  # used just now
    monkeypatch.setattr(cache, "MAX_BYTES", 3 * size + 100)
    last = source(write(tmp_path / "last.json", trace_text([event(ts=99)])))
    cache.store(last, read_kineto(last))
    kept = [number for number, one in enumerate(sources) if cache.load(one) is not None]
    assert kept == [0, 5]
    assert cache.load(last) is not None
    assert all(path.exists() for path in others)
    assert not (folder / f".part-old{cache.SUFFIX}").exists()


@pytest.mark.parametrize("home", ["nowhere", "", None])
def test_without_a_home_nothing_is_kept(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPSCOPE_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda _: "~" if home is None else home)
    one = source(write(tmp_path / "a.json", trace_text()))
    cache.store(one, read_kineto(one))
    assert cache.load(one) is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


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
    for _ in range(600):
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
                data[at : at + 8] = chance.choice([2**31, 2**63, 2**64 - 1, 0]).to_bytes(
                    8, "little"
                )
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
    for _ in range(150):
        beside.write_bytes(good)
        data = zstandard.decompress(
            good[cache.HEAD.size :][: cache.HEAD.unpack(good[: cache.HEAD.size])[5]]
        )
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
    assert refused > 75
