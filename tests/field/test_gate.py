"""The metrics of a table of targets as gates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.cli.main import main
from tests.field.texts import PASTED, memory_stats
from tests.wording import mentions


@pytest.mark.parametrize(("limit", "code"), [(60, 0), (50, 1)])
def test_memory_is_a_gate(
    limit: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(PASTED / "memory_summary.txt")
    assert main(["diagnose", path, "--fail-if", f"peak_memory_gb > {limit}"]) == code
    capsys.readouterr()


def test_of_how_much_is_known_where_the_device_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = [look | {"total_memory": 40 << 30} for look in json.loads(memory_stats())]
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(looks))
    assert main(["diagnose", str(path), "--fail-if", "memory_share > 0.5"]) == 1
    assert mentions(capsys.readouterr().err, "memory_share", "0.525")


def test_what_was_not_recorded_is_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(PASTED / "memory_summary.txt")
    assert main(["diagnose", path, "--fail-if", "memory_share > 0.5"]) == 1
    assert mentions(capsys.readouterr().err, "not decided", "how large the device is")
