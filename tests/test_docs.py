"""The documentation's examples are run, and its pages are complete."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.commands import COMMANDS
from stepscope.cli.main import main
from tests.scaling_jobs import strong_series
from tests.shared_data import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
CONSOLE = re.compile(r"```console\n\$ stepscope (.*?)\n(.*?)```", re.DOTALL)
EXAMPLES = [
    (page.name, *match)
    for page in PAGES
    for match in CONSOLE.findall(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "command", "expected"), EXAMPLES)
def test_console_examples_print_what_they_show(
    page: str, command: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    assert expected.rstrip() in printed, f"{page}: `stepscope {command}` no longer prints this"


def test_there_are_console_examples() -> None:
    assert EXAMPLES


def test_every_command_has_a_page_and_every_link_leads_somewhere() -> None:
    for command in COMMANDS:
        assert (ROOT / "docs" / f"{command.name}.md").is_file()
    for page in PAGES:
        prose = re.sub(
            r"```.*?```|^    .*?$",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL | re.MULTILINE,
        )
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", ["start.md", "questions.md", "migrate.md"])
def test_the_first_pages_name_commands_and_functions_that_are_there(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    commands = set(re.findall(r"(?:^ +|`|\$ )stepscope ([a-z]+)\b", page, re.MULTILINE))
    assert len(commands) > 5
    assert commands <= {command.name for command in COMMANDS}
    assert set(re.findall(r"\bstepscope\.([A-Za-z_]+)\(", page)) <= set(stepscope.__all__)


def test_the_json_example_has_the_contracts_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    example = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    assert main(["demo", "--format", "json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert set(example) == set(actual)
    assert set(example["ranks"][0]) == set(actual["ranks"][0])
    assert example["ranks"][0]["device_ns"] == actual["ranks"][0]["device_ns"]
    assert example["verdict"]["summary"] == actual["verdict"]["summary"]


def test_the_examples_of_scaling_are_what_a_series_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    runs = strong_series(tmp_path)
    assert main(["diagnose", "--scaling", *runs, "--no-cache", "--jobs", "1"]) == 0
    assert re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0] in capsys.readouterr().out
    assert (
        main(["diagnose", "--scaling", *runs, "--no-cache", "--jobs", "1", "--format", "json"]) == 0
    )
    actual = json.loads(capsys.readouterr().out)
    example = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    widest = actual["runs"][-1]
    for parts in (widest["partition_ms"], widest["against_base"]["lost_parts_ms"]):
        for part in [part for part, ms in parts.items() if not ms]:
            del parts[part]
    assert example["runs"] == [widest | {"path": "runs/w4"}]
    assert example["amdahl"] == pytest.approx(actual["amdahl"])
    assert example | {"runs": [], "amdahl": None, "notes": []} == actual | {
        "runs": [],
        "amdahl": None,
        "notes": [],
    }


def test_readme_and_ci_run_the_same_test_command() -> None:
    assert "    scripts/setup-and-test\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    room = (ROOT / "scripts" / "clean-room").read_text(encoding="utf-8")
    assert "command=(scripts/setup-and-test)\n" in room
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\nscripts/clean-room --without-compiler --in " in ci


def test_every_part_of_the_report_that_the_plugins_views_lead_to_is_a_heading_of_it() -> None:
    page = (ROOT / "docs" / "tensorboard.md").read_text(encoding="utf-8")
    table = page[page.index("| the plugin's view |") : page.index("Figures of the report")]
    named = re.findall(r"\*\*(.+?)\*\*", table)
    templates = (ROOT / "src" / "stepscope" / "report" / "html" / "templates").glob("*.html")
    heads = {
        head
        for template in templates
        for head in re.findall(r"<h2>(.+?)</h2>", template.read_text(encoding="utf-8"))
    }
    titles = {title for head in heads for title in re.findall(r'[^{}%"]+', head)}
    assert len(named) > 10
    assert [name for name in named if name != "roof" and name not in titles] == []
