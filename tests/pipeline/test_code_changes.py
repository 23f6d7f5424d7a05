"""Advice as lines of the training code: of runs of one's own, whose script is as it was."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.run import LoaderKnobs, RankMetadata, RunFacts
from stepscope.pipeline.code_changes import patch_of, with_code_changes
from stepscope.protocol.made_here import marked
from stepscope.readers.run_folder.folder import RunRecord
from tests.installed import need
from tests.scenarios import SCENARIOS
from tests.wording import mentions

SCRIPT = """import torch
from torch.utils.data import DataLoader

def main():
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    loader = DataLoader(
        data,
        batch_size=64,
    )
"""
FIXED = """import torch
from torch.utils.data import DataLoader

def main():
    optimizer = torch.optim.AdamW(weights, lr=1e-3, fused=True)
    loader = DataLoader(
        data,
        batch_size=64,
        num_workers=7,
        persistent_workers=True,
        pin_memory=True,
    )
"""
ACTIONS = {
    "serial-loader": "DataLoader(num_workers=7, persistent_workers=True); at least 2",
    "pageable-copy": "DataLoader(pin_memory=True) and batch.to(device, non_blocking=True); reuse",
    "looped-optimizer": "torch.optim.AdamW(..., fused=True), or foreach=True",
    "small-batch": "DataLoader(batch_size=256)",
    "late-rank": "look at rank 1",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the job was started, with its script."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(folder: Path) -> RunRecord:
    command = ["python", "src/train.py"]
    run = folder / "run"
    started_ns = (folder / "src" / "train.py").stat().st_mtime_ns + 1
    told = {"command": command, **marked(run, command), "started_wall_ns": started_ns}
    return RunRecord(path=run, metadata=told, ranks=(), notes=())


def diagnosed(folder: Path) -> Diagnosis:
    healthy = SCENARIOS["healthy"]()
    some = next(made for make in SCENARIOS.values() if (made := make()).findings).findings[0]
    script = folder / "src" / "train.py"
    rank = RankMetadata(
        rank=0,
        loader=LoaderKnobs(num_workers=0),
        made_at={"DataLoader": f"{script}(6): main", "AdamW": f"{script}(5): main"},
    )
    run = RunFacts(path="run", command=("python",), exit_code=0, ranks=(rank,))
    findings = tuple(
        replace(some, code=code, action=action, excludes=()) for code, action in ACTIONS.items()
    )
    return replace(healthy, findings=findings, facts=replace(healthy.facts, run=run))


def test_findings_have_the_lines_that_change(folder: Path) -> None:
    made = with_code_changes(diagnosed(folder), recorded(folder))
    changes = {each.code: each.code_change for each in made.findings}
    loader, optimizer = changes["serial-loader"], changes["looped-optimizer"]
    assert loader is not None
    assert optimizer is not None
    assert (loader.path, loader.line) == ("src/train.py", 8)
    assert [line.strip() for line in loader.after[1:]] == [
        "num_workers=7,",
        "persistent_workers=True,",
    ]
    assert (optimizer.line, len(optimizer.before), len(optimizer.after)) == (5, 1, 1)
    assert changes["small-batch"] is None
    assert changes["late-rank"] is None


def patched(folder: Path, diff: str) -> None:
    """As `patch -p0` does it: the files are named as the folder has them, and each line that stays
    or goes is where the patch has it."""
    lines = diff.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        assert lines[at].startswith("--- ")
        assert lines[at + 1].startswith("+++ ")
        names = {line[4:].partition("\t")[0].strip() for line in lines[at : at + 2]}
        path = folder / names.pop()
        assert not names
        before, after, done = path.read_text().splitlines(keepends=True), list[str](), 0
        at += 2
        while at < len(lines) and (hunk := HUNK.match(lines[at])):
            first, at = int(hunk[1]) - 1, at + 1
            after += before[done:first]
            done = first
            while at < len(lines) and lines[at][0] in " -+":
                if lines[at].startswith("--- "):
                    break
                kind, text = lines[at][0], lines[at][1:]
                if kind != "+":
                    assert before[done] == text
                    done += 1
                if kind != "-":
                    after.append(text)
                at += 1
        path.write_text("".join(after + before[done:]))


HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


def test_the_patch_of_all_findings_is_applied(folder: Path) -> None:
    diagnosis = diagnosed(folder)
    patch = patch_of(diagnosis, recorded(folder), diagnosis.findings)
    assert patch.codes == ("serial-loader", "pageable-copy", "looped-optimizer")
    assert [code for code, _ in patch.left] == ["small-batch", "late-rank"]
    script = folder / "src" / "train.py"
    assert script.read_text() == SCRIPT
    patched(folder, patch.text)
    assert script.read_text() == FIXED
    script.write_text(SCRIPT)
    (folder / "out.diff").write_text(patch.text)
    need("git")
    subprocess.run(["git", "apply", "out.diff"], cwd=folder, check=True, capture_output=True)
    assert script.read_text() == FIXED


def test_one_that_does_not_go_with_an_earlier_one_is_left_out(folder: Path) -> None:
    diagnosis = diagnosed(folder)
    first, second, *_ = diagnosis.findings
    both = [first, replace(second, excludes=(first.code,))]
    assert patch_of(diagnosis, recorded(folder), both).codes == (first.code,)


def test_a_script_that_was_changed_since_is_not_shown(folder: Path) -> None:
    diagnosis, record = diagnosed(folder), recorded(folder)
    record.metadata["started_wall_ns"] -= 2
    assert with_code_changes(diagnosis, record) == diagnosis
    patch = patch_of(diagnosis, record, diagnosis.findings[:1])
    assert patch.text == ""
    assert mentions(patch.left[0][1], "train.py", "changed since")


def test_a_folder_of_somebody_else_has_no_file_read(folder: Path) -> None:
    diagnosis, record = diagnosed(folder), recorded(folder)
    record.metadata["command"] = ["python", "other.py"]
    assert with_code_changes(diagnosis, record) == diagnosis
    assert mentions(patch_of(diagnosis, record, diagnosis.findings).left[0][1], "not made by")
