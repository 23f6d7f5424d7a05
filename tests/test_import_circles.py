"""No module needs one that needs it, whether the import stands at the top, in a function or for
types alone."""

from __future__ import annotations

import graphlib
import re
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


IMPORT = re.compile(r"^ *(?:from +(\S+) +import +(\([^)]*\)|.*)|import +(.*))", re.MULTILINE)
"""To parse all of the source would take seconds. A text that reads like one can only add a circle,
which is seen."""


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for module, names, modules in IMPORT.findall(path.read_text(encoding="utf-8")):
        assert not module.startswith("."), f"{path}: an import that is not written out"
        if modules:
            found |= set(re.findall(r"[\w.]+", modules))
        inside = {f"{module}.{name}" for name in re.findall(r"(\w+)(?: +as +\w+)?", names)}
        found |= (inside & known.keys()) or {module}
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
