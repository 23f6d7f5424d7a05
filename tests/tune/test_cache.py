"""The tuning cache: what comes back, what never does, and files that somebody else wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.errors import InputError
from stepscope.tune.cache import CacheEntry, CacheKey, TuningCache
from tests.installed import need

KEY = CacheKey(
    what="train.py",
    shapes="batch=32",
    dtype="float32",
    device="H200",
    versions={"torch": "2.8", "python": "3.12"},
)
ENTRY = CacheEntry(
    key=KEY,
    settings={"num_workers": 4, "pin": True, "lr": 0.5, "mode": "off"},
    ns=1e6,
    baseline_ns=2e6,
    checked=True,
)
OTHER = replace(
    ENTRY,
    key=replace(KEY, versions={"torch": "2.7", "python": "3.12"}),
    at="2020-01-01T00:00:00+00:00",
)


def test_what_was_kept_comes_back_with_its_types(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "new" / "tuned.jsonl")
    assert cache.find(KEY) is None
    cache.add(ENTRY)
    entry = cache.find(replace(KEY, versions={"python": "3.12", "torch": "2.8"}))
    assert entry == ENTRY
    assert {name: type(value) for name, value in entry.settings.items()} == {
        "num_workers": int,
        "pin": bool,
        "lr": float,
        "mode": str,
    }


def test_other_versions_are_near_and_never_found(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuned.jsonl")
    cache.add(OTHER)
    assert cache.find(KEY) is None
    assert cache.near(KEY) == [OTHER]
    assert cache.near(replace(KEY, device="A100")) == []
    assert cache.near(OTHER.key) == []


def test_a_checked_record_is_believed_over_a_newer_unchecked_one(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuned.jsonl")
    old = replace(ENTRY, at="2020-01-01T00:00:00Z")
    cache.add(old)
    cache.add(replace(ENTRY, ns=5e5, at="2024-01-01T00:00:00Z", checked=False))
    assert cache.find(KEY) == old
    newer = replace(ENTRY, ns=7e5, at="2024-01-01T00:00:00Z")
    cache.add(newer)
    assert cache.find(KEY) == newer


def test_caches_are_merged(tmp_path: Path) -> None:
    mine, theirs = TuningCache(tmp_path / "mine.jsonl"), TuningCache(tmp_path / "theirs.jsonl")
    mine.add(replace(ENTRY, at="2024-01-01T00:00:00Z"))
    theirs.add(replace(ENTRY, at="2023-01-01T00:00:00Z", ns=1.0))
    theirs.add(OTHER)
    assert theirs.export_to(tmp_path / "out.jsonl").added == 2
    with (tmp_path / "out.jsonl").open("a") as file:
        file.write("nonsense\n")
    counts = mine.import_from(tmp_path / "out.jsonl")
    assert (counts.added, counts.replaced, counts.kept, counts.refused) == (1, 0, 1, 1)
    assert mine.find(KEY) is not None
    assert mine.find(OTHER.key) == OTHER
    again = mine.import_from(tmp_path / "out.jsonl")
    assert (again.added, again.replaced, again.kept) == (0, 0, 2)


def test_forgetting_leaves_the_rest(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuned.jsonl")
    cache.add(ENTRY)
    cache.add(OTHER)
    assert cache.forget([KEY]) == 1
    assert cache.entries() == [OTHER]


@pytest.mark.parametrize(
    "broken",
    [
        {"ns": -1.0}, {"ns": 0}, {"ns": "1"}, {"v": 2}, {"settings": {"a": [1]}},
        {"settings": {"a": None}}, {"at": "yesterday"},
        {"what": "x" * 5000}, {"settings": {str(i): i for i in range(300)}},
        {"versions": {"torch": 2}},
        {"settings": {"a": 10**30}}, {"checked": "yes"},
    ],
)  # fmt: skip
def test_lines_that_are_no_records_are_counted_and_left(
    tmp_path: Path, broken: dict[str, object]
) -> None:
    cache = TuningCache(tmp_path / "tuned.jsonl")
    cache.add(ENTRY)
    line = json.loads((tmp_path / "tuned.jsonl").read_text())
    (tmp_path / "tuned.jsonl").write_text(json.dumps({**line, **broken}) + "\n")
    assert cache.entries() == []
    assert cache.num_unread() == 1


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\x00", b"[" * 100_000, b'{"v": 1, "ns": 1e999}', b"NaN", b"\0" * 100]
)
def test_hostile_bytes_do_no_harm(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tuned.jsonl"
    path.write_bytes(data)
    cache = TuningCache(path)
    assert cache.entries() == []
    cache.add(ENTRY)
    assert cache.find(KEY) == ENTRY
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputError, match="no tuned settings"):
        cache.import_from(tmp_path / "x")


def test_a_record_out_of_bounds_is_refused_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="out of bounds"):
        TuningCache(tmp_path / "t.jsonl").add(replace(ENTRY, ns=float("nan")))


def test_a_cache_behind_a_url_is_a_folder_of_records(tmp_path: Path) -> None:
    need("fsspec")
    cache = TuningCache(f"memory://stepscope-test-{tmp_path.name}/cache")
    assert cache.entries() == []
    cache.add(ENTRY)
    cache.add(OTHER)
    assert cache.find(KEY) == ENTRY
    assert cache.near(KEY) == [OTHER]
    cache.add(replace(ENTRY, checked=False, ns=1.0))
    assert cache.find(KEY) == ENTRY
    assert cache.export_to(tmp_path / "out.jsonl").added == 2
    assert (
        TuningCache(tmp_path / "mine.jsonl")
        .import_from(f"memory://stepscope-test-{tmp_path.name}/cache")
        .added
        == 2
    )
    assert cache.forget([KEY]) == 1
    assert cache.entries() == [OTHER]


@pytest.mark.parametrize("text", ["import torch\nprint(1)\n", "\x00\x01", '{"v": 2}'])
def test_an_export_leaves_a_file_alone_that_is_no_cache(tmp_path: Path, text: str) -> None:
    mine, script = TuningCache(tmp_path / "mine.jsonl"), tmp_path / "train.py"
    mine.add(ENTRY)
    script.write_text(text)
    with pytest.raises(InputError, match="no tuning cache"):
        mine.export_to(script)
    assert script.read_text() == text
    assert {path.name for path in tmp_path.iterdir()} <= {
        "mine.jsonl",
        ".mine.jsonl.lock",
        "train.py",
    }


def test_an_export_adds_to_a_cache_that_is_there(tmp_path: Path) -> None:
    mine, shared = TuningCache(tmp_path / "mine.jsonl"), TuningCache(tmp_path / "shared.jsonl")
    mine.add(replace(ENTRY, at="2024-01-01T00:00:00Z"))
    shared.add(OTHER)
    with (tmp_path / "shared.jsonl").open("a") as file:
        file.write("a line of another version")
    first = mine.export_to(tmp_path / "shared.jsonl")
    assert (first.added, first.replaced, first.kept, first.refused) == (1, 0, 0, 1)
    mine.add(replace(ENTRY, at="2025-01-01T00:00:00Z", ns=3.0))
    second = mine.export_to(tmp_path / "shared.jsonl")
    assert (second.added, second.replaced, second.kept) == (0, 1, 0)
    third = mine.export_to(tmp_path / "shared.jsonl")
    assert (third.added, third.replaced, third.kept) == (0, 0, 1)
    assert {entry.key.digest for entry in shared.entries()} == {KEY.digest, OTHER.key.digest}
    winner = shared.find(KEY)
    assert winner is not None
    assert winner.ns == 3.0
    assert "a line of another version" in (tmp_path / "shared.jsonl").read_text()


def test_an_export_to_a_folder_behind_a_url_adds_records(tmp_path: Path) -> None:
    need("fsspec")
    url = f"memory://stepscope-export-{tmp_path.name}/cache"
    TuningCache(url).add(OTHER)
    mine = TuningCache(tmp_path / "mine.jsonl")
    mine.add(ENTRY)
    assert mine.export_to(url).added == 1
    assert {entry.key.digest for entry in TuningCache(url).entries()} == {
        KEY.digest,
        OTHER.key.digest,
    }
