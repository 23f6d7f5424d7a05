"""The suite means the same in a clone: nearly all of it reads what the repository has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.shared_data import ROOT, SAMPLES, lab_trace, lab_traces, unpacked

MAX_NEEDING = 20
"""Tests that may need ../shared: sweeps over all of it, and other projects' traces."""
MAX_BYTES = 6_000_000


@cache
def users() -> tuple[tuple[str, ast.stmt], ...]:
    """The statements of each module of tests that names ../shared."""
    texts = [
        (path.name, path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__)
    ]
    return tuple(
        (name, node)
        for name, text in texts
        if "shared" in text.lower()
        for node in ast.parse(text).body
    )


def marks() -> Iterator[tuple[str, str]]:
    for name, node in users():
        if isinstance(node, ast.FunctionDef):
            yield from ((f"{name}::{node.name}", ast.unparse(it)) for it in node.decorator_list)


def test_few_tests_need_what_a_clone_has_not() -> None:
    needing = [name for name, mark in marks() if "needs_shared" in mark]
    assert 0 < len(needing) <= MAX_NEEDING, needing


def test_which_cases_a_test_has_is_not_a_matter_of_what_lies_beside_the_clone() -> None:
    asked = [
        name for name, mark in marks() if "shared_traces(" in mark or re.search(r"\bSHARED\b", mark)
    ]
    asked += [
        f"{name}:{node.lineno}"
        for name, node in users()
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and ("shared_traces(" in ast.unparse(node) or "SHARED.glob" in ast.unparse(node))
    ]
    assert asked == []


def test_samples_are_small_and_named_by_their_folder() -> None:
    sizes = {path: path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < MAX_BYTES
    assert max(sizes.values()) < 400_000
    assert lab_trace("single/nchw.slow") in lab_traces("single/*")
    assert b"traceEvents" in unpacked(lab_trace("single/nchw.slow"))
