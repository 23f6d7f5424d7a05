"""The one door to the terminal: whatever goes out here holds nothing that a terminal obeys.

What a report prints is cleaned where it is made. Messages echo file names, arguments and the errors of SQLite, DuckDB and the
system, and none of those is ours. A report is drawn on a terminal, and is plain text anywhere else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from rich.console import Console

OBEYED = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # C0 without tab and newline, and DEL
    "\x80-\x9f"  # C1: one of them begins a sequence, as ESC [ does
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # directions, invisible characters, line ends
    "\U000e0000-\U000e007f"  # tags, which nobody sees
    "\ud800-\udfff"  # half characters: no encoding has them
    "]"
)
CLEAR_LINE = "\r\033[K"


def harmless(text: str) -> str:
    """The text with a question mark for each character that a terminal obeys or no encoding has; lines stay lines."""
    return text if text.isascii() and text.isprintable() else OBEYED.sub("?", text)


def put(text: str, stream: TextIO | None = None, *, errors: str = "replace") -> None:
    """Text that is made already, on standard output or another stream; `errors` says what becomes of what its encoding lacks."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    stream.write(harmless(text).encode(encoding, errors).decode(encoding))


def say(words: object) -> None:
    """A message of ours on stderr."""
    note(f"stepscope: {words}")


def note(words: object) -> None:
    """A line on stderr that is no part of the report."""
    put(f"{words}\n", sys.stderr)
    sys.stderr.flush()


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
