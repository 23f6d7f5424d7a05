"""torch._dynamo.utils.counters as JSON, whole, damaged and hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.recordings.compiler import CompilerReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.compiler import dynamo_counters
from tests.wording import any_mentions

ITEM = (
    "Unsupported Tensor.item() call with capture_scalar_outputs=False\n  Explanation: Dynamo does "
    "not support tracing it.\n"
    "  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True`.\n\n  Developer debug "
    "context: item () {}\n"
)
LIMIT = (
    "Dynamo recompile limit exceeded\n  Explanation: exceeding the recompile_limit cache size "
    "limit (currently set to 4)."
)
BRANCH = "Data-dependent branching\n  Explanation: Detected data-dependent branching."
COUNTERS = {
    "frames": {"total": 14, "ok": 12},
    "unimplemented": {LIMIT: 2, BRANCH: 1, "Observed exception\n  Explanation: x": 9},
    "graph_break": {ITEM: 3},
    "stats": {"calls_captured": 20, "unique_graphs": 11},
    "aot_autograd": {"total": 12, "autograd_cache_miss": 12, "ok": 11},
    "inductor": {"fxgraph_cache_hit": 2, "fxgraph_cache_miss": 13, "fxgraph_cache_bypass": 1},
}


def read(tmp_path: Path, *files: bytes | dict[str, Any]) -> CompilerReport:
    sources = []
    for at, told in enumerate(files):
        path = tmp_path / f"counters{at}.json"
        path.write_bytes(told if isinstance(told, bytes) else json.dumps(told).encode())
        sources.append(Source(path=path, label=path.name))
    return CompilerReport(recordings=tuple(map(dynamo_counters.read_file, sources)))


def test_counts_of_a_real_run_are_taken_as_they_stand(tmp_path: Path) -> None:
    report = read(tmp_path, COUNTERS)
    (counted,) = report.counted
    assert (counted.frames, counted.frames_ok, counted.graphs, counted.limit_hits) == (
        14,
        12,
        11,
        2,
    )
    assert {use.cache: (use.hits, use.misses, use.bypassed) for use in report.whole.caches} == {
        "FX graph": (2, 13, 1),
        "AOTAutograd": (0, 12, 0),
    }
    item, branch = report.break_counts()
    assert (item.graph_break.reason, item.count, item.graph_break.location) == (
        ITEM.split("\n", maxsplit=1)[0],
        3,
        "",
    )
    assert item.graph_break.hints == ("Set `torch._dynamo.config.capture_scalar_outputs = True`.",)
    assert (branch.graph_break.reason, branch.count) == ("Data-dependent branching", 1)


def test_what_was_not_counted_is_not_zero(tmp_path: Path) -> None:
    report = read(tmp_path, {"graph_break": {ITEM: 1}})
    assert (
        report.counted[0].frames,
        report.counted[0].graphs,
        report.whole.caches,
        report.seconds,
    ) == (
        None,
        None,
        (),
        None,
    )


def test_processes_are_not_added_up(tmp_path: Path) -> None:
    report = read(tmp_path, COUNTERS, COUNTERS)
    assert [(place.count, place.processes) for place in report.break_counts()] == [(3, 2), (1, 2)]
    assert [recording.paths for recording in report.recordings] == [
        ("counters0.json",),
        ("counters1.json",),
    ]


@pytest.mark.parametrize("end", [1, 20, 100, 400, 700])
def test_a_cut_file_is_refused_with_what_to_do(tmp_path: Path, end: int) -> None:
    with pytest.raises(FormatError, match=r"counters0\.json.*json\.dump"):
        read(tmp_path, json.dumps(COUNTERS).encode()[:end])


@pytest.mark.parametrize(
    "told",
    [
        b"[]",
        b"{}",
        b'{"stats": 3}',
        b'{"stats": {"unique_graphs": "many"}}',
        b"{" * 5000,
        b"\xff\xfe",
    ],
)
def test_other_json_and_garbage_are_refused_in_words(tmp_path: Path, told: bytes) -> None:
    with pytest.raises(FormatError, match=r"[Ww]rite (it|them)"):
        read(tmp_path, told)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        read(tmp_path, b'{"stats": ' + b"[" * 200_000 + b"]" * 200_000 + b"}")


def test_huge_files_are_refused_before_they_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo_counters, "MAX_BYTES", 100)
    with pytest.raises(FormatError, match="MiB"):
        read(tmp_path, COUNTERS)


def test_what_is_no_count_is_left_out_and_said(tmp_path: Path) -> None:
    odd = {
        "stats": {"unique_graphs": -1, "calls_captured": 2, "x": 1e99, "y": True, "z": None},
        "later": [1],
    }
    report = read(tmp_path, odd)
    assert report.counted[0].graphs is None
    assert any_mentions(report.recordings[0].notes, "5 entries", "not counts", "left out")


def test_it_is_known_by_its_sections_not_by_its_name() -> None:
    assert dynamo_counters.is_mine(json.dumps(COUNTERS).encode(), "x")
    assert dynamo_counters.is_mine(json.dumps(COUNTERS, indent=2).encode()[:200], "x")
    others = (
        b"{}",
        b'{"active.all.peak": 3}',
        b'{"stats": {"total": 3}}',
        b'{"schemaVersion": 1}',
        b'[{"graph_break": {}}]',
        b"",
    )
    assert not any(dynamo_counters.is_mine(other, "counters.json") for other in others)


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "dynamo-counters", "counters.json", json.dumps(COUNTERS).encode()
