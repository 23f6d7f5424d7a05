"""What an agent asks that has no end, or no end of an answer."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepscope.doors.mcp import tools
from stepscope.doors.mcp.answers import ANSWER_BYTES
from stepscope.doors.mcp.command import answering
from stepscope.doors.mcp.roots import Roots
from stepscope.errors import UsageError
from tests.installed import need
from tests.shared_data import DEMO, ROOT

ENDLESS = "with recursive r as (select 1 union all select 1 from r) select count(*) from r"


@pytest.fixture
def asked(tmp_path: Path) -> tools.Tools:
    shutil.copy(DEMO, tmp_path / "demo.json.gz")
    return tools.Tools(Roots.of([tmp_path]))


def test_sql_without_an_end_is_ended(asked: tools.Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    need("duckdb", "pyarrow")
    monkeypatch.setattr(tools, "QUERY_S", 0.2)
    with pytest.raises(UsageError, match=r"0\.2 s .*\bended\b"):
        asked.query("demo.json.gz", ENDLESS)
    monkeypatch.setattr(tools, "QUERY_S", 60.0)
    assert "[[1]]" in asked.query("demo.json.gz", "select 1")


def test_an_answer_of_many_megabytes_is_refused(
    asked: tools.Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("duckdb", "pyarrow")
    monkeypatch.setattr(tools, "MAX_ROWS_BYTES", 2 << 20)
    with pytest.raises(UsageError, match=r"\b2 MiB\b"):
        asked.query("demo.json.gz", f"select repeat('a', {(2 << 20) + 1})")


def test_a_refusal_is_as_short_as_an_answer(asked: tools.Tools) -> None:
    need("mcp")
    with pytest.raises(Exception, match="no finding called") as refused:
        answering(asked.explain)(code="x" * 100_000)
    assert len(str(refused.value).encode()) <= ANSWER_BYTES


@pytest.mark.parametrize("code", [0, 1, 3])
def test_what_verify_proved_is_told(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tools.Tools(Roots.of([tmp_path]), ("python", "train.py"))
    document = (ROOT / "tests" / "kept" / "0.2.0" / "verification.json").read_text()
    started: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(words)
        return subprocess.CompletedProcess(words, code, stdout=document, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    told = json.loads(asked.verify("num_workers=4"))
    known = json.loads(document)
    assert told["verdict"] == known["verdict"]
    assert told["speedup"] == known["speedup"]
    ((*_, verify, apply, form, kind, dashes, python, script),) = started
    assert (verify, apply, form, kind) == ("verify", "--apply=num_workers=4", "--format", "json")
    assert (dashes, python, script) == ("--", "python", "train.py")


def test_a_verify_that_ended_without_a_document_is_refused_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tools.Tools(Roots.of([tmp_path]), ("python", "train.py"))
    for code, out in ((2, "{}"), (0, "no document")):
        ended = subprocess.CompletedProcess([], code, stdout=out, stderr="stepscope: not so\n")
        monkeypatch.setattr(subprocess, "run", lambda *_, ended=ended, **__: ended)
        with pytest.raises(UsageError, match="not so"):
            asked.verify("num_workers=4")
