"""`stepscope formats`, and `stepscope diagnose` on what other tools recorded."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from stepscope.cli.main import main
from stepscope.readers import auxiliary
from stepscope.readers.auxiliary import read_auxiliary
from stepscope.readers.format import TRACE
from stepscope.readers.formats import BY_NAME, FORMATS
from stepscope.report.document.markdown import to_markdown
from stepscope.report.formats import formats_table
from tests.format_samples import samples
from tests.live_runs import write_rank, write_run
from tests.shared_data import (
    DEMO,
    SAMPLES,
    lab_trace,
    lab_traces,
    needs_shared,
    shared_traces,
    some,
)
from tests.wording import mentions

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft202012Validator(json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text()))
FILES = SAMPLES / "formats"


def test_the_table_in_the_documentation_is_the_registrys() -> None:
    assert to_markdown((formats_table(),)) in (ROOT / "docs" / "formats.md").read_text()


def test_every_format_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{each.name}: {each.record}" in text for each in FORMATS)
    assert main(["formats", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told["formats"]] == [each.name for each in FORMATS]


def test_files_that_are_looked_at_are_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "train.py"
    other.write_text("print()")
    assert main(["formats", str(DEMO), str(other), "--format", "json"]) == 1
    known, unknown = json.loads(capsys.readouterr().out)["files"]
    assert (known["format"], known["problem"]) == ("kineto", None)
    assert (unknown["path"], unknown["format"]) == (str(other), None)
    assert mentions(unknown["problem"], "not a trace")


@pytest.mark.parametrize("name", ["run.json", "diagnosis.json", "rank-0/rank.json"])
@pytest.mark.parametrize("command", ["formats", "diagnose"])
def test_a_file_of_a_run_leads_to_the_run(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ROOT / "tests" / "kept" / "run"
    assert main([command, str(run / name)]) != 0
    said = capsys.readouterr()
    assert mentions(said.out + said.err, "recorded run", f"run: {run}")


def test_a_run_without_a_recording_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    write_rank(run, 0)
    assert main(["formats", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{run}: ")
    assert mentions(said, "run of 1 rank", "no step")


@pytest.mark.parametrize("command", ["formats", "diagnose", "report", "compare", "query"])
def test_an_empty_path_is_not_this_folder(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "", "select 1"])
    assert ended.value.code == 2
    assert mentions(capsys.readouterr().err, "path", "empty")


def test_a_file_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", str(DEMO)]) == 0
    assert ": kineto (" in capsys.readouterr().out
    (tmp_path / "note.txt").write_text("hello\n")
    assert main(["formats", str(tmp_path / "note.txt")]) == 1
    assert mentions(capsys.readouterr().out, "note.txt", "nor another format")


@pytest.mark.parametrize(
    "name",
    [
        "ncu_raw.csv",
        "memory_stats.json",
        "torch_logs.txt",
        "dmon.txt",
        "ddp_log.txt",
        "topo.txt",
        "peaks.json",
    ],
)
def test_a_recording_alone_is_told(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read once, for three ways to tell it.
    read = cache(lambda *sources: read_auxiliary(sources))
    monkeypatch.setattr(auxiliary, "read_auxiliary", lambda sources: read(*sources))
    assert main(["diagnose", str(FILES / name), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(told)
    assert told["verdict"]["bound"] == "unknown"
    assert told["step"]["ms"] is None
    assert len(told["recordings"]) == 1
    assert told["recordings"][0]["lines"] or told["recordings"][0]["tables"]
    for style in ("text", "markdown"):
        assert main(["diagnose", str(FILES / name), "--no-cache", "--format", style]) == 0
    assert "Not known" in capsys.readouterr().out


def test_beside_a_trace_kernels_weigh_what_they_do_in_the_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["diagnose", str(DEMO), str(FILES / "ncu_raw.csv"), "--no-cache", "--format", "json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(told)
    assert told["verdict"]["bound"] == "data"
    (stalls,) = [one for one in told["advice"] if one["code"] == "memory-stalls"]
    assert stalls["weight_of"] == "the step"
    assert 0.01 < stalls["weight"] < 0.2


def test_evidence_of_a_finding_comes_from_the_log_too(capsys: pytest.CaptureFixture[str]) -> None:
    trace = lab_trace("single/recompiles.slow")
    assert (
        main(
            [
                "diagnose",
                str(trace),
                str(FILES / "torch_logs.txt"),
                "--no-cache",
                "--format",
                "json",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    (finding,) = [one for one in told["findings"] if one["code"] == "recompilation"]
    assert any(mentions(line, "tensor x", "dimension 0") for line in finding["evidence"])
    assert all(one["code"] != "recompilation" for one in told["advice"])


def test_a_log_of_another_run_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.readers.test_formats import MEGATRON

    log = tmp_path / "job.log"
    log.write_text("".join(MEGATRON.format(n=n) for n in range(1, 40)))
    assert main(["diagnose", str(DEMO), str(log), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"]["source"] == "trace"
    assert any(mentions(note, "log", "not used") for note in told["notes"])
    # One whose steps are a little shorter than the profiled ones is.
    log.write_text("".join(MEGATRON.format(n=n).replace("451.0", "65.5") for n in range(1, 40)))
    assert main(["diagnose", str(DEMO), str(log), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"]["source"], told["step"]["ms"]) == ("log", 65.5)


def agreed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands take the file for the same, or refuse it with the same reason."""
    code = main(["formats", str(path)])
    lines = capsys.readouterr().out.splitlines()
    diagnosed = main(["diagnose", str(path), "--no-cache", "--jobs", "1", "--format", "json"])
    captured = capsys.readouterr()
    if code:
        assert diagnosed == 2, lines
        assert lines[0] in captured.err
        return
    named = {name for line in lines for name in BY_NAME if f": {name} (" in line}
    assert named, lines
    # What has no work in it is read, and refused only then.
    if diagnosed and not mentions(captured.err, "nothing", "judged"):
        assert named == {"ncu-rep"}, captured.err  # NVIDIA's module is not here.
        return
    told = json.loads(captured.out)
    recorded = {recording["format"] for recording in told.get("recordings", ())}
    assert recorded <= named
    assert recorded or told["ranks"] or "nccl" in told, "what was named was read"
    assert ("nccl" in told) == ("nccl-log" in named)
    assert bool(told["ranks"]) == any(BY_NAME[name].kind == TRACE for name in named)


@pytest.mark.parametrize(
    "number",
    [number for number, sample in enumerate(samples()) if len(sample.files) == 1],
    ids=lambda number: samples()[number].kind,
)
def test_both_commands_agree_on_what_a_sample_is(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((name, data),) = samples()[number].files.items()
    (tmp_path / name).write_bytes(data)
    agreed(tmp_path / name, capsys)


@pytest.mark.parametrize(
    "path",
    [
        # The sample of a snapshot is a smaller one.
        *(path for path in lab_traces("formats/*") if "snapshot" not in path.name),
        *some(lab_traces("single/*"), 3),
    ],
    ids=lambda path: path.name,
)
def test_both_commands_agree_on_what_a_real_file_is(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agreed(path, capsys)


@needs_shared
def test_both_commands_agree_on_what_a_public_file_is(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [path for path in shared_traces("public/*/*") if path.is_file()]
    assert len(paths) > 4
    for path in some(paths, 6):
        agreed(path, capsys)


def test_both_commands_refuse_for_the_same_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in {
        "a.txt": b"hello\n",
        "b.json": b'{"a": 1}',
        "c.json": b"",
        "d.zip": b"PK\x03\x04",
        "e.json": b"[1]",
    }.items():
        (tmp_path / name).write_bytes(data)
        agreed(tmp_path / name, capsys)
