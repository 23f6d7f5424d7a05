"""Answers fit, whatever the document is like."""

from __future__ import annotations

import json

import pytest

from stepscope.doors.mcp.answers import ANSWER_BYTES, cut, diagnosis_answer, rows_answer
from stepscope.report.diagnosis.json import to_json
from tests.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_fits(name: str) -> None:
    text = diagnosis_answer(json.loads(to_json(SCENARIOS[name]())))
    assert len(text.encode()) <= ANSWER_BYTES
    told = json.loads(text)
    left = told.get("left_out", {"findings": 0, "notes": 0})
    document = json.loads(to_json(SCENARIOS[name]()))
    assert len(told["findings"]) + left["findings"] == len(document["findings"])
    assert len(told["notes"]) + left["notes"] == len(document["notes"])


def test_as_many_rows_as_fit_and_the_rest_is_counted() -> None:
    rows = [["\u00e4" * 500, number, None] for number in range(10_000)]
    text = rows_answer(["name", "number", "nothing"], rows)
    assert len(text.encode()) <= ANSWER_BYTES
    told = json.loads(text)
    assert told["rows_left_out"] == 10_000 - len(told["rows"])
    assert told["rows"][0][1:] == [0, None]


def test_text_that_is_cut_says_so() -> None:
    assert cut("short") == "short"
    assert len(cut("\u00e4" * 9000).encode()) <= ANSWER_BYTES
    assert cut("x" * 9000).endswith("(cut)")
