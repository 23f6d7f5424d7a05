"""CONTRIBUTING.md's worked example, as it stands: the finding fires, is priced and has its page."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stepscope.rules import explanation
from tests.shared_data import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAME = "stepscope.rules.host.zeroed_gradients"


def module_of(name: str, text: str, folder: Path) -> ModuleType:
    path = folder / f"{name.rpartition('.')[2]}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    host = importlib.import_module("stepscope.rules.host")
    made = module_of(NAME, BLOCKS[0], tmp_path)
    monkeypatch.setattr(host, "zeroed_gradients", made, raising=False)
    yield made
    del sys.modules[NAME]


def test_the_examples_tests_pass(rule: ModuleType, tmp_path: Path) -> None:
    tests = module_of("test_zeroed_gradients", BLOCKS[1], tmp_path)
    del sys.modules["test_zeroed_gradients"]
    names = [name for name in vars(tests) if name.startswith("test_")]
    assert len(names) == 2
    for name in names:
        getattr(tests, name)()


def test_the_example_has_a_page_with_every_section(rule: ModuleType) -> None:
    page = explanation.page(rule.RULE)
    assert page.startswith("# zeroed-gradients\n\nBound: host.")
    assert [f"**{title}.**" in page for title in explanation.SECTIONS] == [True] * 5


def test_what_the_page_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / target).exists(), target
    for word in re.findall(r"`((?:scripts|src|tests|docs)/[\w./-]+)`", PAGE):
        if "zeroed" not in word:
            assert (ROOT / word).exists(), word
