"""From paths to sources, and from sources to ranks."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from stepscope.core.trace import TraceMeta
from stepscope.errors import InputError
from stepscope.readers import inputs
from stepscope.readers.cache import read_trace
from stepscope.readers.inputs import assign_ranks, find_sources
from tests.builders import event, tar_bytes, trace_text, write
from tests.installed import needs
from tests.wording import any_mentions, mentions


def _ranked(number: int) -> bytes:
    return trace_text([event(ts=number)], header={}).encode()


def test_a_folder_is_taken_in_natural_order_and_deep(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        write(tmp_path / f"rank{number}.json.gz", _ranked(number))
    (tmp_path / "deep" / ".hidden").mkdir(parents=True)
    write(tmp_path / "deep" / "rank2.trace.json", _ranked(2))
    for skipped in (".x.json", "notes.txt", "a.json.stepscope-cache", "deep/.hidden/rank4.json"):
        write(tmp_path / skipped, "[]")
    found = find_sources([tmp_path])
    assert [s.path.name for s in found.sources] == [
        "rank2.trace.json",
        "rank1.json.gz",
        "rank9.json.gz",
        "rank10.json.gz",
    ]
    assert [s.rank for s in found.sources] == [2, 1, 9, 10]
    assert not any(s.named for s in found.sources)


def test_files_are_taken_as_named_and_each_once(tmp_path: Path) -> None:
    one, two = write(tmp_path / "b.txt", _ranked(0)), write(tmp_path / "a.json", _ranked(1))
    (tmp_path / "link.json").symlink_to(two)
    found = find_sources([one, str(two), tmp_path / "link.json", tmp_path])
    assert [s.path.name for s in found.sources] == ["b.txt", "a.json"]
    assert [s.named for s in found.sources] == [True, True]
    assert len(found.notes) == 3
    assert "same file" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("job_rank_3.json", 3),
        ("ddp.slow.rank12.pt.trace.json.gz", 12),
        ("RANK=7_host.json", 7),
        ("rank1_of_rank1.json", 1),
        ("lora_rank16_rank2.json", None),
        ("crank5.json", None),
        ("ranking.json", None),
        ("rank.json", None),
        ("trace_3.json", None),
        ("host_1234.1695835535.pt.trace.json", None),
    ],
)
def test_the_name_tells_the_rank_only_when_it_is_clear(
    tmp_path: Path, name: str, rank: int | None
) -> None:
    source = find_sources([write(tmp_path / name, "[]")]).sources[0]
    assert source.rank == rank
    assert source.rank_source == ("not known" if rank is None else "file name")


def test_the_folder_may_tell_the_rank(tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"rank{number}").mkdir()
        write(tmp_path / f"rank{number}" / "trace.json", _ranked(number))
    assert [(s.rank, s.rank_source) for s in find_sources([tmp_path]).sources] == [
        (0, "folder name"),
        (1, "folder name"),
    ]


@pytest.mark.parametrize("wrap", ["plain", "gz", "zst"])
def test_an_archive_is_read_where_it_lies(
    tmp_path: Path, wrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    members = {
        "run/rank10.json.gz": gzip.compress(_ranked(10)),
        "run/rank2.json": _ranked(2),
        "run/README": b"hello",
    }
    data = tar_bytes(members)
    path = tmp_path / {"plain": "a.tar", "gz": "a.tgz", "zst": "a.tar.zst"}[wrap]
    path.write_bytes(
        {"plain": data, "gz": gzip.compress(data), "zst": zstandard.compress(data)}[wrap]
    )
    with find_sources([path]) as found:
        assert [s.rank for s in found.sources] == [2, 10]
        assert [read_trace(s, use_cache=False).start_ns.tolist() for s in found.sources] == [
            [2_000],
            [10_000],
        ]
        assert found.sources[0].label == f"{path}:run/rank2.json"
        assert found.sources[0].archive == path
    assert list((tmp_path / "tmp").iterdir()) == []


def test_hostile_members_are_named_and_never_paths(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in (
            "../../etc/rank1.json",
            "/abs/rank2.json",
            "x" * 300 + "/rank3.json",
            "bell\x07\n/rank4.json",
        ):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"[]"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("rank9.json")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    path = write(tmp_path / "a.tar", buffer.getvalue())
    found = find_sources([path])
    assert sorted(s.rank or 0 for s in found.sources) == [1, 2, 3, 4]
    assert {s.path for s in found.sources} == {path}
    assert "\n" not in "".join(s.label for s in found.sources)
    (note,) = found.notes
    assert mentions(note, str(path), "4 entries", "links", "devices", "sparse", "left out")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_gives_its_members(tmp_path: Path, form: int) -> None:
    names = ["a/rank0.json", "d" * 60 + "/" + "e" * 60 + "/rank1.json", "\u65e5\u672c/rank2.json"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(_ranked(number)), 1.5
            archive.addfile(info, io.BytesIO(_ranked(number)))
    found = find_sources([write(tmp_path / "a.tar", buffer.getvalue())])
    assert {s.label.partition(":")[2] for s in found.sources} == set(names)
    assert [
        read_trace(s, use_cache=False).start_ns.tolist()
        for s in sorted(found.sources, key=lambda s: s.rank or 0)
    ] == [
        [0],
        [1000],
        [2000],
    ]


@pytest.mark.parametrize("cut", range(1, 4000, 311))
def test_a_truncated_archive_gives_what_it_has_or_an_error(tmp_path: Path, cut: int) -> None:
    data = tar_bytes({f"rank{i}.json": _ranked(i) for i in range(3)})
    path = write(tmp_path / "a.tar", data[:cut])
    if cut < 512:
        with pytest.raises(InputError, match=r"\btar\b"):
            find_sources([path])
        return
    found = find_sources([path])
    assert all(s.offset + (s.length or 0) <= cut for s in found.sources)


def test_a_compressed_archive_cut_off_is_read_in_part(tmp_path: Path) -> None:
    data = tar_bytes({f"rank{i}.json": _ranked(i) + os.urandom(5000) for i in range(20)})
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(data)[:50_000])
    with find_sources([path]) as found:
        assert 5 < len(found.sources) < 20
        assert any_mentions(found.notes, "in part")


def test_an_archive_too_large_for_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_ARCHIVE_BYTES", 1000)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes({"rank0.json": _ranked(0)})))
    with pytest.raises(InputError, match="does not fit"):
        find_sources([path])


def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "x.txt", "x")
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path / "none.tar", tar_bytes({"a.txt": b"x"}))
    write(tmp_path / "false.tgz", "hello")
    for name, message in (
        ("missing.json", "does not exist"),
        ("empty", "no trace"),
        ("other", r"no trace .*1 other"),
        ("pipe", "regular file"),
        ("none.tar", "no trace"),
        ("false.tgz", r"\btar\b|unpacked"),
        ("a\x00b", "cannot read"),
    ):
        with pytest.raises(InputError, match=message):
            find_sources([tmp_path / name])
    with pytest.raises(InputError, match="no trace"):
        find_sources([])


def test_a_link_that_leads_nowhere_is_noted(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace_text())
    (tmp_path / "rank1.json").symlink_to(tmp_path / "moved" / "rank1.json")
    (tmp_path / "notes.txt").symlink_to(tmp_path / "moved" / "notes.txt")
    with find_sources([tmp_path]) as inputs:
        assert [source.path.name for source in inputs.sources] == ["rank0.json"]
        (note,) = inputs.notes
    assert mentions(note, str(tmp_path / "rank1.json"), "left out", "link")


@needs("a user who is not root")
def test_a_file_without_permission_is_one_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", "[]")
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        find_sources([path])


def _meta(path: str, rank: int | None = None) -> TraceMeta:
    return TraceMeta(path=path, rank=rank)


def test_ranks_that_are_told_stay_and_the_others_fill_the_gaps() -> None:
    ranks, notes = assign_ranks([_meta("a"), _meta("b", 1), _meta("c"), _meta("d", 0)])
    assert ranks == (2, 1, 3, 0)
    (note,) = notes
    assert mentions(note, "2 trace", "a is 2", "c is 3")


def test_one_trace_alone_is_rank_0_without_a_word() -> None:
    assert assign_ranks([_meta("a")]) == ((0,), ())
    assert assign_ranks([_meta("a", 5)]) == ((5,), ())
    assert assign_ranks([]) == ((), ())


def test_a_rank_told_twice_is_noted() -> None:
    ranks, notes = assign_ranks([_meta("a", 0), _meta("b", 0)])
    assert ranks == (0, 0)
    (note,) = notes
    assert mentions(note, "rank 0", "2 traces", "(a, b)", "not compared")


def test_ranks_missing_of_the_world_are_named() -> None:
    metas = [replace(_meta(str(rank), rank), world_size=16) for rank in (0, 1, 5, 15)]
    (missing,) = assign_ranks(metas)[1]
    assert mentions(missing, "12 of", "16 ranks", "2-4, 6-14")
    assert assign_ranks(metas[:1])[1] == ()
    (note,) = assign_ranks([*metas, replace(_meta("x", 3), world_size=8)])[1]
    assert mentions(note, "different", "(8, 16)")
