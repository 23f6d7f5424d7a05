"""What a release and its pull requests rest on: workflows, templates, versions, the citation."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import stepscope
from tests.installed import package
from tests.shared_data import ROOT

yaml = package("yaml", "PyYAML")

GITHUB = ROOT / ".github"
FILES = sorted([*(GITHUB / "workflows").glob("*.yml"), ROOT / "action.yml"])
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
OURS = {path.name for path in ROOT.iterdir()} - {".git", ".venv", "build", "dist"}
PINNED = re.compile(r"@[0-9a-f]{40}$|@release/v\d+$")


def load(path: Path) -> dict[Any, Any]:
    told = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(told, dict)
    return told


def steps_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    jobs = document["jobs"].values() if "jobs" in document else [document["runs"]]
    return [step for job in jobs for step in job.get("steps", [])]


def missing(command: str) -> list[str]:
    """The words of a script that begin with a name of this repository's root and lead nowhere."""
    words = re.findall(r"[\w./-]+", command)
    ours = [word for word in words if "/" in word and word.split("/")[0] in OURS]
    return [word for word in ours if not (ROOT / word).exists()]


WORKFLOWS = [path for path in FILES if path.parent.name == "workflows"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_path_that_a_workflow_calls_is_there(path: Path) -> None:
    steps = steps_of(load(path))
    assert steps
    for step in steps:
        assert ("run" in step) != ("uses" in step)
        assert missing(step.get("run", "")) == []
        uses = step.get("uses", "")
        if uses.startswith("./"):
            assert (ROOT / uses / "action.yml").is_file()


def test_a_path_that_is_gone_is_seen() -> None:
    assert missing("sh scripts/no-such-script && cat src/nothing.py") == [
        "scripts/no-such-script",
        "src/nothing.py",
    ]
    assert missing("scripts/check") == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_no_right_that_they_do_not_name(path: Path) -> None:
    told = load(path)
    assert told["permissions"] == {}
    for name, job in told["jobs"].items():
        assert job["timeout-minutes"] <= 30
        may_write = {right for right, value in job["permissions"].items() if value == "write"}
        wanted = {"attest": {"attestations", "id-token"}, "publish": {"id-token"}}
        assert may_write == wanted.get(name, set())
    for step in steps_of(told):
        assert "${{" not in step.get("run", ""), "an expression in a script is a stranger's text"
        if "uses" in step:
            assert PINNED.search(step["uses"]), f"{step['uses']} may change under us"
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_pull_requests_are_checked_by_the_commands_that_people_run() -> None:
    told = load(GITHUB / "workflows" / "checks.yml")
    # YAML 1.1 takes the key `on` for true.
    assert set(told[True]) == {"pull_request", "push"}
    script = (ROOT / "scripts" / "check").read_text(encoding="utf-8")
    ran = [step["run"] for step in steps_of(told) if "run" in step]
    for tool in ("ruff check", "ruff format --check", "mypy --strict", "importlinter", "pytest"):
        (command,) = [one for one in ran if tool in one and "uv pip" not in one]
        assert command in script
    assert "scripts/setup-and-test" in ran


def test_every_python_that_is_promised_is_tested_and_aarch64() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    matrix = load(GITHUB / "workflows" / "checks.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == promised
    assert [more["runner"] for more in matrix["include"]] == ["ubuntu-24.04-arm"]
    (runners,) = load(GITHUB / "workflows" / "release.yml")["jobs"]["wheels"]["strategy"][
        "matrix"
    ].values()
    assert {"ubuntu-24.04", "ubuntu-24.04-arm"} <= set(runners)


def test_nothing_is_published_but_by_a_tag_that_is_built_and_attested() -> None:
    jobs = load(GITHUB / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["needs"] == "attest"
    assert jobs["attest"]["if"] == "github.ref_type == 'tag'"
    assert set(jobs["attest"]["needs"]) == {"wheels", "sdist"}
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")


def test_the_version_stands_in_the_changelog_and_the_citation() -> None:
    ((version, date), *_) = re.findall(r"^## \[(\d[\w.]+)\] - ([\d-]+)$", CHANGELOG, re.MULTILINE)
    assert version == stepscope.__version__
    cited = load(ROOT / "CITATION.cff")
    assert (cited["version"], str(cited["date-released"])) == (version, date)
    assert CHANGELOG.index("## [Unreleased]") < CHANGELOG.index(f"## [{version}]")


def test_the_changelog_can_be_read_and_its_links_lead_somewhere() -> None:
    for release in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        assert len(re.findall(r"^- ", release, re.MULTILINE)) <= 25
    for page in (CHANGELOG, (ROOT / "SECURITY.md").read_text(encoding="utf-8")):
        for target in re.findall(r"\]\((?!https)([^)#]+)\)", page):
            assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", ["bug", "wrong-verdict", "feature"])
def test_issue_forms_ask_for_something_and_name_commands_that_exist(name: str) -> None:
    path = GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml"
    form = load(path)
    assert form["name"]
    assert form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert any(part.get("validations", {}).get("required") for part in fields)
    assert len({part["id"] for part in fields}) == len(fields)
    for command in re.findall(r"`stepscope ([^`]+)`", path.read_text(encoding="utf-8")):
        word = shlex.split(command)[0]
        assert word.startswith("-") or (ROOT / "docs" / f"{word}.md").is_file()
