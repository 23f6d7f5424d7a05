"""Processes that are spawned without the program that asks for them, nor the folder it runs in."""

from __future__ import annotations

import multiprocessing.spawn
import multiprocessing.util
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from threading import Lock, get_ident
from typing import Any

from stepscope.process.isolation import trusted_path

_MAIN = ("init_main_from_name", "init_main_from_path")
_FLAGS = "_args_from_interpreter_flags"
"""Name of the function that gives the options a Python is spawned with, the tracker of its locks
too."""
_lock = Lock()


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 - the name is multiprocessing's
        with _isolated():
            return SpawnProcess._Popen(process_obj)  # noqa: SLF001 - the one place where it starts


class WithoutMain(SpawnContext):
    """Not fork: it is unsafe once threads run, and the progress bar is one."""

    Process = _Process

    def __init__(self) -> None:
        super().__init__()
        # It is a Python too, which the first lock of a pool would start in the working folder.
        with _isolated():
            resource_tracker.ensure_running()


@contextmanager
def _isolated() -> Iterator[None]:
    """What this thread spawns meanwhile starts with `-I`, and looks for modules where we do.

    A spawned process is a `python -c`, which would look into the working folder before the standard
    library. It also runs the program's main module first: a script without `if __name__ ==
    "__main__"` would ask there for what it is asked for, and end for it.
    """
    spawn: Any = multiprocessing.spawn
    util: Any = multiprocessing.util
    mine = get_ident()

    def flags() -> list[str]:
        given: list[str] = flags_of()
        return given if get_ident() != mine or "-I" in given else ["-I", *given]

    def data(name: str) -> dict[str, Any]:
        given: dict[str, Any] = data_of(name)
        if get_ident() != mine:
            return given
        kept = {key: value for key, value in given.items() if key not in _MAIN}
        return {**kept, "sys_path": trusted_path()}

    with _lock:
        flags_of, data_of = getattr(util, _FLAGS), spawn.get_preparation_data
        setattr(util, _FLAGS, flags)
        spawn.get_preparation_data = data
        try:
            yield
        finally:
            setattr(util, _FLAGS, flags_of)
            spawn.get_preparation_data = data_of
