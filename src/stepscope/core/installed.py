"""What packages that are installed beside stepscope add to it: formats, findings and commands.

    [project.entry-points."stepscope.rooms"]
    "format.tegrastats" = "stepscope_tegrastats.log:FORMAT"
    "rule.hot-board" = "stepscope_tegrastats.hot_board:RULE"
    "command.tegrastats" = "stepscope_tegrastats.door:COMMAND"

They are looked for where packages are installed, never in the working folder: that may be a
stranger's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
GROUP = "stepscope.rooms"
POINTS_FILE = "entry_points.txt"


def with_installed(ours: tuple[T, ...], door: str, name_of: Callable[[T], str]) -> tuple[T, ...]:
    """Ours, then what installed packages add by a door."""
    return (*ours, *installed(door, type(ours[0]), name_of, taken=map(name_of, ours)))


def installed(
    door: str, shape: type[T], name_of: Callable[[T], str], taken: Iterable[str]
) -> tuple[T, ...]:
    """What installed packages add by a door: format, rule or command. One whose name is taken, or
    that cannot be imported, is left out with a warning."""
    points = _points(door)
    if not points:
        return ()
    names = set(taken)
    added: list[T] = []
    for point in points:
        found = _load(point, shape)
        if found is None:
            continue
        if name_of(found) in names:
            _warn(point, f"there is a {door} called {name_of(found)} already")
            continue
        names.add(name_of(found))
        added.append(found)
    return tuple(added)


def _points(door: str) -> list[EntryPoint]:
    """The entry points of a door, by name. importlib.metadata takes longer to import than the rest
    of `stepscope --help`, so that it is asked only where a package has such points."""
    folders = [folder for folder in _folders() if _has_points(folder)]
    if not folders:
        return []
    from importlib.metadata import distributions

    points = {
        point.name: point
        for distribution in distributions(path=folders)
        for point in distribution.entry_points.select(group=GROUP)
        if point.name.startswith(f"{door}.")
    }
    return [points[name] for name in sorted(points)]


def _folders() -> Iterator[str]:
    """Where modules are imported from, but for the working folder."""
    for folder in dict.fromkeys(sys.path):
        if os.path.isabs(folder) and os.path.isdir(folder) and not _is_here(folder):
            yield folder


def _is_here(folder: str) -> bool:
    try:
        return os.path.samefile(folder, os.curdir)
    except OSError:
        return False


def _has_points(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            infos = [entry.path for entry in entries if entry.name.endswith(".dist-info")]
    except OSError:
        return False
    return any(map(_names_us, infos))


def _names_us(info: str) -> bool:
    try:
        with open(os.path.join(info, POINTS_FILE), "rb") as file:
            return GROUP.encode() in file.read()
    except OSError:
        return False


def _load(point: EntryPoint, shape: type[T]) -> T | None:
    """None where it cannot be imported, or is something else."""
    from importlib.util import find_spec

    package = point.module.partition(".")[0]
    try:
        spec = find_spec(package)
        origin = (
            None
            if spec is None
            else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        )
        if origin is not None and _is_in_working_folder(origin, package):
            _warn(point, f"{package} would be imported from the working folder")
            return None
        found = point.load()
    except Exception as problem:  # noqa: BLE001 - another package's import may fail in any way
        _warn(point, f"{type(problem).__name__}: {problem}")
        return None
    if not isinstance(found, shape):
        _warn(point, f"it is no {shape.__name__}")
        return None
    return found


def _is_in_working_folder(origin: str, package: str) -> bool:
    """Whether a module or package lies directly in the working folder, and not in one where
    packages are installed."""
    folder = os.path.dirname(origin)
    if os.path.basename(folder) == package:
        folder = os.path.dirname(folder)
    return _is_here(folder)


def _warn(point: EntryPoint, problem: str) -> None:
    import logging

    logging.getLogger(__name__).warning(
        "%s of an installed package is left out (%s): %s", point.name, point.value, problem
    )
