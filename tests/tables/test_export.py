"""stepscope export: what it writes, and what it says when it cannot."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from tests.builders import event, kernel, trace_text, write
from tests.installed import needs
from tests.live_runs import add_samples, sample, write_rank, write_run
from tests.wording import mentions

STEPS = (1, 2, 3)


def steps_text(**header: Any) -> str:
    marks = [
        event(cat="user_annotation", name=f"ProfilerStep#{i}", ts=i * 1000, dur=990) for i in STEPS
    ]
    launch = event(cat="cuda_runtime", name="cudaLaunchKernel", dur=5)
    calls = [launch | {"ts": i * 1000 + 10, "args": {"correlation": i}} for i in STEPS]
    return trace_text([*marks, *calls, *(kernel(i, i * 1000 + 100, 500) for i in STEPS)], header)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return write(tmp_path / "in" / "one.json", steps_text())


def export(*arguments: object) -> int:
    return main(["export", "perfetto", *map(str, arguments), "--no-cache"])


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert export(*arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    return told.err


@pytest.mark.parametrize(
    "name", ["t.pftrace", "t.perfetto-trace", "t.pftrace.gz", "T.JSON", "t.json.gz"]
)
def test_the_name_tells_the_form(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    target = tmp_path / name
    assert export(trace, "-o", target) == 0
    data = target.read_bytes()
    assert (data[:2] == b"\x1f\x8b") == name.endswith(".gz")
    data = gzip.decompress(data) if name.endswith(".gz") else data
    if "json" in name.lower():
        events = json.loads(data)["traceEvents"]
        assert sum(one.get("cat") == "kernel" for one in events) == 3
    else:
        assert data[0] == 0x0A
    printed = capsys.readouterr().out
    assert "9 events of 1 rank(s)" in printed
    assert "https://ui.perfetto.dev" in printed
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["in", name]), (
        "nothing else is left behind"
    )


@pytest.mark.parametrize("name", ["trace", "trace.txt", "trace.html", "trace.zst", ".gz"])
def test_an_unknown_ending_is_refused(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    told = refused(capsys, trace, "-o", tmp_path / name)
    assert ".pftrace" in told
    assert ".json" in told


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_read(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not exist" in refused(capsys, trace, "-o", tmp_path / "no" / "t.json")
    (tmp_path / "folder.json").mkdir()
    assert "is a folder" in refused(capsys, trace, "-o", tmp_path / "folder.json")
    assert mentions(refused(capsys, trace, "-o", trace), "trace that is")
    assert json.loads(trace.read_text())["traceEvents"]


@needs("Linux")
def test_a_folder_that_refuses_us_is_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, trace, "-o", "/proc/t.json")
    assert "cannot write /proc/t.json" in told
    assert "-o" in told


def test_a_failure_half_way_leaves_the_old_file(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.tables.perfetto.timeline import Timeline

    target = write(tmp_path / "t.json", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Timeline, "add_rank", full)
    assert mentions(refused(capsys, trace, "-o", target), str(target), "no space left")
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "t.json"]


def test_a_run_that_recorded_nothing_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    write_rank(run, 0)
    told = refused(capsys, run, "-o", tmp_path / "t.json")
    assert str(run) in told
    assert "recorded no step" in told
    assert "--start-step" in told


def test_an_empty_trace_and_a_missing_one_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write(tmp_path / "empty.json", trace_text([]))
    assert "no events" in refused(capsys, empty, "-o", tmp_path / "t.json")
    assert "does not exist" in refused(capsys, tmp_path / "no.json", "-o", tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()


def test_a_runs_counters_stand_at_their_time_beside_its_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    folder = write_rank(run, 0)
    # The recording lies 3 s after the rank's perf_counter stood at 0, when the wall clock was
    # WALL_NS.
    wall_ns = json.loads((folder / "rank.json").read_text())["wall_ns"]
    write(
        folder / "window-20.pt.trace.json",
        steps_text(schemaVersion=1, baseTimeNanoseconds=wall_ns + 3_000_000_000 - 1_000_000),
    )
    add_samples(
        folder, [sample(at, 1, devices=[{"device": 0, "gpu_power_w": 100 + at}]) for at in range(8)]
    )
    assert export(run, "-o", tmp_path / "t.json") == 0
    whole = json.loads((tmp_path / "t.json").read_text())
    first = next(one["ts"] for one in whole["traceEvents"] if one.get("name") == "ProfilerStep#1")
    power = [
        (one["ts"], one["args"])
        for one in whole["traceEvents"]
        if one.get("name") == "device 0: gpu_power_w"
    ]
    assert power == [(first, {"W": 103.0}), (first + 1e6, {"W": 104.0})]
    assert whole["baseTimeNanoseconds"] + round(first * 1000) == wall_ns + 3_000_000_000
    assert capsys.readouterr().out.startswith(str(tmp_path / "t.json"))


def test_a_rank_that_cannot_be_read_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "rank0.json", steps_text())
    write(tmp_path / "in" / "rank1.json", '{"traceEvents": nonsense')
    shutil.copy(tmp_path / "in" / "rank0.json", tmp_path / "in" / "rank2.json")
    assert export(tmp_path / "in", "-o", tmp_path / "t.json", "--jobs", "1") == 0
    assert "18 events of 2 rank(s)" in capsys.readouterr().out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert names == ["stepscope", "rank 0", "rank 2"]
    about = next(one["args"]["notes"] for one in events if one["name"].startswith("bound by"))
    assert any("rank1.json" in note for note in about)


def test_what_to_export_and_where_to_are_asked_for(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (
        ["export", "nonsense", str(trace), "-o", "t.json"],
        ["export", "perfetto", str(trace)],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(wrong)
        assert stopped.value.code == 2
    assert "perfetto" in capsys.readouterr().err
