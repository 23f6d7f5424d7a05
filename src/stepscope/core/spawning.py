"""Processes that are spawned without the program that asks for them."""

from __future__ import annotations

import sys
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 - the name is multiprocessing's
        """A spawned process runs the program's main module first. A script without `if __name__ ==
        "__main__"` would ask there for what it is asked for, and end for it."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return SpawnProcess._Popen(process_obj)  # noqa: SLF001 - the one place where it starts
        finally:
            sys.modules["__main__"] = main


class WithoutMain(SpawnContext):
    """Not fork: it is unsafe once threads run, and the progress bar is one."""

    Process = _Process
