"""What is no trace is called by its name."""

from __future__ import annotations

import gzip
import lzma
import pickle  # noqa: TID251  # written here, never loaded
import sqlite3
import zipfile
from pathlib import Path

import pytest

from stepscope.errors import FormatError, InputError
from stepscope.readers import cache
from stepscope.readers.cache import FOLDER_VARIABLE, read_trace
from stepscope.readers.kineto import trace as kineto
from tests.builders import same, source, tar_bytes, trace_text, write

TEXTS = {
    "a pickle": pickle.dumps({"segments": []}),
    "a Parquet file": b"PAR1....",
    "an Arrow": b"ARROW1\x00\x00",
    "xz-compressed": lzma.compress(b"{}"),
    "lz4-compressed": b"\x04\x22\x4d\x18rest",
    "a web page": b"\n<!DOCTYPE html><html>",
    "rocprofv3": b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}',
    "ncu": b'==PROF== Connected\n"ID","Process ID","Process Name"\n',
    "a log of NCCL": b"host:1:1 [0] NCCL INFO Bootstrap\n",
    "UTF-16": trace_text().encode("utf-16"),
    "UTF-32": trace_text().encode("utf-32"),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    "packed twice": gzip.compress(gzip.compress(b"[]")),
    "a tar archive": tar_bytes({"a.json": b"[]"}),
    "execution trace": b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}',
    "a cache of ours": b"STEPSCOPE-CACHE\x00",
}


@pytest.mark.parametrize("what", sorted(TEXTS))
@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_other_files_are_named_in_the_error(tmp_path: Path, what: str, wrap: object) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(wrap(TEXTS[what]))  # type: ignore[operator]
    with pytest.raises(FormatError, match=what):
        read_trace(source(path))


def test_a_database_and_a_zip_are_named(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "report.sqlite") as base:
        base.execute("create table t (a)")
    base.close()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.json", "[]")
    for name, what in (("report.sqlite", "SQLite"), ("a.zip", "zip archive")):
        with pytest.raises(FormatError, match=what):
            read_trace(source(tmp_path / name))
    write(tmp_path / "a.nsys-rep", b"\x01\x02binary")
    with pytest.raises(FormatError, match="Nsight Systems report"):
        read_trace(source(tmp_path / "a.nsys-rep"))


def test_a_trace_that_mentions_such_things_is_still_a_trace(tmp_path: Path) -> None:
    text = trace_text(header={"note": "NCCL INFO ==PROF== <html> www.speedscope.app"})
    assert len(read_trace(source(write(tmp_path / "a.json", text)))) == 9


def test_nothing_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="zero bytes"):
        read_trace(source(write(tmp_path / "a.json", "")))


def test_only_a_large_trace_is_cached_and_only_when_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.json", trace_text())
    kept = tmp_path / "kept"
    monkeypatch.setenv(FOLDER_VARIABLE, str(kept))
    read_trace(source(path))
    assert not kept.exists()
    monkeypatch.setattr(cache, "MIN_CACHED_BYTES", 100)
    read_trace(source(path), use_cache=False)
    assert not kept.exists()
    first = read_trace(source(path))
    assert kept.exists()
    monkeypatch.setattr(kineto, "READER", None)
    assert same(read_trace(source(path)), first)
