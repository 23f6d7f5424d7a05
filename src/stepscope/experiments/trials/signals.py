"""Signals that would end us where we stand raise instead: jobs are ended first, and what was measured is shown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

ENDS_US = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def signals_raise(raised: Callable[[int], BaseException]) -> Iterator[None]:
    """As long as this lasts; `raised` makes what is raised of a signal's number."""

    def leave(number: int, _frame: object) -> None:
        raise raised(number)

    is_main = threading.current_thread() is threading.main_thread()
    # What is ignored, as under nohup, stays so.
    heard = [number for number in ENDS_US if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heard}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def ended_as_by_hand() -> AbstractContextManager[None]:
    """SIGTERM, as from `timeout`, and SIGHUP do what Ctrl-C does."""
    return signals_raise(lambda _: KeyboardInterrupt())
