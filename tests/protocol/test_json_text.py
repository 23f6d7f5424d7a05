"""JSON is written in one place, and never holds NaN or Infinity."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.protocol.json_text import finite, json_text, not_finite
from tests.shared_data import ROOT

SOURCES = ROOT / "src" / "stepscope"
FOR_OUR_OWN_DECODERS = {
    "readers/trace/assemble.py",
    "recordings/nsys/events.py",
    "recordings/nsys/nvtx.py",
    "readers/kineto/json_recovery.py",
}
"""They write what the same reading decodes again, and nobody else sees."""
EMITTED = {"plan/launch/script/train.py"}
"""Written into a user's folder, where it stands alone."""
WRITERS = {"dump", "dumps", "JSONEncoder"}
CALLED_OR_IMPORTED = re.compile(rf"\bjson\W+({'|'.join(WRITERS)})\b|\bfrom\s+json\s+import\b")


def strict(text: str) -> Any:
    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 10**5000, -(10**5000)],
    ids=["nan", "inf", "-inf", "long", "-long"],
)
def test_what_json_does_not_have_is_null(value: float) -> None:
    told = {"a": [1.5, value, {"b": (value, "NaN")}], "c": value, "d": True, "e": None}
    expected = {"a": [1.5, None, {"b": [None, "NaN"]}], "c": None, "d": True, "e": None}
    for text in (
        json_text(told),
        json_text(told, indent=2),
        json_text(told, separators=(",", ":")),
    ):
        assert strict(text) == expected
    assert list(not_finite(told)) == ["a.1", "a.2.b.0", "c"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_whatever_is_written_can_be_read_and_what_is_finite_is_kept(value: object) -> None:
    assert strict(json_text(value)) == finite(value)
    assert (finite(value) == value) == (not list(not_finite(value)))


def _uses(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    # What has no such words one after the other, as most modules, holds no writer.
    if not CALLED_OR_IMPORTED.search(text):
        return []
    return [ast.unparse(node) for node in ast.walk(ast.parse(text)) if _is_writer(node)]


def _is_writer(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "json" and bool({name.name for name in node.names} & WRITERS)
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id == "json" and node.attr in WRITERS


def test_json_is_written_in_one_place() -> None:
    found = {
        str(path.relative_to(SOURCES)): uses
        for path in SOURCES.rglob("*.py")
        if (uses := _uses(path))
    }
    assert set(found) == {"protocol/json_text.py", *FOR_OUR_OWN_DECODERS, *EMITTED}, found
