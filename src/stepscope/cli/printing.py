"""The one door to the terminal: whatever goes out here holds nothing that a terminal obeys.

What a report prints is cleaned where it is made. Messages echo file names, arguments and the errors of SQLite, DuckDB and the
system, and none of those is ours. A report is drawn on a terminal, and is plain text anywhere else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TextIO

from stepscope.capture.launcher.stderr import harmless, note, say

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Parser", "harmless", "note", "print_report", "progress", "put", "say"]
CLEAR_LINE = "\r\033[K"


def put(text: str, stream: TextIO | None = None, *, errors: str = "replace") -> None:
    """Text that is made already, on standard output or another stream; `errors` says what becomes of what its encoding lacks."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    stream.write(harmless(text).encode(encoding, errors).decode(encoding))


def progress(words: str) -> None:
    """How far it is, in place of what stood on stderr's last line; without words that line is cleared."""
    sys.stderr.write(CLEAR_LINE)
    put(words, sys.stderr)
    sys.stderr.flush()


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments, which it echoes."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            put(message, sys.stderr)
        sys.exit(status)


def print_report(show: Callable[[Console], None], text: Callable[[], str]) -> None:
    """`show` draws it, `text` gives it as plain text."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        show(console)
        return
    put(text())
