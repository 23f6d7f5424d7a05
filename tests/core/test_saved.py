"""A saved diagnosis draws the same reports as the one it was saved from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.kernels import KernelRecording, KernelReport
from stepscope.core.saved import NOT_KEPT, load, save
from stepscope.errors import FormatError, InputError
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.view import diagnosis_document
from stepscope.report.document.terminal import to_text
from stepscope.report.recordings.text import recording_texts
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
    assert to_text(diagnosis_document(loaded), width=80) == to_text(
        diagnosis_document(diagnosis), width=80
    )


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"format": "other/1", "diagnosis": {}}', b"\xff\xfe"]
)
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
    for damaged in (
        {},
        {**parts, "compute": []},
        {**parts, "compute": [-1] * len(parts["compute"])},
    ):
        whole["diagnosis"]["facts"]["ranks"][0]["partition"]["parts"] = damaged
        path.write_text(json.dumps(whole))
        with pytest.raises(FormatError, match=r"d\.json.*do not add up"):
            load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing"):
        load(tmp_path / "nothing.json")


def test_a_file_of_the_older_format_opens_and_says_what_it_lost(tmp_path: Path) -> None:
    made = SCENARIOS["data_bound"]()
    save(made, tmp_path / "new.json")
    told = json.loads((tmp_path / "new.json").read_text())
    told["format"] = "stepscope.saved-diagnosis/1"
    (tmp_path / "plain.json").write_text(json.dumps(told))
    assert load(tmp_path / "plain.json") == load(tmp_path / "new.json")
    # It kept other tools' recordings in words, beside what was joined of them.
    words = {
        "format": "ncu-csv",
        "paths": ["a.csv"],
        "lines": [["launches", "12"]],
        "tables": [],
        "notes": [],
    }
    told["diagnosis"]["facts"]["beside"] = {
        "kernels": {"kernels": [], "recordings": [words]},
        "recordings": [words],
    }
    (tmp_path / "old.json").write_text(json.dumps(told))
    opened = load(tmp_path / "old.json")
    assert opened.facts.auxiliary is None
    assert opened.notes == (*made.notes, NOT_KEPT)


def test_recordings_are_saved_with_all_that_the_report_says(tmp_path: Path) -> None:
    recording = KernelRecording(
        format="rocprof-compute",
        paths=("a.csv",),
        panel=(("m", "1", "GB", "2", "50"),),
        device="MI300X",
    )
    made = SCENARIOS["data_bound"]()
    made = replace(
        made,
        facts=replace(
            made.facts, auxiliary=Auxiliary(kernels=KernelReport(recordings=(recording,)))
        ),
    )
    save(made, tmp_path / "saved.json")
    assert recording_texts(load(tmp_path / "saved.json").facts.auxiliary) == recording_texts(
        made.facts.auxiliary
    )
