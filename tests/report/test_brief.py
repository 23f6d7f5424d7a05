"""The verdict and three findings in under a kilobyte."""

from __future__ import annotations

import msgspec
import pytest

from stepscope.cli.main import main
from stepscope.core.diagnosis import Finding, SourceLocation, Verdict
from stepscope.report.diagnosis.brief import MAX_BYTES, brief
from stepscope.report.diagnosis.view import all_notes
from tests.scenarios import SCENARIOS
from tests.wording import mentions


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_brief(name: str) -> None:
    diagnosis = SCENARIOS[name]()
    text = brief(diagnosis)
    assert len(text.encode()) <= MAX_BYTES
    assert text.splitlines()[0]
    for finding in diagnosis.findings[:3]:
        assert name == "evil_names" or finding.code in text
    num = len(all_notes(diagnosis))
    counted = f"{num} note{'s' if num != 1 else ''} on"
    assert mentions(text, counted, "judged") == bool(num), "as many as the report has"
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_what_a_recording_makes_long_is_cut_and_the_verdict_stays() -> None:
    finding = Finding(
        code="serial-loader",
        bound="data",
        summary="s" * 500,
        action="\u00e4" * 5000 + " \x1b[2J",
        evidence=(),
        ranks=(0,),
        predicted_speedup=2.0,
        predicted_low=1.5,
        predicted_high=2.5,
        predicted_step_ms=10.0,
        source_locations=(
            SourceLocation(line="/a/very" * 90 + ".py:3 in f", module=None, share=1.0),
        ),
    )
    verdict = Verdict(bound="data", summary="Input-bound: " + "word " * 900, shares={})
    scenario = SCENARIOS["healthy"]()
    text = brief(msgspec.structs.replace(scenario, verdict=verdict, findings=(finding,) * 9))
    assert len(text.encode()) <= MAX_BYTES
    assert text.startswith("Input-bound: word")
    assert text.count("serial-loader 2.00x (1.50-2.50)") == 3
    assert "6 findings more" in text
    assert "\x1b" not in text


def test_the_demo_is_the_same_bytes_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--format", "brief"]) == 0
    first = capsys.readouterr().out
    assert main(["demo", "--format", "brief"]) == 0
    assert capsys.readouterr().out == first
    assert mentions(first.splitlines()[0], "Input-bound (57%", "2.08x", "serial-loader")
    assert "1. serial-loader 2.08x" in first


def test_scaling_has_no_brief_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--scaling", "a", "b", "--format", "brief"]) == 2
    assert "no brief form" in capsys.readouterr().err
