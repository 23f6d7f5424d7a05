"""Signals that end a command which runs jobs: they do what Ctrl-C does, so that what was measured is shown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDS_US = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def ended_as_by_hand() -> Iterator[None]:
    """SIGTERM, as from `timeout`, and SIGHUP raise KeyboardInterrupt as long as this lasts."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    # What is ignored, as under nohup, stays so.
    heard = [number for number in ENDS_US if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heard}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
