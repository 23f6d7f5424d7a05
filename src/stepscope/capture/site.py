"""RUN/site/sitecustomize.py, with its last line: waits for torch to be imported, then hooks this
process up.

Every Python of the job runs this at its start, launchers and loader workers too: it costs nothing
until torch comes, imports nothing that Python has not imported by then, and leaves nothing on
sys.path or in sys.modules. A module of the job may have any name, `sitecustomize` too. Nothing that
goes wrong here is ever seen by the job, which may be an older Python: no syntax of later ones.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

CUPTI_VARIABLE = "TEARDOWN_CUPTI"
CUPTI_MARK = "STEPSCOPE_TEARDOWN_CUPTI"
"""Set beside it where we have set it: a process that the job starts takes both out again. Its own
recordings, without CUDA, would leave it waiting at its end."""
OLDEST = (3, 10)
FINDER = "TorchFinder"


def forget_parents() -> None:
    """Takes out of the environment what a recording of the process that started this one has
    set."""
    if os.environ.pop(CUPTI_MARK, None) is not None:
        os.environ.pop(CUPTI_VARIABLE, None)


class TorchFinder:
    """Sees torch being imported, lets the real loader do it, and then hooks up."""

    def __init__(self, run: str, package: str) -> None:
        self.runs = [run]
        """More where a job of `stepscope run` starts `stepscope run`: the innermost first."""
        self.package = package
        self._is_asking = False

    def find_spec(self, name: str, path: "Any", target: "Any" = None) -> "Any":
        # It stays until torch is really imported: many packages only ask whether it is there.
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = sys.modules["_frozen_importlib"]._find_spec(name, path, target)  # noqa: SLF001
        finally:
            self._is_asking = False
        if spec is not None:
            hook_up_after(spec.loader, self)
        return spec


def hook_up_after(loader: "Any", finder: TorchFinder) -> None:
    """Has the loader import torch as it would, and then hooks up. It stays the object that it is:
    who only asks where torch is sees nothing else."""

    def exec_module(module: "ModuleType") -> None:
        del loader.exec_module
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        loader.exec_module(module)
        hook_up(finder)

    # One may be asked twice, or be none that Python made.
    if "exec_module" not in getattr(loader, "__dict__", ("exec_module",)):
        loader.exec_module = exec_module


def hook_up(finder: TorchFinder) -> None:
    """Once torch is there. stepscope is the one that started the run, whatever the job has
    installed."""
    try:
        # In a container that shares the run folder alone the job may have a stepscope of its own.
        if "stepscope" not in sys.modules and os.path.isfile(finder.package):
            load(finder.package)
        from stepscope.capture.own_imports import OwnImports

        with OwnImports():
            from stepscope.capture.begin import begin_one_of

        begin_one_of(finder.runs)
    except Exception:  # noqa: BLE001 - before there is a guard, this is it
        write_problem(finder.runs)


def load(package: str) -> None:
    """The package `stepscope`, by its file."""
    importer, files = sys.modules["_frozen_importlib"], sys.modules["_frozen_importlib_external"]
    spec = files.spec_from_file_location(
        "stepscope", package, submodule_search_locations=[os.path.dirname(package)]
    )
    module = importer.module_from_spec(spec)
    sys.modules["stepscope"] = module
    spec.loader.exec_module(module)


def write_problem(runs: "list[str]") -> None:
    """Why there is no capture in this process, for the report."""
    for run in runs:
        try:
            # torch has imported it.
            text = sys.modules["traceback"].format_exc()
            with open(
                os.path.join(run, f"problem-{os.getpid()}.txt"), "w", encoding="utf-8"
            ) as file:
                file.write(text)
        except (KeyError, OSError):
            pass


def start(file: str, package: str) -> None:
    """Called at the start of a Python, by RUN/site/sitecustomize.py, which is `file`."""
    here = os.path.dirname(os.path.abspath(file))
    # Python gives an entry of PYTHONPATH as it was written there.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path_importer_cache.pop(here, None)
    forget_parents()
    if sys.version_info < OLDEST:
        return
    run = os.path.dirname(here)
    for other in sys.meta_path:
        if type(other).__name__ == FINDER and type(other).__module__ == "sitecustomize":
            other.runs.append(run)  # type: ignore[attr-defined]
            return
    finder = TorchFinder(run, package)
    if "torch" in sys.modules:
        hook_up(finder)
    else:
        sys.meta_path.insert(0, finder)


def give_way() -> None:
    """The machine or the job may have a sitecustomize of its own, which ours hid: that is the one
    to be imported. Where there is none the error is Python's own, which expects it there."""
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
