"""What an older version wrote still opens.

tests/kept/ was written by stepscope 0.1.0 and is never written anew: `run` by `stepscope run` on a
CPU (names of the machine taken out), `diagnosis.json` by `diagnose --format json`, of a diagnosis
that has every part of the contract. `0.2.0` has a document of each kind as version 0.2.0 wrote it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.core.codec import decode, plain, schema_of
from stepscope.core.diagnosis import DiagnosisDocument
from tests.json_schema import DOCUMENTS
from tests.shared_data import DEMO, ROOT

KEPT = ROOT / "tests" / "kept"
RUN, DIAGNOSIS = KEPT / "run", KEPT / "diagnosis.json"
STEP_MS = 7.398625
"""Of the run."""
SHAPES = {schema_of(shape): shape for shape in DOCUMENTS}


def lost(old: Any, new: Any, path: str = "$") -> list[str]:
    """Where the new value does not have what the old one has; it may have more keys."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [at for key, part in old.items() for at in lost(part, new.get(key), f"{path}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [at for i, part in enumerate(old) for at in lost(part, new[i], f"{path}[{i}]")]
    return [] if old == new else [path]


def test_every_part_of_a_kept_diagnosis_is_read() -> None:
    text = DIAGNOSIS.read_text(encoding="utf-8")
    told = json.loads(text)
    optional = {"run", "nccl", "comms", "advice", "recordings", "gate", "abstentions"}
    assert optional < told.keys()
    document = decode(text, DiagnosisDocument, str(DIAGNOSIS))
    assert lost(told, json.loads(json.dumps(plain(document)))) == []


@pytest.mark.parametrize(
    "path", sorted((KEPT / "0.2.0").glob("*.json")), ids=lambda path: path.stem
)
def test_every_part_of_a_kept_document_is_read(path: Path) -> None:
    told = json.loads(path.read_text(encoding="utf-8"))
    document = decode(path.read_text(encoding="utf-8"), SHAPES[told["schema"]], str(path))
    assert lost(told, json.loads(json.dumps(plain(document)))) == []


def test_a_kept_diagnosis_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(DIAGNOSIS), str(DIAGNOSIS), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speedup"]["value"] == 1.0
    assert {part["code"] for part in found["predicted"]} == {
        finding["code"] for finding in json.loads(DIAGNOSIS.read_text())["findings"]
    }


@pytest.mark.parametrize("path", [DIAGNOSIS, RUN], ids=["diagnosis", "run"])
def test_what_was_kept_is_a_baseline(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--baseline", str(path), "--fail-if", "step_ms > baseline * 100", "--no-cache"]
    assert main(["diagnose", str(DEMO), "--step-ms", "65", "--format", "json", *asked]) == 0
    (check,) = json.loads(capsys.readouterr().out)["gate"]["checks"]
    assert check["status"] == "passed"
    assert check["values"]["baseline.step_ms"] > 0


@pytest.mark.parametrize("path", [DIAGNOSIS, RUN], ids=["diagnosis", "run"])
def test_what_was_kept_gives_a_page(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(path), "--no-cache", "-o", str(page)]) == 0
    assert "serial-loader" in page.read_text(encoding="utf-8")


def test_a_kept_run_opens_through_every_door(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(RUN), "--no-cache", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    told = json.loads((RUN / "diagnosis.json").read_text(encoding="utf-8"))
    assert printed["step"] == told["step"]
    assert [rank["rank"] for rank in printed["ranks"]] == [0]
    assert lost(told["run"] | {"path": str(RUN)}, printed["run"]) == []
    diagnosis = stepscope.diagnose(RUN, cache=False)
    assert diagnosis.step.ms == STEP_MS
    assert "serial-loader" in [finding.code for finding in diagnosis.findings]
    assert stepscope.load(RUN, cache=False).diagnosis == diagnosis
    kept = str(RUN / "diagnosis.json")
    assert main(["compare", str(RUN), kept, "--no-cache", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["before"]["kind"], found["after"]["kind"]) == ("run", "diagnosis")
