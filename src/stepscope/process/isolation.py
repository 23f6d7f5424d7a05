"""Our own processes and the tools that we start, with nothing of the working folder in them.

Recordings come from strangers, and a command is often started in the folder that holds them. A
module, a `sitecustomize.py` or a program that lies there never runs: Python is started with `-I`
and told where modules are, and a program is started by its whole path.
"""

# Nothing more: with `python -m stepscope` this is imported before the working folder is off
# sys.path, and these two are there in every Python.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = os.path.abspath(__file__).rpartition(os.path.join("stepscope", "process"))[0][:-1]
"""Where stepscope itself was imported from."""
CODE = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); module = sys.argv[2]; "
    "del sys.argv[1:3]; import runpy; runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
"""`-m` without the working folder. Its first argument is where modules are looked for."""


def isolated_python(module: str, *arguments: str) -> list[str]:
    """The command line of a Python of our own that runs a module. `-I` leaves out PYTHONPATH and
    the user's own packages, so it gets our paths: stepscope may be installed there."""
    return [sys.executable, "-I", "-c", CODE, os.pathsep.join(trusted_path()), module, *arguments]


def trusted_path() -> list[str]:
    """sys.path without the working folder and what is relative to it, the standard library
    first."""
    library = os.path.dirname(os.__file__)
    entries = list(sys.path)
    first = last = entries.index(library) if library in entries else len(entries)
    if 0 < first < len(entries) and entries[first - 1].endswith(".zip"):
        first -= 1
    while last < len(entries) and _is_of_library(entries[last], library):
        last += 1
    here, own = _working_folder(), PACKAGES
    # What comes before the standard library is the starting script's folder, or PYTHONPATH.
    given = [
        entry
        for entry in entries[:first]
        if os.path.isabs(entry) and (entry == own or not _is_same(entry, here))
    ]
    rest = [entry for entry in entries[last:] if os.path.isabs(entry)]
    paths = [*entries[first:last], *given, *rest]
    return paths if own in paths else [*paths, own]


def find_tool(name: str) -> str | None:
    """A program's whole path, from PATH; never from the working folder, however PATH names it.

    A program beside our own Python counts as the last folder of PATH: that is where pip puts it
    in an environment that was not activated.
    """
    here = _working_folder()
    for folder in [*_trusted_folders(os.environ.get("PATH", os.defpath), here), *_beside_python()]:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def tool_environment(given: "Mapping[str, str]" = os.environ) -> dict[str, str]:
    """An environment for processes of our own, for what they start themselves (torch does, to
    compile): PATH has whole paths alone, without the working folder, and a Python leaves that
    folder out (from 3.11 on)."""
    folders = _trusted_folders(given.get("PATH", os.defpath), _working_folder())
    return {**given, "PATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


def _trusted_folders(path: str, here: str) -> list[str]:
    folders = path.split(os.pathsep)
    return [folder for folder in folders if os.path.isabs(folder) and not _is_same(folder, here)]


def _beside_python() -> list[str]:
    return [os.path.dirname(sys.executable)] if os.path.isabs(sys.executable) else []


def _is_of_library(entry: str, library: str) -> bool:
    return entry == library or os.path.basename(entry) == "lib-dynload"


def _is_same(folder: str, here: str) -> bool:
    return bool(here) and os.path.realpath(folder) == here


def _working_folder() -> str:
    """Real path of the working folder; empty where it was removed."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return ""
