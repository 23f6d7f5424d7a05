"""Structured traces of torch.compile: of a real job whose answer is known, and damaged and hostile
ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.recordings.compiler import CompilerReport
from stepscope.errors import FormatError
from stepscope.readers.auxiliary import read_auxiliary
from stepscope.readers.detect import format_of, head_of
from stepscope.readers.format import Source
from stepscope.recordings.compiler import dynamo_counters, torch_logs, torch_trace
from tests.capture.jobs import WHOLE
from tests.wording import any_mentions

JOB = f"""
{WHOLE}
import json, sys
import torch._dynamo.utils as u
torch._dynamo.config.recompile_limit = 3

@torch.compile(backend="eager", dynamic=False)
def grows(x):
    return x.sin() + x

@torch.compile(backend="eager")
def stops(x):
    y = x * 2
    print("here")
    return y.cos()

for n in range(2, 7):
    grows(torch.ones(3, n))
stops(torch.ones(3))
json.dump(u.counters, open(sys.argv[1], "w"))
json.dump(u.compilation_time_metrics["_compile.compile_inner"], open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that one small job recorded of itself."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(JOB)
    env = os.environ | {
        "TORCH_TRACE": str(folder / "trace"),
        "TORCH_LOGS": "recompiles,graph_breaks,perf_hints",
    }
    done = subprocess.run(
        [sys.executable, "job.py", "counters.json", "seconds.json"],
        cwd=folder,
        env=env,
        capture_output=True,
        check=True,
    )
    (folder / "log.txt").write_bytes(done.stderr)
    return folder


def sources(job: Path) -> list[Source]:
    paths = [*(job / "trace").glob("*.log"), job / "log.txt", job / "counters.json"]
    return [Source(path=path, label=str(path)) for path in paths]


def line_of(text: str) -> int:
    return next(at for at, line in enumerate(JOB.splitlines(), 1) if text in line)


def test_a_real_trace_agrees_with_what_the_job_measured_itself(job: Path) -> None:
    report = torch_trace.read(sources(job)[:1])
    seconds = json.loads((job / "seconds.json").read_text())
    assert report.seconds == pytest.approx(sum(seconds), abs=1e-4)
    assert (
        len(report.compiles)
        == len(seconds)
        == json.loads((job / "counters.json").read_text())["frames"]["total"]
    )
    by_name = {function.name: function for function in report.functions()}
    grows, stops = by_name["grows"], by_name["stops"]
    # Five sizes: the first compiles, two more are compiled again, the fourth hits the limit, the
    # fifth asks no more.
    assert (grows.compiles, grows.recompiles, grows.limit, grows.limit_part) == (
        3,
        2,
        "recompile_limit (3)",
        "grows",
    )
    assert grows.location.endswith(f"job.py:{line_of('def grows') - 1}")
    (size,) = grows.guards
    assert (size.guard.kind, size.guard.subject, size.guard.index, size.values) == (
        "size",
        "x",
        1,
        ("2", "3", "4", "5"),
    )
    assert (stops.compiles, stops.recompiles, stops.limit) == (2, 0, None)
    assert grows.again_s == pytest.approx(sum(seconds[1:3]), abs=1e-4)


def test_a_real_trace_tells_the_line_of_the_break(job: Path) -> None:
    (place,) = torch_trace.read(sources(job)[:1]).break_counts()
    assert (place.graph_break.location, place.graph_break.code, place.count) == (
        f"{job}/job.py:{line_of('here')}",
        'print("here")',
        1,
    )
    assert "print" in place.graph_break.explanation
    assert place.graph_break.hints


def test_log_trace_and_counters_of_one_run_are_one_report(job: Path) -> None:
    trace, log, counters = sources(job)
    readers = (torch_trace, torch_logs, dynamo_counters)
    for source, reader in zip((trace, log, counters), readers, strict=True):
        found = format_of(head_of(source), "a file")
        assert found is not None
        assert found.reader() is reader.READER
    apart = [
        torch_trace.read([trace]),
        torch_logs.read([log]),
        CompilerReport(recordings=(dynamo_counters.read_file(counters),)),
    ]
    whole = CompilerReport(recordings=tuple(chain(*(each.recordings for each in apart))))
    assert whole.num_processes == 1
    assert [(f.name, f.compiles, f.recompiles, f.limit) for f in whole.functions()] == [
        (f.name, f.compiles, f.recompiles, f.limit) for f in apart[0].functions()
    ]
    assert [(place.graph_break.location, place.count) for place in whole.break_counts()] == [
        (place.graph_break.location, place.count) for place in apart[0].break_counts()
    ]
    assert whole.counted[0].limit_hits == 1
    beside = read_auxiliary(
        [
            Source(path=s.path, label=s.label, format=f)
            for s, f in zip((trace, log), ("torch-trace", "torch-logs"), strict=True)
        ]
    )
    assert beside is not None
    assert beside.compiler is not None
    assert {recording.format for recording in beside.recordings} == {"torch-trace", "torch-logs"}


def line(told: dict[str, Any], payload: str = "", process: int = 7) -> str:
    text = f"V1116 07:42:42.929000 {process} torch/_dynamo/utils.py:2009] {json.dumps(told)}\n"
    return text + "".join(f"\t{part}\n" for part in payload.split("\n") if payload)


def metrics(ident: str, **told: Any) -> str:
    frame, number = ident.split("/")
    mine = {"compile_id": ident, "co_name": "f", "co_filename": "m.py", "co_firstlineno": 3, **told}
    return line(
        {"compilation_metrics": mine, "frame_id": int(frame), "frame_compile_id": int(number)}
    )


def read(
    tmp_path: Path, *texts: str | bytes, names: tuple[str, ...] = ("a.log",)
) -> CompilerReport:
    found = []
    for text, name in zip(texts, names, strict=True):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        found.append(Source(path=path, label=str(path)))
    return torch_trace.read(found)


def test_forward_and_backward_of_one_compilation_are_added(tmp_path: Path) -> None:
    backward = {
        "bwd_compilation_metrics": {"compile_id": "0/0", "duration_us": 250_000},
        "frame_id": 0,
        "frame_compile_id": 0,
    }
    report = read(
        tmp_path,
        metrics("0/0", entire_frame_compile_time_s=1.5) + line(backward),
    )
    (compiled,) = report.compiles
    assert (compiled.seconds, compiled.backward_s, compiled.all_seconds) == (1.5, 0.25, 1.75)
    assert (compiled.guards, compiled.limit) == (None, None)


def test_ranks_have_a_file_each_and_the_slowest_counts(tmp_path: Path) -> None:
    names = tuple(f"dedicated_log_torch_trace_rank_{rank}_x.log" for rank in (0, 1))
    report = read(
        tmp_path,
        metrics("0/0", entire_frame_compile_time_s=1.0),
        metrics("0/0", entire_frame_compile_time_s=3.0),
        names=names,
    )
    assert ([each.rank for each in report.compiles], report.seconds) == ([0, 1], 3.0)
    (function,) = report.functions()
    assert (function.compiles, function.seconds) == (1, 3.0)


def test_caches_are_counted_by_what_was_found(tmp_path: Path) -> None:
    names = ["fx_graph_cache_hit"] * 3 + [
        "fx_graph_cache_miss",
        "aotautograd_cache_bypass",
        "fx_graph_cache_hash",
    ]
    text = "".join(
        line({"artifact": {"name": name}, "frame_id": 0, "frame_compile_id": 0}) for name in names
    )
    by_name = {use.cache: use for use in read(tmp_path, text).whole.caches}
    assert (
        by_name["FX graph"].hits,
        by_name["FX graph"].misses,
        by_name["AOTAutograd"].bypassed,
    ) == (3, 1, 1)


def test_a_compilation_without_an_end_is_said(tmp_path: Path) -> None:
    start = {
        "dynamo_start": {"stack": [{"line": 8, "name": "g", "filename": 1}]},
        "frame_id": 4,
        "frame_compile_id": 0,
    }
    report = read(tmp_path, line({"str": ["m.py", 1]}) + line(start))
    (function,) = report.functions()
    assert (function.name, function.location, function.compiles, function.seconds) == (
        "g",
        "m.py:8",
        None,
        None,
    )
    assert any("1 compilations began" in note for note in report.recordings[0].notes)


def test_of_tlparses_folder_raw_log_alone_is_read(tmp_path: Path) -> None:
    reasons = "Failed to trace builtin operator\n  Explanation: no.\n  Hint: do."
    whole = metrics("0/0", entire_frame_compile_time_s=1.0, restart_reasons=[reasons])
    table = json.dumps({"string_table": ["m.py"]})
    entry = {
        "compilation_metrics": {
            "compile_id": "0/0",
            "co_name": "f",
            "duration_us": 2_000_000,
            "restart_reasons": [reasons],
        }
    }
    jsonl = f"{table}\n{json.dumps(entry | {'thread': 7, 'frame_id': 0, 'frame_compile_id': 0})}\n"
    directory = json.dumps({"[-/-]": {"artifacts": []}}, indent=2)
    names = ("tl_out/raw.log", "tl_out/raw.jsonl", "tl_out/compile_directory.json")
    for text in (whole, jsonl, directory):
        assert torch_trace.is_mine(text.encode(), "x")
    report = read(tmp_path, whole, jsonl, directory, names=names)
    assert (report.seconds, [Path(path).name for path in report.recordings[0].paths]) == (
        1.0,
        ["raw.log"],
    )
    alone = read(tmp_path, jsonl, names=("raw.jsonl",))
    (place,) = alone.break_counts()
    assert (alone.seconds, alone.compiles[0].process) == (2.0, 7)
    assert (place.graph_break.reason, place.graph_break.hints, place.graph_break.location) == (
        "Failed to trace builtin operator",
        ("do.",),
        "",
    )
    assert any("payloads" in note for note in alone.recordings[0].notes)
    with pytest.raises(FormatError, match=r"raw\.log"):
        read(tmp_path, directory, names=("compile_directory.json",))


@pytest.mark.parametrize(
    "told",
    [
        {
            "compilation_metrics": {
                "compile_id": 5,
                "entire_frame_compile_time_s": "long",
                "co_firstlineno": [1],
            },
            "frame_id": 0,
        },
        {
            "compilation_metrics": {
                "compile_id": "0/0",
                "entire_frame_compile_time_s": 10**400,
                "graph_op_count": -1,
            }
        },
        {
            "compilation_metrics": {
                "compile_id": "0/0",
                "entire_frame_compile_time_s": -1.0,
                "restart_reasons": 3,
            }
        },
        {"compilation_metrics": [], "frame_id": 10**300, "frame_compile_id": True, "rank": "x"},
        {"dynamo_start": {"stack": [7]}, "frame_id": 0, "frame_compile_id": 0},
        {"str": ["a", "b"], "string_table": {"x": 1}, "artifact": {"name": None}},
        {"artifact": "x", "rank": -1, "thread": []},
    ],
)
def test_wrong_types_and_impossible_numbers_are_not_measurements(
    tmp_path: Path, told: dict[str, Any]
) -> None:
    report = read(tmp_path, line(told))
    assert report.seconds is None


def test_every_cut_of_a_trace_is_read_or_refused_in_words(tmp_path: Path, job: Path) -> None:
    text = next((job / "trace").glob("*.log")).read_bytes()
    whole = torch_trace.read(sources(job)[:1])
    for end in range(0, len(text), max(1, len(text) // 25)):
        try:
            report = read(tmp_path, text[:end])
        except FormatError:
            assert end < 300
        else:
            assert (report.seconds or 0.0) <= (whole.seconds or 0.0)


def test_deep_giant_and_binary_lines_do_no_harm(tmp_path: Path) -> None:
    head = "V1116 07:42:42.929000 7 torch/a.py:1] "
    hostile = (
        head
        + '{"a":'
        + "[" * 200_000
        + "\n"
        + head
        + '{"x": "'
        + "y" * 3_000_000
        + '"}\n'
        + head
        + "{\x00\x1b[2J\n"
    )
    payload = line(
        {"artifact": {"name": "recompile_reasons"}, "frame_id": 0, "frame_compile_id": 1},
        "[" * 100_000,
    )
    endless = line(
        {"artifact": {"name": "dynamo_graph_break_reason"}, "frame_id": 0, "frame_compile_id": 1},
        "x\n" * 50_000,
    )
    report = read(
        tmp_path, hostile + payload + endless + metrics("0/0", entire_frame_compile_time_s=1.0)
    )
    assert report.seconds == 1.0
    assert any_mentions(report.recordings[0].notes, "not be read")


def test_other_files_are_not_claimed() -> None:
    for other in (
        b"",
        b"\x00\x01",
        b'{"traceEvents": []}',
        b"V1116 hello",
        b'{"stats": {"unique_graphs": 1}}',
        b"[]",
        b'[{"ph": "X"}]',
    ):
        assert not torch_trace.is_mine(other, "dedicated_log_torch_trace_rank_0_x.log")


def samples() -> Iterator[tuple[str, str, bytes]]:
    lines = [
        metrics(f"0/{index}", entire_frame_compile_time_s=1.5, graph_op_count=4)
        for index in range(3)
    ]
    artifact = {"artifact": {"name": "recompile_reasons"}, "frame_id": 0, "frame_compile_id": 1}
    lines.append(line(artifact, '["0/0: size mismatch"]'))
    yield "torch-trace", "trace.log", "".join(lines).encode()
