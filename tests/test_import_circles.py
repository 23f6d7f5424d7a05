"""No module needs one that needs it, whether the import stands at the top, in a function or for
types alone."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import stepscope

SOURCE = Path(stepscope.__file__).parent


def modules(root: Path) -> dict[str, Path]:
    """Every module of a package by its name; a package is its `__init__`."""
    found = {}
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those inside it, at any depth; what expressions are made of holds no import."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: an import that is not written out"
            inside = {f"{node.module}.{name.name}" for name in node.names}
            found |= (inside & known.keys()) or {str(node.module)}
    return found & known.keys()


def circle_of(root: Path) -> list[str]:
    """The modules of one circle, the first again at its end; none where imports point one way."""
    known = modules(root)
    graph = {name: imports_of(path, known) - {name} for name, path in known.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as problem:
        return list(problem.args[1])
    return []


def test_no_imports_go_in_a_circle() -> None:
    assert circle_of(SOURCE) == []


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path) -> None:
    room = tmp_path / "house"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "one.py").write_text("def f():\n    from house.two import g\n")
    (room / "two.py").write_text("import house.three\n")
    (room / "three.py").write_text("if TYPE_CHECKING:\n    from house import one\n")
    assert set(circle_of(room)) == {"house.one", "house.two", "house.three"}
    (room / "three.py").write_text("")
    assert circle_of(room) == []
