"""`stepscope formats`, and `stepscope diagnose` on what other tools recorded."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from stepscope.cli.main import main
from stepscope.readers.formats import FORMATS
from stepscope.report.formats_view import formats_markdown
from tests.shared_data import DEMO, SHARED, needs_shared

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text())
FILES = SHARED / "lab" / "formats"


def test_the_matrix_in_the_documentation_is_the_registrys() -> None:
    assert formats_markdown() in (ROOT / "docs" / "formats.md").read_text()


def test_every_format_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    text = capsys.readouterr().out
    assert all(each.name in text and each.record in text for each in FORMATS)
    assert main(["formats", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told["formats"]] == [each.name for each in FORMATS]


def test_a_file_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", str(DEMO)]) == 0
    assert ": kineto (" in capsys.readouterr().out
    (tmp_path / "note.txt").write_text("hello\n")
    assert main(["formats", str(tmp_path / "note.txt")]) == 1
    assert "nothing that is known here" in capsys.readouterr().out


@needs_shared
@pytest.mark.parametrize(
    "name",
    [
        "ncu_raw.csv",
        "memory_snapshot.pickle.gz",
        "memory_stats.json",
        "torch_logs.txt",
        "dmon.txt",
        "ddp_log.txt",
        "topo.txt",
        "peaks.json",
    ],
)
def test_a_recording_alone_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(FILES / name), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, SCHEMA)
    assert told["verdict"]["bound"] == "unknown"
    assert told["step"]["ms"] is None
    assert len(told["recordings"]) == 1
    assert told["recordings"][0]["lines"] or told["recordings"][0]["tables"]
    for style in ("text", "markdown"):
        assert main(["diagnose", str(FILES / name), "--no-cache", "--format", style]) == 0
    assert "Not known" in capsys.readouterr().out


@needs_shared
def test_beside_a_trace_kernels_weigh_what_they_do_in_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(DEMO), str(FILES / "ncu_raw.csv"), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, SCHEMA)
    assert told["verdict"]["bound"] == "data"
    (stalls,) = [one for one in told["advice"] if one["code"] == "memory-stalls"]
    assert stalls["weight_of"] == "the step"
    assert 0.01 < stalls["weight"] < 0.2


@needs_shared
def test_evidence_of_a_finding_comes_from_the_log_too(capsys: pytest.CaptureFixture[str]) -> None:
    trace = SHARED / "lab" / "single" / "recompiles.slow.pt.trace.json.gz"
    assert main(["diagnose", str(trace), str(FILES / "torch_logs.txt"), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (finding,) = [one for one in told["findings"] if one["code"] == "recompilation"]
    assert any("size of tensor x at dimension 0" in line for line in finding["evidence"])
    assert all(one["code"] != "recompilation" for one in told["advice"])


def test_a_log_of_another_run_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.readers.test_formats import MEGATRON

    log = tmp_path / "job.log"
    log.write_text("".join(MEGATRON.format(n=n) for n in range(1, 40)))
    assert main(["diagnose", str(DEMO), str(log), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"]["source"] == "trace"
    assert any("the log's step time was not used" in note for note in told["notes"])
    # One whose steps are a little shorter than the profiled ones is.
    log.write_text("".join(MEGATRON.format(n=n).replace("451.0", "65.5") for n in range(1, 40)))
    assert main(["diagnose", str(DEMO), str(log), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"]["source"], told["step"]["ms"]) == ("log", 65.5)
