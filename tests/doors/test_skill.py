"""The skill that ships: its commands are ones that there are, and it installs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stepscope.cli.main import build_parser, main
from stepscope.doors.skill import skill_text
from stepscope.rules.registry import every_rule

LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", skill_text(), re.DOTALL)
    for line in block.splitlines()
]


def test_it_has_what_agents_look_for() -> None:
    head = re.match(r"---\nname: stepscope\ndescription: (.+)\n---\n", skill_text())
    assert head is not None
    assert len(head[1]) <= 1024
    for step in ("Record", "Diagnose", "Change one thing", "Verify"):
        assert f". {step}\n" in skill_text()


@pytest.mark.parametrize("line", LINES)
def test_its_commands_are_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("last", "last~1", "main"):
        (tmp_path / name).mkdir()
    program, *words = shlex.split(line)
    assert program == "stepscope"
    assert build_parser(words).parse_args(words).command_action is not None


def test_its_finding_is_one_that_there_is() -> None:
    codes = set(re.findall(r"(?:explain|--apply) ([a-z-]+)", skill_text()))
    assert codes
    assert codes <= {rule.code for rule in every_rule()}


def test_it_is_printed_and_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == skill_text()
    path = tmp_path / "skills" / "stepscope" / "SKILL.md"
    assert main(["skill", "--to", str(tmp_path / "skills")]) == 0
    assert path.read_text(encoding="utf-8") == skill_text()
    path.write_text("mine", encoding="utf-8")
    assert main(["skill", "--to", str(tmp_path / "skills")]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"
    assert main(["skill", "--to", str(tmp_path / "skills"), "--force"]) == 0
    assert path.read_text(encoding="utf-8") == skill_text()


def test_a_folder_that_cannot_be_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["skill", "--to", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err
