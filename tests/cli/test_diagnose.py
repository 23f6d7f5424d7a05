"""The command as a user runs it: exit codes, words on stderr, and the JSON contract."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.commands import COMMANDS
from stepscope.cli.main import build_parser, main
from stepscope.core.facts import PARTS
from tests.installed import need
from tests.shared_data import DEMO, SAMPLES, lab_trace, unpacked
from tests.wording import mentions

RANK_KEYS = {"peak_waterfall", "rank", "partition_ms", "gpu_busy_ms", "mfu", "device_ns"}
TOP_KEYS = {
    "peak_waterfall",
    "schema",
    "verdict",
    "step",
    "replay",
    "ranks",
    "findings",
    "ladder",
    "abstentions",
    "notes",
    "unknown_events",
}
FINDING_KEYS = {
    "memory",
    "samples_times",
    "code", "bound", "summary", "action", "evidence", "ranks", "changes_numerics",
    "predicted_speedup", "predicted_low", "predicted_high", "predicted_step_ms", "places",
    "alternatives", "excludes", "code_change", "changes_training",
}  # fmt: skip
DEVICE_KEYS = {"span", "busy", "compute", "comms", "copy", "comms_under_compute"}


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["diagnose", *arguments, "--format", "json", "--no-cache"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result: dict[str, Any] = json.loads(captured.out)
    return result


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["diagnose", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_the_json_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(capsys, str(DEMO))
    assert set(found) == TOP_KEYS
    assert found["schema"] == "stepscope.diagnosis/1"
    assert set(found["verdict"]) == {"bound", "second", "summary", "shares"}
    assert set(found["step"]) == {"count", "ms", "profiled_ms", "source"}
    assert set(found["replay"]) == {"ms", "error"}
    assert [set(finding) for finding in found["findings"]][:1] == [FINDING_KEYS]
    assert [set(rank) for rank in found["ranks"]] == [RANK_KEYS]
    assert set(found["ranks"][0]["partition_ms"]) == set(PARTS)
    assert set(found["ranks"][0]["device_ns"]) == DEVICE_KEYS
    waterfall = found["peak_waterfall"]
    assert waterfall == found["ranks"][0]["peak_waterfall"]
    assert sum(part["ns"] for part in waterfall["parts"]) == waterfall["total_ns"]
    assert all(isinstance(value, int) for value in found["ranks"][0]["device_ns"].values())


def test_the_demo_trace_is_bound_by_its_input(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(capsys, str(DEMO))
    assert found["verdict"]["bound"] == "data"
    assert found["step"]["source"] == "trace"
    assert sum(found["ranks"][0]["partition_ms"].values()) == pytest.approx(
        found["step"]["profiled_ms"], rel=1e-12
    )


def test_a_given_step_time_wins(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(capsys, str(DEMO), "--step-ms", "65.5")
    assert found["step"]["ms"] == 65.5
    assert found["step"]["source"] == "given"
    assert found["step"]["profiled_ms"] > 70


def test_demo_runs_with_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "Input-bound" in printed
    assert "serial-loader" in printed
    assert printed.rstrip().endswith("stepscope demo -v")
    assert not mentions(printed, "kernels that take")
    assert main(["demo", "-v"]) == 0
    assert mentions(capsys.readouterr().out, "kernels that take")


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "diagnose" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"),
    [("diagnos", "stepscope diagnose?"), ("plna", "stepscope plan?"), ("zzz", "--help")],
)
def test_a_mistyped_command_gets_what_was_meant(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("events", ["", '{"ph": "M", "name": "process_name", "pid": 1}'])
def test_a_trace_without_work_does_not_pass_for_a_good_one(
    events: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{events}]}}')
    assert main(["diagnose", str(path), "--no-cache"]) == 2
    printed = capsys.readouterr()
    assert "A step takes" not in printed.out
    assert mentions(printed.err, "nothing", "judged")
    assert main(["report", str(path), "--no-cache", "-o", str(tmp_path / "r.html")]) == 2
    assert mentions(capsys.readouterr().err, "nothing", "judged")


def test_steps_without_work_in_them_are_no_verdict_at_any_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1}
        | {"tid": 1, "ts": number * 100, "dur": 90}
        for number in range(4)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": marks}))
    assert main(["diagnose", str(path), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"]["bound"], told["verdict"]["shares"]) == ("unknown", {})
    assert main(["compare", str(path), str(path), "--no-cache"]) in (0, 1)
    assert main(["report", str(path), "--no-cache", "-o", str(tmp_path / "r.html")]) == 0


def test_a_trace_without_steps_has_no_step_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(gzip.decompress(DEMO.read_bytes())[:3_000_000])
    assert main(["diagnose", str(path), "--no-cache"]) == 0
    printed = capsys.readouterr().out
    assert mentions(printed.splitlines()[0], "file ends")
    assert "A step takes" not in printed
    assert not mentions(printed, "of the step is")
    assert re.search("step time .*not measured", printed)
    found = diagnosed(capsys, str(path), "--no-cache")
    assert found["step"]["ms"] is None


def test_several_files_are_ranks_read_in_parallel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = lab_trace("single/elementwise_chain.slow")
    for rank in (3, 10, 9):
        shutil.copy(small, tmp_path / f"rank{rank}.json.zst")
    found = diagnosed(capsys, str(tmp_path), "--jobs", "2")
    assert [rank["rank"] for rank in found["ranks"]] == [3, 9, 10]
    assert len({json.dumps(rank["device_ns"]) for rank in found["ranks"]}) == 1


def test_an_unreadable_rank_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(DEMO, tmp_path / "rank0.json.gz")
    (tmp_path / "rank1.json.gz").write_bytes(b"")
    found = diagnosed(capsys, str(tmp_path), "--jobs", "1")
    assert [rank["rank"] for rank in found["ranks"]] == [0]
    assert any("rank1.json.gz" in note for note in found["notes"])


def test_a_truncated_trace_is_diagnosed_for_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = gzip.decompress(DEMO.read_bytes())
    path = tmp_path / "killed.json"
    path.write_bytes(text[: len(text) * 3 // 4])
    found = diagnosed(capsys, str(path))
    assert any(mentions(note, "complete events") for note in found["notes"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "zero bytes"),
        (b"hello, this is a log", "not a trace"),
        (b'{"a": 1}', "traceEvents"),
        (b"[1, 2, 3]", "trace event"),
        (b"\x80\x04\x95", "pickle"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    path = tmp_path / "input.json"
    path.write_bytes(content)
    message = failed(capsys, str(path))
    assert words in message
    assert "input.json" in message


def test_a_missing_path_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/no/such/trace.json" in failed(capsys, "/no/such/trace.json")


def test_an_empty_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(tmp_path) in failed(capsys, str(tmp_path))


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf", "fast"])
def test_a_senseless_step_time_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["diagnose", "x.json", "--step-ms", value])
    assert stopped.value.code == 2
    assert mentions(capsys.readouterr().err, "--step-ms", "milliseconds")


def test_a_full_disk_is_told_in_words() -> None:
    need("/dev/full")
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "stepscope", "formats"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert "cannot write" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_step_time_that_cannot_be_is_doubted_and_gives_no_mfu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = diagnosed(capsys, str(DEMO), "--step-ms", "0.0655")
    assert found["ranks"][0]["mfu"] is None
    assert any(mentions(note, "given", "step time") for note in found["notes"])


def test_gloo_on_a_gpu_run_is_communication_not_launching(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = diagnosed(capsys, str(lab_trace("formats/ddp_even_rank0")))
    parts = found["ranks"][0]["partition_ms"]
    assert parts["comms_transfer"] > 5 * parts["idle_launch"]
    assert found["verdict"]["bound"] == "comms"


def test_no_events_is_unknown_for_machines_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    assert main(["diagnose", str(path), "--format", "json", "--no-cache"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["bound"] == "unknown"
    assert found["ranks"][0]["partition_ms"] is None
    assert found["ranks"][0]["gpu_busy_ms"] is None


def test_the_options_are_pinned() -> None:
    actions = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert actions is not None
    options = {
        name: sorted(o for a in command._actions for o in a.option_strings)
        for name, command in dict(actions).items()
    }
    assert options == {
        "diagnose": [
            *(
                "--all",
                "--baseline",
                "--budget",
                "--cluster",
                "--devices",
                "--fail-if",
                "--format",
                "--global-batch",
                "--hardware",
                "--help",
                "--jobs",
                "--model",
                "--no-cache",
                "--scaling",
                "--scaling-kind",
                "--seq",
                "--step-ms",
                "--timings",
                "--verbose",
                "-h",
                "-v",
            )
        ],
        "run": [
            *(
                "--every",
                "--evidence",
                "--hardware",
                "--help",
                "--memory",
                "--modules",
                "--no-alerts",
                "--no-diagnose",
                "--no-probe",
                "--otlp",
                "--out",
                "--probe",
                "--prometheus",
            ),
            *(
                "--prometheus-host",
                "--stacks",
                "--start-step",
                "--steps",
                "--verbose",
                "--webhook",
                "--windows",
                "-h",
                "-v",
            ),
        ],
        "report": [
            "--hardware",
            "--help",
            "--jobs",
            "--no-cache",
            "--out",
            "--roofs",
            "--step-ms",
            "-h",
            "-o",
        ],
        "query": [
            "--format",
            "--help",
            "--no-cache",
            "--output",
            "--rows",
            "--step-ms",
            "--to",
            "-h",
            "-o",
        ],
        "probe": ["--budget", "--help", "--python", "--script", "--step-ms", "-h"],
        "export": ["--all", "--help", "--jobs", "--no-cache", "--output", "--step-ms", "-h", "-o"],
        "explain": ["--help", "--list", "-h"],
        "mcp": ["--allow-verify", "--help", "--root", "-h"],
        "serve": ["--help", "--port", "-h"],
        "skill": ["--force", "--help", "--to", "-h"],
        "runs": ["--format", "--help", "--in", "-h"],
        "compare": [
            *(
                "--budget",
                "--fail-if",
                "--format",
                "--hardware",
                "--help",
                "--jobs",
                "--no-cache",
                "--out",
                "--recalibrate",
            ),
            *(
                "--scaling",
                "--scaling-kind",
                "--step-ms",
                "-h",
                "-o",
            ),
        ],
        "verify": [
            *(
                "--allow",
                "--apply",
                "--baseline",
                "--baseline-env",
                "--budget",
                "--candidate",
                "--candidate-env",
                "--check",
            ),
            *(
                "--finding",
                "--format",
                "--from",
                "--help",
                "--max-rounds",
                "--mends",
                "--out",
                "--precision",
                "--predicted",
            ),
            *("--steps", "--threshold", "--timeout", "--tolerance", "--warm-up", "-h"),
        ],
        "tune": [
            *(
                "--as",
                "--budget",
                "--cache",
                "--effective-batch",
                "--format",
                "--free",
                "--from",
                "--help",
                "--knob",
            ),
            *(
                "--no-prune",
                "--no-verify",
                "--out",
                "--seed",
                "--steps",
                "--storage",
                "--timeout",
                "--trials",
                "--warm-up",
                "-h",
            ),
        ],
        "fix": [
            *(
                "--allow-numerics",
                "--budget",
                "--command",
                "--format",
                "--hardware",
                "--help",
                "--max-rounds",
                "--most",
            ),
            *(
                "--no-check",
                "--no-probe",
                "--out",
                "--patch",
                "--precision",
                "--probe",
                "--steps",
                "--threshold",
                "--timeout",
                "--verify",
                "--warm-up",
                "--yes",
                "-h",
            ),
        ],
        "formats": ["--format", "--help", "-h"],
        "demo": ["--format", "--help", "--verbose", "-h", "-v"],
        "watch": ["--help", "--once", "--otlp", "--prometheus", "--prometheus-host", "-h"],
        "health": ["--help", "--out", "--timeout", "-h"],
        "calibrate": [
            "--device",
            "--help",
            "--nccl-tests",
            "--only",
            "--out",
            "--plot",
            "--quick",
            "--ranks",
            "-h",
            "-o",
        ],
        "doctor": ["--format", "--help", "--out", "-h"],
        "attach": ["--every", "--help", "--looks", "-h"],
        "triage": ["--flame", "--format", "--help", "--seconds", "-h"],
        "plan": [
            *(
                "--adapters",
                "--allow-offload",
                "--beside",
                "--bytes",
                "--calibration",
                "--check",
                "--checkpoint",
                "--cluster",
                "--collective",
                "--cp",
            ),
            *(
                "--dp",
                "--emit",
                "--ep",
                "--explain",
                "--format",
                "--framework",
                "--from",
                "--global-batch",
                "--grads",
                "--hardware",
            ),
            *(
                "--help",
                "--host-memory",
                "--largest",
                "--layouts",
                "--measured",
                "--micro-batch",
                "--model",
                "--mtbf",
                "--no-cache",
                "--no-flash",
            ),
            *(
                "--no-sp",
                "--nodes",
                "--nvme",
                "--offload",
                "--optimizer",
                "--out",
                "--pp",
                "--precision",
                "--price",
                "--ranks",
            ),
            *(
                "--ranks-per-node",
                "--recompute",
                "--recompute-every",
                "--recorded-memory",
                "--restart",
                "--rows",
                "--scaling",
                "--schedule",
                "--seq",
                "--smallest",
                "--sp",
                "--step-ms",
            ),
            *(
                "--strong",
                "--tokens",
                "--tp",
                "--vpp",
                "--what-if",
                "--zero",
                "-h",
                "-o",
            ),
        ],
    }


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from stepscope.cli.main import build_parser; build_parser(); print([m for m "
        "in sys.modules if m in HEAVY])"
    )
    heavy = ("numpy", "msgspec", "rich", "zstandard", "zlib_ng", "multiprocessing")
    result = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {heavy}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"


def test_a_commands_line_in_the_help_is_the_first_of_its_docstring() -> None:
    for command in COMMANDS:
        assert command.load().text.splitlines()[0] == command.about
        assert command.about.endswith("."), "the help stops within a sentence"


def test_timings_are_a_table_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(DEMO), "--no-cache", "--format", "json"]) == 0
    plain = capsys.readouterr()
    assert main(["diagnose", str(DEMO), "--no-cache", "--format", "json", "--timings"]) == 0
    printed = capsys.readouterr()
    assert printed.out == plain.out
    assert plain.err == ""
    rows = [line.split() for line in printed.err.splitlines()]
    assert rows[0] == ["stage", "CPU", "s", "wall", "s", "peak", "MB"]
    stages = [row[0] for row in rows[1:] if row[0] != "workers"]
    expected = ["start", "read", "scan", "link", "measure", "replay", "judge", "draw", "all"]
    assert stages == expected


def test_a_command_imports_no_other() -> None:
    code = (
        "import sys; from stepscope.cli.main import build_parser; build_parser(['demo']); "
        "print([m for m in sys.modules if m.startswith('stepscope.live.watch')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "distributed",
    [None, {"rank": 0}, {"backend": "nccl"}, {"backend": "gloo", "rank": 34, "world_size": 300}],
)
def test_a_trace_without_a_device_ends_in_words(
    distributed: dict[str, object] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = json.loads(unpacked(lab_trace("single/nchw.slow")))
    trace["traceEvents"] = [
        event for event in trace["traceEvents"] if event.get("cat") in ("cpu_op", "user_annotation")
    ]
    trace["deviceProperties"] = []
    trace["distributedInfo"] = distributed
    if distributed is None:
        del trace["distributedInfo"]
    path = tmp_path / "host.pt.trace.json"
    path.write_text(json.dumps(trace))
    found = diagnosed(capsys, str(path))
    assert any("no device work" in note for note in found["notes"])
    assert found["ranks"][0]["gpu_busy_ms"] is None


@pytest.mark.parametrize(
    ("name", "format_name"),
    [("topo.txt", "topology"), ("peaks.json", "measured-rates"), ("ddp_log.txt", "job-log")],
)
def test_small_files_of_a_machine_and_a_job_are_read(
    name: str, format_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diagnosed(capsys, str(SAMPLES / "formats" / name))
    assert [one["format"] for one in found["recordings"]] == [format_name]
    assert found["verdict"]["bound"] == "unknown"
