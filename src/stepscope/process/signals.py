"""Signals that reach us while a job runs: passed on to it, or raised so that it is ended first."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

from stepscope.process.watchdog import Watchdog

NOT_PASSED_ON = (
    # Nobody can take these.
    *("SIGKILL", "SIGSTOP"),
    # About our own children, terminal and sockets.
    *("SIGCHLD", "SIGWINCH", "SIGURG", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGXFSZ", "SIGINFO"),
    # Faults of our own process.
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGEMT"),
)
FROM_KEYS = ("SIGINT", "SIGQUIT", "SIGTSTP")
"""What the keys of a terminal send to everything in the foreground."""
SETTLE_S = 0.05
"""A signal to the group reaches one process after the other; `timeout` sends one to its child and
one to the group."""
ENDS_US = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Relay:
    """Takes the signals while it is entered, in the main thread.

    A terminal's keys, `kill -N -GROUP` and a closed terminal reach the job by themselves, for it is
    in our process group. A job may end gently at the first Ctrl-C and at once at the second, so
    nothing may come twice. The watchdog is in the group too: what it has got, the job has got.
    """

    def __init__(self, watchdog: Watchdog, on_usr2: Callable[[], object] | None = None) -> None:
        """`on_usr2` is called for SIGUSR2, which is not the job's."""
        self._watchdog, self._on_usr2 = watchdog, on_usr2
        self._job: subprocess.Popen[bytes] | None = None
        self._queue: list[int] = []
        self._is_busy = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        not_passed_on = {getattr(signal, name, None) for name in NOT_PASSED_ON}
        for number in signal.valid_signals() - not_passed_on:
            # What is ignored, as under nohup, the job ignores too. A handler that is not
            # Python's own belongs to somebody else.
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self._take)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def attach(self, job: subprocess.Popen[bytes]) -> None:
        """The job has been started.

        It may have missed what came before; twice does no harm then.
        """
        if self._queue:
            self._watchdog.group_signals()
        self._job = job
        early, self._queue = self._queue, []
        for number in early:
            self._pass_on(number, set())

    def _take(self, number: int, _: FrameType | None) -> None:
        self._queue.append(number)
        # While some are being passed on, others come: this function is called inside itself.
        while self._queue and self._job is not None and not self._is_busy:
            self._is_busy = True
            try:
                self._pass_all_on()
            finally:
                self._is_busy = False

    def _pass_all_on(self) -> None:
        ahead: set[int] = set()
        while True:
            time.sleep(SETTLE_S)
            numbers, self._queue = self._queue, []
            answer = self._watchdog.group_signals()
            to_group = None if answer is None else answer | ahead
            # Signals come while the watchdog is asked: the answer may name one that is not among
            # the numbers, or of a second one. Our own copy is here now or in a moment.
            ahead = (answer or set()) & ({*self._queue} | {*self._before} - {*numbers})
            for number in _in_effect(numbers):
                self._pass_on(number, to_group)
            if not self._queue and not ahead:
                return

    def _pass_on(self, number: int, to_group: set[int] | None) -> None:
        assert self._job is not None
        if number == getattr(signal, "SIGUSR2", None):
            if self._on_usr2 is not None:
                self._on_usr2()
            return
        if not self._has_got(number, to_group):
            with suppress(OSError):
                self._job.send_signal(number)
        if number == getattr(signal, "SIGTSTP", None):
            self._stop()

    def _has_got(self, number: int, to_group: set[int] | None) -> bool:
        """Whether the job got it with us, or is not meant to."""
        assert self._job is not None
        if to_group is None:
            return number in {getattr(signal, name, None) for name in FROM_KEYS}
        if number not in to_group:
            return False
        with suppress(OSError):
            # `timeout` puts itself into another group of this session, where no key reaches it.
            # A job in another session is to take no notice of this terminal.
            pid = self._job.pid
            return os.getpgid(pid) == os.getpgrp() or os.getsid(pid) != os.getsid(0)
        return True

    def _stop(self) -> None:
        """Stop as the signal does where nobody takes it: a shell waits for this."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._take)


def _in_effect(numbers: list[int]) -> list[int]:
    """Each once, in order. Of a stop and a continuation the last one stands, as in the kernel."""
    last = [number for index, number in enumerate(numbers) if number not in numbers[index + 1 :]]
    undone = {getattr(signal, name, None) for name in ("SIGTSTP", "SIGCONT")}
    pair = [number for number in last if number in undone]
    return [number for number in last if number not in pair[:-1]]


def signals_raise(raised: Callable[[int], BaseException]) -> AbstractContextManager[None]:
    """Signals that would end us where we stand raise instead, as long as this lasts.

    `raised` makes what is raised of a signal's number. What is ignored, as under nohup, stays so,
    and what raises already is left to whoever said so.
    """

    def leave(number: int, _frame: object) -> None:
        raise raised(number)

    return _handled(
        {number: leave for number in ENDS_US if signal.getsignal(number) is signal.SIG_DFL}
    )


def ended_as_by_hand() -> AbstractContextManager[None]:
    """SIGTERM, as from `timeout`, and SIGHUP do what Ctrl-C does."""
    return signals_raise(lambda _: KeyboardInterrupt())


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Ctrl-C and what else would end us comes when this is over."""
    came: list[int] = []
    with _handled(dict.fromkeys((signal.SIGINT, *ENDS_US), lambda number, _: came.append(number))):
        yield
    for number in dict.fromkeys(came):
        signal.raise_signal(number)


@contextmanager
def _handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Only in the main thread: no other may say what becomes of signals."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
