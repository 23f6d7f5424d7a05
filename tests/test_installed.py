"""Skips come from one place, and no test module takes another one along when it skips."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest

import stepscope
from tests import installed
from tests.installed import ROOT, THINGS, has_modules

SOURCE = Path(stepscope.__file__).parent
TESTS = ROOT / "tests"
FORBIDDEN = {"importorskip", "skip", "skipif", "SkipTest"}
"""Names by which pytest and unittest skip, as attributes of anything."""


@cache
def texts() -> dict[Path, str]:
    """The text of each module of the tests."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py"))}


def modules(*words: str) -> list[Path]:
    """Those with one of these words in their text: parsing all would take seconds."""
    return [path for path, text in texts().items() if any(word in text for word in words)]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def skips_by_itself(tree: ast.AST) -> list[int]:
    """Lines that skip by other means than `tests.installed`."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in FORBIDDEN)
        or (isinstance(node, ast.ImportFrom) and {name.name for name in node.names} & FORBIDDEN)
    ]


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )


def may_skip_at_import(tree: ast.Module) -> bool:
    """Whether a statement outside of functions asks for something."""
    outside = [
        node
        for node in tree.body
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ]
    asking = {"need", "package", "absent"}
    return any(
        isinstance(call.func, ast.Name) and call.func.id in asking
        for node in outside
        for call in calls(node)
    )


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules of the tests that are imported anywhere in this one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_only_one_module_skips() -> None:
    """`--quick` leaves out what is there."""
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules(*FORBIDDEN)
        if path not in (Path(installed.__file__), TESTS / "quick.py", Path(__file__))
        for line in skips_by_itself(tree_of(path))
    }
    assert not found, "ask tests.installed: need, needs, package or absent"


def test_no_module_imports_a_test_module_that_may_skip() -> None:
    skipping = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in modules("tests.installed")
        if path.name.startswith("test_") and may_skip_at_import(tree_of(path))
    }
    assert len(skipping) > 20
    found = {
        (str(path.relative_to(ROOT)), other)
        for path in modules(*(name.rpartition(".")[2] for name in skipping))
        for other in imported(tree_of(path))
        if other in skipping
    }
    assert not found, "what two test modules share belongs in a helper"


OPTIONAL = {
    module.partition(".")[0]
    for thing in THINGS.values()
    if isinstance(thing.is_here, partial) and thing.is_here.func is has_modules
    for module in thing.is_here.args
}


AT_IMPORT = re.compile(r"^(?:from +(\S+) +import +(\([^)]*\)|.*)|import +(.*))", re.MULTILINE)


@cache
def taken_along() -> dict[str, set[str]]:
    """Our own modules that import an optional package as they are imported, and which."""
    found: dict[str, set[str]] = {}
    imports: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        name = ".".join(["stepscope", *path.relative_to(SOURCE).with_suffix("").parts])
        names = imports.setdefault(name.removesuffix(".__init__"), set())
        for module, inside, modules in AT_IMPORT.findall(text):
            names |= set(re.findall(r"[\w.]+", modules)) | {module}
            names |= {f"{module}.{each}" for each in re.findall(r"\w+", inside)}
        found[name] = {each.partition(".")[0] for each in names} & OPTIONAL
        if found[name]:  # or a string has such a line
            found[name] &= {each.partition(".")[0] for each in imported(ast.parse(text))}
    while True:
        more = {
            name: set().union(found[name], *(found[each] for each in names & found.keys()))
            for name, names in imports.items()
            if name in found
        }
        if all(more[name] == found[name] for name in more):
            return {name: packages for name, packages in found.items() if packages}
        found |= more


def imported_unasked(tree: ast.Module) -> set[str]:
    """Optional packages that a module imports before it asks for anything, itself or by a module of
    ours."""
    found: set[str] = set()
    for node in tree.body:
        if any(
            isinstance(each, ast.Name) and each.id in {"need", "package"} for each in ast.walk(node)
        ):
            break
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    ours = taken_along()
    taken = set().union(*(ours[name] for name in found & ours.keys()))
    return taken | {name.partition(".")[0] for name in found} & OPTIONAL


def test_what_may_be_absent_is_asked_for_before_it_is_imported() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in modules(
            *(f"\n{way} {name}" for name in OPTIONAL for way in ("import", "from")),
            *(f"\nfrom {name.rpartition('.')[0]}" for name in taken_along()),
        )
        if path.name.startswith(("test_", "conftest"))
        for name in imported_unasked(tree_of(path))
    }
    assert not found, 'need("torch") goes before, or package("torch")'


@pytest.mark.parametrize(
    ("text", "unasked"),
    [
        ("import torch\nneed('torch')", {"torch"}),
        ("from yaml import load", {"yaml"}),
        ("need('torch')\nimport torch", set()),
        ("import ast\ndef test_it():\n    import torch", set()),
        ("from stepscope.probe.job.worker import cpu_name", {"torch"}),
        ("from stepscope.probe import process", set()),
    ],
)
def test_an_import_unasked_is_noticed(text: str, unasked: set[str]) -> None:
    assert imported_unasked(ast.parse(text)) == unasked


def test_all_that_is_known_is_asked_for() -> None:
    ours = (Path(installed.__file__), Path(__file__))
    asking = [text for path, text in texts().items() if path not in ours]
    asked = {name for name in THINGS for text in asking if f'"{name}' in text}
    assert set(THINGS) - asked == set()


@pytest.mark.parametrize("name", THINGS)
def test_a_reason_is_one_line_that_says_how(name: str) -> None:
    reason = installed.reason(name)
    assert reason.startswith(f"needs {name}: ")
    assert "\n" not in reason
    assert len(reason) < 100


@pytest.mark.parametrize(
    "text",
    [
        "import pytest\npytest.importorskip('torch')",
        "import pytest\n@pytest.mark.skipif(True, reason='')\ndef test_it(): ...",
        "from pytest import skip\n",
        "import unittest\nraise unittest.SkipTest",
    ],
)
def test_a_module_that_skips_by_itself_is_noticed(text: str) -> None:
    assert skips_by_itself(ast.parse(text))


@pytest.mark.parametrize("text", ["need('torch')", "torch = package('torch')", "if 1:\n need('a')"])
def test_a_module_that_may_skip_is_noticed(text: str) -> None:
    assert may_skip_at_import(ast.parse(text))
    assert not may_skip_at_import(ast.parse("def test_it():\n    need('torch')\n"))
