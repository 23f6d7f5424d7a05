"""What RUN/site/sitecustomize.py does: wait for torch to be imported, then hook this process up.

Every Python of the job runs this at its start, launchers and loader workers too, so it costs
nothing until torch comes, and nothing that goes wrong here is ever seen by the job.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.capture.recording.cupti import forget_parents


def start(run: str) -> None:
    """Called at the start of a Python."""
    forget_parents()
    if "torch" in sys.modules:
        _hook_up(run)
    else:
        sys.meta_path.insert(0, _TorchFinder(run))


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Sees torch being imported, lets the real loader do it, and then hooks up."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # It stays until torch is really imported: many packages only ask whether it is there.
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            if path is None:
                spec = importlib.util.find_spec(name)
            else:
                spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._run, self)
        return spec


class _Then(importlib.abc.Loader):
    """A loader that does what the real one does, and then hooks up."""

    def __init__(self, loader: Any, run: str, finder: _TorchFinder) -> None:
        self._loader, self._run, self._finder = loader, run, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._loader.exec_module(module)
        _hook_up(self._run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _hook_up(run: str) -> None:
    try:
        from stepscope.capture.hooks.install import begin
        from stepscope.protocol.options import options_of
        from stepscope.protocol.run_folder import ENTERED_FILE, SITE_FOLDER, read_options

        folder = Path(run)
        with suppress(OSError):
            (folder / SITE_FOLDER / ENTERED_FILE).touch()
        options = options_of(read_options(folder))
        session = begin(folder, options)
        if options.is_trial:
            from stepscope.capture.trial.parts import begin_parts

            begin_parts(session)
    except Exception:  # noqa: BLE001 - before there is a guard, this is it
        _write_problem(run)


def _write_problem(run: str) -> None:
    """Why there is no capture in this process, for the report."""
    import os
    import traceback

    with suppress(OSError):
        (Path(run) / f"problem-{os.getpid()}.txt").write_text(
            traceback.format_exc(), encoding="utf-8"
        )
