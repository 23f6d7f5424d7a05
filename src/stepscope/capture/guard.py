"""The boundary: whatever goes wrong in a hook is logged once, the capture switches off,
and training goes on. What a handler of a signal raises while a hook runs is the job's."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen")
_WITHOUT_TEXT = (AssertionError, MemoryError, NotImplementedError, StopIteration)
"""What Python, or a line of ours, raises with no arguments."""


def at_process_end(finish: Callable[[], None]) -> None:
    """A child that multiprocessing forked ends without atexit, but not without this."""
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes.Finalize(None, finish, exitpriority=0)


def is_ours(error: BaseException) -> bool:
    """Whether our own work failed. False where a handler of a signal raised it, or somebody put it
    into this thread from outside: it came while a hook ran, and is meant for the job."""
    if not isinstance(error, Exception):
        return False
    handlers = _handler_codes()
    trace = error.__traceback__
    caller: FrameType | None = None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in handlers or (caller is not None and _is_handler(frame, caller)):
            return False
        caller, trace = frame, trace.tb_next
    return caller is None or not _is_from_outside(error, caller)


def _handler_codes() -> set[CodeType]:
    """The codes of the job's handlers, as they are now."""
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        handler = getattr(handler, "func", handler)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            codes.add(code)
    return codes


def _is_handler(frame: FrameType, caller: FrameType) -> bool:
    """A handler of a signal is given the frame that it interrupts, which no other function is."""
    values = list(frame.f_locals.values())
    values += [part for value in values if type(value) is tuple for part in value]
    return any(value is caller for value in values)


def _is_from_outside(error: BaseException, innermost: FrameType) -> bool:
    """Raised by no line of anybody's while a line of ours runs, or one that it calls: of a class of
    the job's own, or of Python's where that always says what is wrong."""
    kind, file = type(error), innermost.f_code.co_filename
    if kind.__module__ == "builtins":
        return file.startswith(_OURS) and not error.args and not isinstance(error, _WITHOUT_TEXT)
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    known = (_OURS, *([] if torch is None else [os.path.dirname(torch) + os.sep]))
    module = str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen")
    return _is_in(file, known) and not _is_in(module, known)


def _is_in(file: str, folders: tuple[str, ...]) -> bool:
    """Whether a file is in one of these, or in the standard library."""
    is_standard = file.startswith(_LIBRARIES) and "-packages" not in file
    return is_standard or file.startswith(folders)


def _told(error: Exception) -> str:
    """Text of an error as Python tells it, without the lines of source: to read them is to open
    files, in a thread of the job's, which may have forbidden that."""
    lines = ["Traceback (most recent call last):"]
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
        trace = trace.tb_next
    return "\n".join([*lines, "".join(traceback.format_exception_only(error))])


class suppressed:  # noqa: N801 - as contextlib.suppress
    """Suppress exceptions as suppress(Exception) does, for failures of ours alone."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> bool:
        return error is not None and is_ours(error)


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
            with suppressed():
                self.report(problem)
        while self._at_end:
            with suppressed():
                self._at_end.pop()()

    def watch(self, function: Function) -> Function:
        """The function, as the job may call it: no exception of ours leaves it.

        Ctrl-C, and what else a signal's handler raises, is not ours, and does.
        """

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    if not is_ours(error):
                        raise
                    self.off(_told(error))
            return None

        return guarded  # type: ignore[return-value]
