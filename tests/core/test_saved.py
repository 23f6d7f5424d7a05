"""A saved diagnosis draws the same reports as the one it was saved from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.saved import load, save
from stepscope.errors import FormatError, InputError
from stepscope.report.diagnosis_view import diagnosis_document
from stepscope.report.document.terminal import to_text
from stepscope.report.json import to_json
from tests.scenarios import SCENARIOS


def test_half_characters_are_replaced_and_the_rest_is_kept(tmp_path: Path) -> None:
    diagnosis = SCENARIOS["evil_names"]()
    save(diagnosis, tmp_path / "d.json")
    loaded = load(tmp_path / "d.json")
    assert to_json(loaded) == to_json(diagnosis).replace("\\ud800", "?")


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"evil_names"}))
def test_what_is_loaded_is_what_was_saved(name: str, tmp_path: Path) -> None:
    diagnosis: Diagnosis = SCENARIOS[name]()
    save(diagnosis, tmp_path / "d.json")
    loaded = load(tmp_path / "d.json")
    assert loaded == diagnosis
    assert to_json(loaded) == to_json(diagnosis)
    assert to_text(diagnosis_document(loaded), width=80) == to_text(diagnosis_document(diagnosis), width=80)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": "other/1", "diagnosis": {}}', b"\xff\xfe"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"d\.json"):
        load(path)


def test_times_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    save(SCENARIOS["comms_eight_ranks"](), path)
    whole = json.loads(path.read_text())
    parts = whole["diagnosis"]["facts"]["ranks"][0]["partition"]["parts"]
    for damaged in ({}, {**parts, "compute": []}, {**parts, "compute": [-1] * len(parts["compute"])}):
        whole["diagnosis"]["facts"]["ranks"][0]["partition"]["parts"] = damaged
        path.write_text(json.dumps(whole))
        with pytest.raises(FormatError, match=r"d\.json.*do not add up"):
            load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing"):
        load(tmp_path / "nothing.json")
