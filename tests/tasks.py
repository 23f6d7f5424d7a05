"""Tasks that tests give to other processes: a module of its own, so that those can import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def square(number: int) -> int:
    return number * number


def die_once(marker: str) -> int:
    """Kill the worker the first time; which process did it in the end."""
    path = Path(marker)
    if path.name != "innocent" and not path.exists():
        path.touch()
        _die()
    return os.getpid()


def die_always(name: str) -> str:
    if name == "poison":
        _die()
    return name


def no_memory(number: int) -> int:
    if number == 1:
        raise MemoryError
    return number


def wait_for(what: tuple[str, float]) -> bool:
    """Wait until a file is there, or the time is over."""
    until = time.monotonic() + what[1]
    while time.monotonic() < until:
        if Path(what[0]).exists():
            return True
        time.sleep(0.02)
    return False


def _die() -> None:
    # As the kernel does when memory runs out.
    os.kill(os.getpid(), signal.SIGKILL)
