"""CONTRIBUTING.md's worked example is the rule, and its tests, as they stand in the code."""

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
