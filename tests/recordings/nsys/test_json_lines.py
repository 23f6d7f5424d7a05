"""Nsight Systems' JSON: the lines of its manual and of public reports, and a whole recording whose
SQLite export, written as JSON, gives the same facts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.cli.main import main
from stepscope.core.trace import Kind, Launch, Trace
from stepscope.errors import FormatError
from stepscope.readers.cache import read_trace
from stepscope.readers.detect import detect
from stepscope.readers.format import Source
from stepscope.recordings.nsys import json_lines
from stepscope.recordings.nsys import sqlite as nsys_sqlite
from tests.format_samples import trimmed
from tests.nsys_files import write_export
from tests.shared_data import DEMO, lab_trace
from tests.wording import any_mentions

MAIN_THREAD, PROCESS = 0x00010A16CF0A16CF, 0x00010A16CF000000
STRINGS = ["[Unknown]", "[Max depth]", "nvjet_tst", "cuLaunchKernelEx", "cudaMemcpyAsync_v3020"]
KERNEL = {
    "Type": 79,
    "CudaEvent": {
        "startNs": "140564259", "endNs": "140619331", "correlationId": 745, "deviceId": 1,
        "contextId": "1", "streamId": "7", "eventClass": 3, "globalPid": str(PROCESS),
        "kernel": {
            "demangledName": "2", "shortName": "2", "gridX": 4, "gridY": 2, "gridZ": 1,
            "blockX": 128, "blockY": 1, "blockZ": 1, "registersPerThread": 32,
            "staticSharedMemory": 16, "dynamicSharedMemory": 48,
        },
    },
}  # fmt: skip
COPY = {
    "Type": 80,
    "CudaEvent": {
        "startNs": "145769443", "endNs": "146102147", "correlationId": 1138, "deviceId": 1,
        "contextId": "1", "streamId": "43", "eventClass": 1, "globalPid": str(PROCESS),
        "memcpy": {
            "sizebytes": "58720256", "copyKind": "2", "srcKind": 2, "dstKind": 1, "copyCount": "1"
        },
    },
}  # fmt: skip


def call(start: int, end: int, correlation: int, name: int, event_class: int) -> dict[str, Any]:
    body = {
        "startNs": str(start), "endNs": str(end), "correlationId": correlation,
        "eventClass": event_class, "name": str(name), "returnValue32": 0,
        "globalTid": str(MAIN_THREAD),
    }  # fmt: skip
    return {"Type": 48, "TraceProcessEvent": body}


def nvtx(**more: Any) -> dict[str, Any]:
    body = {
        "Type": 59, "Timestamp": "27651616", "GlobalTid": str(MAIN_THREAD),
        "EndTimestamp": "1450326304", "DomainId": "0", "NsTime": True,
    }  # fmt: skip
    return {"Type": 59, "NvtxEvent": body | more}


EVENTS = [
    {"Type": 27, "CommEvent": {"anything": 1}},
    nvtx(Text="iteration 16"),
    call(140547168, 140562944, 745, 3, 1),
    KERNEL,
    call(145737344, 145764320, 1138, 4, 0),
    COPY,
    call(150000000, 150000001, 0, 1, 27),
]


def written(folder: Path, *lines: Any) -> Source:
    path = folder / "run.json"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return Source(path=path, label="run.json")


def rows_of(trace: Trace) -> list[tuple[str, str, int, int]]:
    return sorted(
        (Kind(kind).name, trace.names[name], int(start), int(dur))
        for kind, name, start, dur in zip(
            trace.kind, trace.name, trace.start_ns, trace.dur_ns, strict=True
        )
    )


BY_LINE = [{"type": "String", "id": str(i), "value": text} for i, text in enumerate(STRINGS)]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*EVENTS, {"data": STRINGS}], id="strings last"),
        pytest.param([{"data": STRINGS}, *EVENTS], id="strings first"),
        pytest.param([*EVENTS, *BY_LINE], id="line by line"),
    ],
)
def test_events_of_a_report(lines: list[Any], tmp_path: Path) -> None:
    source = written(tmp_path, *lines)
    assert [each.name for each in detect(source, [])] == ["nsys-json"]
    trace = json_lines.read(source)
    trace.self_check()
    assert rows_of(trace) == [
        ("KERNEL", "nvjet_tst", 140564259, 55072),
        ("MARK", "iteration 16", 27651616, 1422674688),
        ("MEMCPY", "Memcpy DtoH (Device -> Pinned)", 145769443, 332704),
        ("RUNTIME", "cuLaunchKernelEx", 140547168, 15776),
        ("RUNTIME", "cudaMemcpyAsync", 145737344, 26976),
    ]
    at = int(np.flatnonzero(trace.is_kind(Kind.KERNEL))[0])
    assert (trace.device[at], trace.stream[at], trace.correlation[at]) == (1, 7, 745)
    assert trace.details[trace.detail[at]] == Launch(
        grid=(4, 2, 1), block=(128, 1, 1), registers=32, shared_bytes=64, occupancy_pct=None
    )
    assert trace.size_bytes[trace.is_kind(Kind.MEMCPY)].tolist() == [58720256]


def test_a_registered_string_names_a_range(tmp_path: Path) -> None:
    trace = json_lines.read(written(tmp_path, KERNEL, nvtx(TextId="1"), {"data": STRINGS}))
    assert ("MARK", "[Max depth]", 27651616, 1422674688) in rows_of(trace)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    other = {"Type": 79, "CudaEvent": {"startNs": "1", "endNs": "2", "unknown": {}}}
    wait = {"Type": 106, "CudaEvent": {"startNs": "1", "endNs": "2", "sync": {"eventId": 1}}}
    source = written(
        tmp_path, KERNEL, other, wait, nvtx(Text="a", NsTime=False), {"Type": 48, "CudaEvent": 3}
    )
    trace = json_lines.read(source)
    assert len(trace) == 1
    for words in (
        ("1 line", "not as nsys"),
        ("1 NVTX event", "nanoseconds"),
        ("1 CUDA event", "no kernel"),
        ("strings",),
        ("no devices",),
    ):
        assert any_mentions(trace.notes, *words)


@pytest.mark.parametrize("number", ["9" * 30, "-1", "x"])
def test_numbers_that_are_none_do_no_harm(number: str, tmp_path: Path) -> None:
    bad = json.loads(json.dumps(KERNEL))
    bad["CudaEvent"]["globalPid"] = bad["CudaEvent"]["startNs"] = number
    trace = json_lines.read(written(tmp_path, KERNEL, bad, {"data": STRINGS}))
    assert [row[0] for row in rows_of(trace)] == ["KERNEL"]


def test_a_file_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no events"):
        json_lines.read(written(tmp_path, {"Type": 27, "CommEvent": {}}))


def as_json(export: Path, path: Path) -> Path:
    """The events of an SQLite export, as the JSON export writes them."""
    with closing(sqlite3.connect(export)) as connection:
        connection.row_factory = sqlite3.Row

        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}

        def rows(table: str) -> list[sqlite3.Row]:
            if table not in there:
                return []
            return list(connection.execute(f"SELECT * FROM {table}"))  # noqa: S608

        lines: list[Any] = []
        for row in rows("CUPTI_ACTIVITY_KIND_KERNEL"):
            names = KERNEL["CudaEvent"]["kernel"]  # type: ignore[index]
            lines.append(_cuda(row, 79, "kernel", {name: row[name] for name in names}))
        for row in rows("CUPTI_ACTIVITY_KIND_MEMCPY"):
            kinds = {name: row[name] for name in ("copyKind", "srcKind", "dstKind")}
            lines.append(_cuda(row, 80, "memcpy", kinds | {"sizebytes": str(row["bytes"])}))
        lines += [_cuda(row, 80, "memset", {}) for row in rows("CUPTI_ACTIVITY_KIND_MEMSET")]
        for row in rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
            line = call(row["start"], row["end"], row["correlationId"], row["nameId"], 0)
            line["TraceProcessEvent"]["globalTid"] = str(row["globalTid"])
            lines.append(line)
        for row in rows("NVTX_EVENTS"):
            text = {"Text": row["text"]} if row["textId"] is None else {"TextId": row["textId"]}
            body = {
                "Type": row["eventType"], "Timestamp": str(row["start"]), "NsTime": True,
                "EndTimestamp": str(row["end"]), "GlobalTid": str(row["globalTid"]),
                "DomainId": str(row["domainId"]),
            }  # fmt: skip
            lines.append({"Type": row["eventType"], "NvtxEvent": body | text})
        strings = dict(connection.execute("SELECT id, value FROM StringIds").fetchall())
    lines.append({"data": [strings.get(i, "[Unknown]") for i in range(max(strings) + 1)]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _cuda(row: sqlite3.Row, number: int, what: str, body: dict[str, Any]) -> dict[str, Any]:
    event = {
        "startNs": str(row["start"]), "endNs": str(row["end"]), "deviceId": row["deviceId"],
        "streamId": str(row["streamId"]), "correlationId": row["correlationId"],
        "globalPid": str(row["globalPid"]), what: body,
    }  # fmt: skip
    return {"Type": number, "CudaEvent": event}


def exported(folder: Path, trace: Path) -> Path:
    kineto = read_trace(Source(path=trace, label="same"), use_cache=False)
    return write_export(kineto, folder / "run.sqlite")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("nsys"), lab_trace("single/launch_tiny.fixed"))


@pytest.fixture(scope="module")
def lines(database: Path) -> Path:
    return as_json(database, database.with_name("run.json"))


def test_both_exports_of_a_recording_give_the_same_facts(database: Path, lines: Path) -> None:
    one, other = (
        measure_rank(build_context(trace, None), 0)
        for trace in (
            nsys_sqlite.read(Source(path=database, label="same")),
            json_lines.read(Source(path=lines, label="same")),
        )
    )
    for name in ("steps", "kernels", "ops", "marks", "phases", "launches", "categories", "copies"):
        assert getattr(other, name) == getattr(one, name), name
    assert other.steps.is_step_interval
    assert other.kernels


def test_diagnose_reads_it(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(lines), "-v"]) == 0
    assert "steps detected by" in capsys.readouterr().out.replace("\n", " ")


def samples() -> Iterator[tuple[str, str, bytes]]:
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        trace.write_bytes(trimmed(DEMO))
        export = exported(Path(folder), trace)
        yield "nsys-json", "run.json", as_json(export, Path(folder, "run.jsonl")).read_bytes()
