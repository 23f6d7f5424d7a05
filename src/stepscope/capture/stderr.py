"""What stepscope says beside the job."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def say(words: str) -> None:
    """On stderr. A reader that has gone, as with `2>&1 | head`, must not end the job's launcher."""
    try:
        sys.stderr.write(f"stepscope: {words}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        drop()


def drop() -> None:
    """Nobody reads stderr any more. What is buffered must not be tried again at exit: that would
    change the exit code."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)
