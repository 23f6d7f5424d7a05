"""What an agent asks that has no end, or no end of an answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepscope.doors.mcp import tools
from stepscope.doors.mcp.answers import ANSWER_BYTES
from stepscope.doors.mcp.command import answering
from stepscope.doors.mcp.roots import Roots
from stepscope.errors import UsageError
from tests.installed import need
from tests.shared_data import DEMO

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
