"""CONTRIBUTING.md's worked example is the rule, and its tests, as they stand in the code; what can
be counted of how code reads here."""

from __future__ import annotations

import re

import pytest

from tests.shared_data import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = (
    "src/stepscope/rules/host/zeroed_gradients.py",
    "tests/rules/host/test_zeroed_gradients.py",
)


@pytest.mark.parametrize(("path", "block"), [*zip(SHOWN, BLOCKS, strict=True)])
def test_the_example_is_the_code(path: str, block: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == block


def test_what_the_page_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / target).exists(), target
    for word in re.findall(r"`((?:scripts|src|tests|docs)/[\w./-]+)`", PAGE):
        assert (ROOT / word).exists(), word


def test_modules_are_short_and_docstrings_need_no_neighbour() -> None:
    """What a docstring that begins with "Of" belongs to stands elsewhere."""
    modules = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    assert len(modules) > 500
    assert [path.name for path, text in modules.items() if text.count("\n") > 500] == []
    begins = re.compile(r'^\s*"""Of ', re.MULTILINE)
    assert [path.name for path, text in modules.items() if begins.search(text)] == []
