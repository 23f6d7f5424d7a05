"""The recipes parse: what is a shell script, a YAML file or a Dockerfile is one."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.installed import need, package
from tests.shared_data import ROOT

PAGE = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")
INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "USER", "ENTRYPOINT", "CMD", "ENV"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_there_is_a_recipe_for_each() -> None:
    titles = " ".join(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)).lower()
    for name in ("slurm", "kubernetes", "kubeflow", "ray train", "skypilot", "torchtitan",
                 "accelerate", "deepspeed", "verl", "docker"):  # fmt: skip
        assert name in titles


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_parses_and_starts_stepscope(text: str) -> None:
    yaml = package("yaml", "PyYAML")
    assert isinstance(yaml.safe_load(text), dict)
    assert "stepscope" in text


@pytest.mark.parametrize("text", blocks("bash"))
def test_shell_parses(text: str) -> None:
    need("bash")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_parses(text: str) -> None:
    ast.parse(text)


def test_the_dockerfile_has_known_instructions_and_copies_what_is_there() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    steps = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
    assert {name for name, _ in steps} <= INSTRUCTIONS
    assert steps[0][0] == "FROM"
    for name, words in steps:
        if name == "COPY" and not words.startswith("--from"):
            for source in words.split()[:-1]:
                assert (ROOT / source).exists(), source
    # The wheel has the compiled library only where the script that builds it is there too.
    hook = (ROOT / "hatch_build.py").read_text(encoding="utf-8")
    (script,) = re.findall(r'"sh", "(.*?)"', hook)
    assert any(script in words.split() for name, words in steps if name == "COPY")
