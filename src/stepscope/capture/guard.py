"""The boundary: whatever goes wrong in a hook is logged once, the capture switches off,
and training goes on."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def at_process_end(finish: Callable[[], None]) -> None:
    """A child that multiprocessing forked ends without atexit, but not without this."""
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes.Finalize(None, finish, exitpriority=0)


class Guard:
    """Whether the capture is on. Everything that the job calls goes through `watch`."""

    def __init__(self) -> None:
        self.is_on = True
        self.report: Callable[[str], None] | None = None
        """Where the first problem is written down."""
        self._at_end: list[Callable[[], None]] = []

    def at_end(self, undo: Callable[[], None]) -> None:
        """What takes a hook out again."""
        self._at_end.append(undo)

    def off(self, problem: str | None = None) -> None:
        """Takes every hook out.

        The first problem is reported; what fails while switching off is not.
        """
        if not self.is_on:
            return
        self.is_on = False
        if problem is not None and self.report is not None:
            with suppress(Exception):
                self.report(problem)
        while self._at_end:
            with suppress(Exception):
                self._at_end.pop()()

    def watch(self, function: Function) -> Function:
        """The function, as the job may call it: no exception of ours leaves it.

        Ctrl-C is not ours, and does.
        """

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                try:
                    return function(*args, **kwargs)
                except Exception:  # noqa: BLE001 - the one place: our failure must not be the job's
                    self.off(traceback.format_exc())
            return None

        return guarded  # type: ignore[return-value]
