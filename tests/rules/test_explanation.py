"""Every rule explains itself, and the documentation is made of its own words."""

from __future__ import annotations

import re
import runpy
import sys

import pytest

from stepscope.cli.main import main
from stepscope.core.diagnosis import BOUNDS
from stepscope.rules.explanation import SECTIONS, first_lines, text_of
from stepscope.rules.registry import every_rule
from stepscope.rules.rule import Rule
from tests.shared_data import ROOT

BY_CODE = {rule.code: rule for rule in every_rule()}


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: rule.code)
def test_a_rule_has_its_sections_in_order(rule: Rule) -> None:
    text = text_of(rule)
    source_locations = [text.find(f"\n\n{section}: ") for section in SECTIONS]
    assert all(place > 0 for place in source_locations), f"{rule.code} lacks one of {SECTIONS}"
    assert source_locations == sorted(source_locations)


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: rule.code)
def test_a_rule_is_named_for_its_fault_and_says_its_bound(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.code)
    asked = (rule.propose, rule.propose_job, rule.advise, rule.advise_run, rule.advise_by_log)
    one = next(each for each in asked if each is not None)
    room, folder, module = one.__module__.split(".")[-3:]
    assert module == rule.code.replace("-", "_")
    assert room == "recordings" or folder == rule.bound
    assert rule.bound in BOUNDS


def test_codes_are_unique_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BY_CODE) == len(every_rule())
    assert main(["explain", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [code for code, _ in first_lines()]
    assert set(listed) == set(BY_CODE)


def test_explain_prints_the_rules_own_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "serial-loader"]) == 0
    assert text_of(BY_CODE["serial-loader"]) in capsys.readouterr().out


def test_an_unknown_code_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "serial-lodr"]) == 2
    assert "serial-loader" in capsys.readouterr().err


def test_the_pages_are_what_the_rules_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(ROOT / "scripts" / "make-docs")
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    assert ended.value.code == 0, f"run scripts/make-docs: {capsys.readouterr().out}"
