"""A log of NCCL with no trace: what it holds is told, and where NCCL fell back to a slower way it
is advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from stepscope.cli.main import main
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.readers.format import Source
from stepscope.recordings.nccl.log import read as read_nccl_logs
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.terminal import to_text
from stepscope.rules.comms.slow_link import advise_by_log
from stepscope.rules.without_trace import diagnose_auxiliary
from tests.format_samples import written
from tests.nccl_logs import two_nodes
from tests.shared_data import ROOT, SAMPLES, SMALL
from tests.wording import mentions

VALIDATOR = Draft202012Validator(json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text()))


def log_of(path: Path) -> NcclLog:
    return read_nccl_logs([Source(path=path, label=str(path))])


def test_sockets_in_a_real_log_are_advice() -> None:
    diagnosis = diagnose_auxiliary(
        Auxiliary(), (), log_of(SAMPLES / "formats" / "nccl_2rank_hosts.txt")
    )
    (one,) = diagnosis.advice
    assert one.code == "slow-link"
    assert "NCCL_IB_DISABLE=1" in one.summary
    assert one.evidence[0] == "connections: 4 NET/Socket"
    assert one.weight is None, "no trace says what it costs"
    VALIDATOR.validate(json.loads(to_json(diagnosis)))
    assert "NET/Socket 4" in to_text(diagnosis_document(diagnosis))
    assert diagnosis.verdict.bound == "unknown"
    assert diagnosis.notes[-1].startswith("judged here: comms;")


@pytest.mark.parametrize("name", ["nccl_1rank.txt", "nccl_2rank.txt"])
def test_a_log_that_shows_no_slow_link_is_no_advice(name: str) -> None:
    log = log_of(SAMPLES / "formats" / name)
    assert advise_by_log(log) is None
    assert diagnose_auxiliary(Auxiliary(), (), log).facts.nccl is log


def test_what_goes_through_the_host_is_advice(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(two_nodes())
    fast = log_of(path)
    shared = two_nodes().replace("P2P/CUMEM/read", "SHM/direct/direct")
    assert shared != two_nodes()
    path.write_text(shared)
    slow = advise_by_log(log_of(path))
    assert slow is not None
    assert any("shared host memory" in line for line in (slow.summary, *slow.evidence))
    before = advise_by_log(fast)
    assert before is None or not any(
        "shared host memory" in line for line in (before.summary, *before.evidence)
    )


def test_the_verdict_says_what_was_found_and_that_nothing_was() -> None:
    summary = diagnose_auxiliary(
        Auxiliary(), (), NcclLog(library="nccl", files=("a.log",), versions=(), hosts=())
    ).verdict.summary
    assert mentions(summary, "(comms)", "no fault")


def test_the_verdict_names_what_a_real_log_shows() -> None:
    summary = diagnose_auxiliary(
        Auxiliary(), (), log_of(SAMPLES / "formats/nccl_2rank_hosts.txt")
    ).verdict.summary
    assert summary.endswith("It shows: slow-link.")


def test_a_snapshot_beside_a_trace_leaves_no_need_for_the_profilers_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = written("memory-snapshot", tmp_path)
    for paths, is_needed in (([str(SMALL)], True), ([str(SMALL), str(snapshot)], False)):
        assert main(["diagnose", *paths, "--format", "json", "--no-cache"]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any("profile_memory=True" in note for note in notes) is is_needed
