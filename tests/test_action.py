"""The GitHub Action: its steps are taken from action.yml and run by bash, as a runner would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.capture.jobs import LIGHT
from tests.installed import package
from tests.shared_data import ROOT

yaml = package("yaml", "PyYAML")

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
JOB = (
    LIGHT
    + """
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


class Runner:
    """What a runner does with a composite action: inputs, outputs and steps in order."""

    def __init__(
        self, folder: Path, tools: Path = Path(sys.executable).parent, **inputs: str
    ) -> None:
        self.folder, self.tools = folder, tools
        self.inputs = {
            name.replace("_", "-"): value for name, value in {"install": "", **inputs}.items()
        }
        self.outputs: dict[str, dict[str, str]] = {}
        self.summary = folder / "summary.md"

    def value(self, text: str) -> str:
        def found(match: re.Match[str]) -> str:
            words = match[1].split(".")
            if words[0] == "inputs":
                return self.inputs.get(words[1], str(ACTION["inputs"][words[1]].get("default", "")))
            assert words[0] == "steps", match[0]
            assert words[2] == "outputs", match[0]
            return self.outputs.get(words[1], {}).get(words[3], "")

        return EXPRESSION.sub(found, text)

    def run(self) -> str | None:
        """The name of the step that failed, or None."""
        for step in STEPS:
            if "if" in step:
                assert step["if"] == "inputs.install != ''"
                continue
            written = self.folder / "output.txt"
            written.write_text("")
            env = {name: self.value(text) for name, text in step.get("env", {}).items()}
            where = self.folder / self.value(step.get("working-directory", "."))
            ended = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=where,
                env=os.environ
                | env
                | {
                    "PATH": f"{self.tools}:{os.environ['PATH']}",
                    "GITHUB_OUTPUT": str(written),
                    "GITHUB_STEP_SUMMARY": str(self.summary),
                },
                capture_output=True,
                text=True,
                check=False,
            )
            lines = written.read_text().splitlines()
            if "id" in step:
                self.outputs[step["id"]] = dict(line.split("=", 1) for line in lines)
            if ended.returncode:
                self.stderr = ended.stderr
                return str(step["name"])
        return None

    def output(self, name: str) -> str:
        return self.value(ACTION["outputs"][name]["value"])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the action ran once."""
    folder = tmp_path_factory.mktemp("action")
    (folder / "train.py").write_text(JOB)
    runner = Runner(folder, command=f"'{sys.executable}' train.py")
    assert runner.run() is None, runner.stderr
    told = json.loads(Path(runner.output("diagnosis")).read_text())
    assert runner.output("verdict") == " ".join(told["verdict"]["summary"].split())
    assert float(runner.output("step-ms")) == pytest.approx(told["step"]["ms"], rel=1e-5)
    assert runner.output("passed") == "true"
    assert Path(runner.output("report")).read_text().startswith("<!doctype html>")
    assert "### " in runner.summary.read_text()
    return folder


def again(measured: Path, tmp_path: Path, **inputs: str) -> Runner:
    """The action on the same run: the job itself is not run anew."""
    fake = tmp_path / "stepscope"
    real = Path(sys.executable).parent / "stepscope"
    fake.write_text(
        f'#!/bin/sh\nif [ "$1" = run ]; then cp -r "{measured}/stepscope-run/run" "$3"; exit; fi\n'
        f'exec "{real}" "$@"\n'
    )
    fake.chmod(0o755)
    (tmp_path / "stepscope-run").mkdir()
    (tmp_path / "python").symlink_to(sys.executable)
    return Runner(tmp_path, tools=tmp_path, command="true", **inputs)


def test_a_slower_step_fails_after_the_report(measured: Path, tmp_path: Path) -> None:
    told = json.loads((measured / "stepscope-run" / "diagnosis.json").read_text())
    told["step"]["ms"] /= 3
    (tmp_path / "base.json").write_text(json.dumps(told))
    runner = again(measured, tmp_path, baseline="base.json")
    assert runner.run() == "Fail where a limit is broken"
    assert runner.output("passed") == "false"
    assert Path(runner.output("report")).is_file()
    assert "baseline" in Path(runner.output("comment")).read_text()


def test_a_baseline_that_is_not_there_is_no_limit(measured: Path, tmp_path: Path) -> None:
    runner = again(measured, tmp_path, baseline="nothing.json", budget="nothing.toml")
    assert runner.run() is None


def test_conditions_are_one_a_line_and_mistakes_end_it(measured: Path, tmp_path: Path) -> None:
    runner = again(measured, tmp_path, fail_if="step_ms > 1e6\nno_such_name > 1\n")
    assert runner.run() == "Gate"
    assert "no_such_name" in runner.stderr


def test_what_an_input_holds_is_no_script(measured: Path, tmp_path: Path) -> None:
    evil = '$(touch pwned) `touch pwned` "; touch pwned; "'
    runner = again(measured, tmp_path, fail_if=evil, budget=evil, baseline=evil)
    assert runner.run() == "Gate"
    assert not list(tmp_path.rglob("pwned"))


def test_no_step_has_an_expression_in_its_script() -> None:
    for step in STEPS:
        assert step["shell"] == "bash"
        assert not EXPRESSION.search(step["run"]), step["name"]


def test_every_input_is_used_and_documented() -> None:
    text = json.dumps(STEPS)
    page = (ROOT / "docs" / "github-action.md").read_text(encoding="utf-8")
    for name in ACTION["inputs"]:
        assert f"inputs.{name}" in text
        assert f"| `{name}` |" in page
    for name in ACTION["outputs"]:
        assert f"`{name}`" in page
    example = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    steps = example["jobs"]["step-time"]["steps"]
    (used,) = [step for step in steps if step.get("id") == "stepscope"]
    assert set(used["with"]) <= set(ACTION["inputs"])
