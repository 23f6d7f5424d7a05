"""Imports of ours inside the job.

A job has modules of its own names: a `resource.py` or a `statistics.py` beside its script. What we
import must be the standard library's, must not run the job's, and must not be what the job gets
when it asks for its own.
"""

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ZIP = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
LIBRARY = os.path.dirname(os.__file__)
FOLDERS = [
    entry
    for entry in sys.path
    if entry == LIBRARY or os.path.basename(entry) in ("lib-dynload", ZIP)
]
"""The standard library's. A job may take them off sys.path later."""
_held: "dict[str, Any]" = {}
"""Modules that we imported and the job has not: some look themselves up when they are used."""


class OwnImports:
    """Meanwhile this thread imports the standard library from its own folder. Afterwards the job
    finds sys.modules without what we brought, and with its own modules of such names.

    Names that begin with an underscore stay: extensions that must not be loaded twice, and no
    names for a job's own.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self._before: set[str] = set()
        self._of_job: dict[str, Any] = {}

    def __enter__(self) -> None:
        shadowing = {name for name, module in list(sys.modules.items()) if _shadows(name, module)}
        for name in list(sys.modules):
            if name.partition(".")[0] in shadowing:
                self._of_job[name] = sys.modules.pop(name)
        self._before = {name for name in list(sys.modules) if "." not in name}
        for name, module in _held.items():
            if name.partition(".")[0] not in self._before:
                sys.modules[name] = module
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        for name in list(sys.modules):
            top = name.partition(".")[0]
            is_new = top in sys.stdlib_module_names and top not in self._before
            if is_new and not top.startswith("_"):
                _held[name] = sys.modules.pop(name)
        sys.modules.update(self._of_job)

    def find_spec(self, name: str, path: "Any", target: "Any" = None) -> "Any":
        if path is not None or get_ident() != self._thread or name not in sys.stdlib_module_names:
            return None
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        return finder.find_spec(name, FOLDERS, target)


def _shadows(name: str, module: "Any") -> bool:
    """Whether a module that has the name of one of the standard library's is the job's."""
    if name not in sys.stdlib_module_names:
        return False
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not any(file.startswith(folder) for folder in FOLDERS)
