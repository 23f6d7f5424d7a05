"""Logs of NCCL beside traces, as a user gives them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.readers.inputs import find_sources
from tests.builders import tar_bytes
from tests.nccl_logs import two_nodes
from tests.shared_data import DEMO, SAMPLES
from tests.wording import mentions


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["diagnose", *map(str, arguments), "--format", "json", "--no-cache"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_log_may_be_named_beside_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job-output"
    log.write_bytes(gzip.compress(b"starting\n" + two_nodes().encode()))
    found = diagnosed(capsys, DEMO, log)
    assert found["nccl"]["world_size"] == 4
    assert len(found["ranks"]) == 1
    assert "nccl" not in diagnosed(capsys, DEMO)


def test_a_folder_gives_its_traces_and_its_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(DEMO, tmp_path / "rank0.json.gz")
    (tmp_path / "notes.txt").write_text("nothing of NCCL\n")
    lines = two_nodes().splitlines(keepends=True)
    for host in ("n0", "n1"):
        (tmp_path / f"nccl.{host}.7.log").write_text(
            "".join(line for line in lines if line.startswith(host))
        )
    (tmp_path / "nccl_debug.n0.12").write_text(lines[0])
    assert [s.path.name for s in find_sources([tmp_path]).logs] == [
        "nccl.n0.7.log",
        "nccl.n1.7.log",
        "nccl_debug.n0.12",
    ]
    found = diagnosed(capsys, tmp_path)
    assert found["nccl"]["hosts"] == ["n0", "n1"]
    assert main(["diagnose", str(tmp_path), "--no-cache", "-v"]) == 0
    (row,) = re.findall(r"\nNCCL .*\n  version +(.*)\n", capsys.readouterr().out)
    assert row == "2.20.5+cuda12.4, 2 hosts"


def test_an_archive_gives_both_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = {
        "run/rank0.json.gz": DEMO.read_bytes(),
        "run/nccl.n0.log": two_nodes().encode(),
        "run/a.txt": b"hello",
    }
    (tmp_path / "run.tar").write_bytes(tar_bytes(members))
    assert diagnosed(capsys, tmp_path / "run.tar")["nccl"]["files"] == [
        f"{tmp_path}/run.tar:run/nccl.n0.log"
    ]


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_log_alone_says_what_it_holds_and_that_no_trace_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_folder: bool
) -> None:
    (tmp_path / "nccl.log").write_text(two_nodes())
    assert main(["diagnose", str(tmp_path if as_folder else tmp_path / "nccl.log"), "-v"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].endswith("nccl.log, no trace")
    assert mentions(text, "no trace")
    assert "P2P/CUMEM/read 4" in text


def test_a_jobs_output_with_nccls_lines_is_read_for_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = diagnosed(capsys, SAMPLES / "formats" / "nccl_2rank_hosts.txt")
    assert found["nccl"]["transports"] == {"NET/Socket": 4}
    assert [one["format"] for one in found["recordings"]] == ["job-log"]
    assert [one["code"] for one in found["advice"]] == ["slow-link"]


def test_a_log_named_like_a_trace_is_called_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text("[2026-11-15 02:02:21] " + two_nodes())
    assert main(["diagnose", str(tmp_path / "x.json")]) == 2
    assert "a log of NCCL" in capsys.readouterr().err
