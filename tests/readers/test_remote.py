"""Traces behind a URL, with fsspec's file system in memory as the store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.errors import InputError
from stepscope.readers import cache, remote
from stepscope.readers.cache import read_trace
from stepscope.readers.inputs import find_sources
from stepscope.readers.kineto.trace import read as read_kineto
from stepscope.readers.remote import RemotePath
from tests.builders import event, tar_bytes, trace_text
from tests.installed import package
from tests.shared_data import DEMO, lab_trace

fsspec = package("fsspec")


@pytest.fixture
def store() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_a_folder_is_listed_and_read(store: Any) -> None:
    for rank in (10, 9):
        store.pipe(f"/job/deep/rank{rank}.json.gz", DEMO.read_bytes())
    for skipped in (".hidden/rank1.json", "rank9.json.gz.stepscope-cache", "readme.md"):
        store.pipe(f"/job/{skipped}", b"[]")
    found = find_sources(["memory://job"])
    assert [source.label for source in found.sources] == [
        "memory:///job/deep/rank9.json.gz",
        "memory:///job/deep/rank10.json.gz",
    ]
    assert [source.rank for source in found.sources] == [9, 10]
    assert len(read_trace(found.sources[0])) == len(read_trace(find_sources([DEMO]).sources[0]))


def test_the_command_gives_what_it_gives_for_local_files(
    store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = lab_trace("single/elementwise_chain.slow").read_bytes()
    for rank in (0, 1):
        store.pipe(f"/job/rank{rank}.json.zst", small)
        (tmp_path / f"rank{rank}.json.zst").write_bytes(small)
    said = []
    for words in (["memory://job/"], [str(tmp_path), "--jobs", "1"], [tmp_path.as_uri()]):
        assert main(["diagnose", *words, "--format", "json", "--no-cache"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_is_opened(store: Any, mode: str) -> None:
    text = trace_text([event(ts=1)], header={}).encode()
    name = "/ranks.tar.gz" if mode == "w:gz" else "/ranks.tar"
    store.pipe(name, tar_bytes({"rank0.json": text, "rank1.json": text}, mode=mode))
    with find_sources([f"memory:/{name}"]) as found:
        assert [len(read_trace(source)) for source in found.sources] == [1, 1]


def test_the_cache_lies_in_the_users_folder_and_follows_the_files_version(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    store.pipe("/rank0.json", trace_text([event(ts=1)], header={}).encode())
    (source,) = find_sources(["memory://rank0.json"]).sources
    cache.store(source, read_kineto(source))
    assert cache.load(source) is not None
    assert len(list(tmp_path.iterdir())) == 1
    assert store.find("/") == ["/rank0.json"]
    store.pipe("/rank0.json", trace_text([event(ts=2)], header={}).encode())
    (changed,) = find_sources(["memory://rank0.json"]).sources
    assert cache.load(changed) is None


def test_a_store_that_tells_no_version_gets_no_cache(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(remote, "VERSION_FIELDS", ())
    store.pipe("/rank0.json", trace_text([event(ts=1)], header={}).encode())
    (source,) = find_sources(["memory://rank0.json"]).sources
    cache.store(source, read_kineto(source))
    assert list(tmp_path.iterdir()) == []
    assert cache.load(source) is None


def test_what_is_not_there_is_said(store: Any) -> None:
    with pytest.raises(InputError, match="memory://nowhere does not exist"):
        find_sources(["memory://nowhere"])
    with pytest.raises(InputError, match="no-such-scheme"):
        find_sources(["no-such-scheme://x"])
    store.pipe("/job/readme.md", b"")
    with pytest.raises(InputError, match=r"memory://job .*no trace"):
        find_sources(["memory://job"])


def test_a_file_that_goes_away_is_said(store: Any) -> None:
    store.pipe("/rank0.json", b"[]")
    (source,) = find_sources(["memory://rank0.json"]).sources
    store.rm("/rank0.json")
    with pytest.raises(InputError, match=r"memory://rank0\.json.*No such file"):
        read_trace(source)


def test_a_missing_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InputError, match="pip install s3fs"):
        find_sources(["s3://bucket/job"])
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InputError, match=r"pip install 'stepscope\[remote\]' gcsfs"):
        find_sources(["gs://bucket/job"])


class BackendError(Exception):
    pass


def test_a_backends_own_errors_are_told_like_any_other(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BackendError("no credentials")

    store.pipe("/rank0.json", b"[]")
    (source,) = find_sources(["memory://rank0.json"]).sources
    monkeypatch.setattr(remote, "_foreign", lambda: (BackendError,))
    monkeypatch.setattr(type(store), "open", refuse)
    with pytest.raises(InputError, match="no credentials"):
        read_trace(source)


def test_a_signature_is_not_printed() -> None:
    path = RemotePath(url="https://host/a/rank3.json.gz?X-Signature=secret", size=1)
    assert str(path) == "https://host/a/rank3.json.gz"
    assert path.name == "rank3.json.gz"
    assert remote.shown("https://me:secret@host/a") == "https://host/a"
