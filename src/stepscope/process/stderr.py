"""What stepscope says beside the job.

Nothing that a terminal obeys, and nothing that ends the launcher.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

OBEYED = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # C0 without tab and newline, and DEL
    "\x80-\x9f"  # C1: one of them begins a sequence, as ESC [ does
    # directions, invisible characters, line ends
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\U000e0000-\U000e007f"  # tags, which nobody sees
    "\ud800-\udfff"  # half characters: no encoding has them
    "]"
)


def harmless(text: str) -> str:
    """The text with a question mark for each character that a terminal obeys or no encoding has.

    Lines stay lines.
    """
    return text if text.isascii() and text.isprintable() else OBEYED.sub("?", text)


def say(words: object) -> None:
    """A message of ours on stderr."""
    note(f"stepscope: {words}")


def note(words: object) -> None:
    """A line on stderr that is no part of the report. A reader that has gone, as with `2>&1 |
    head`, must not end the job's launcher."""
    try:
        encoding = sys.stderr.encoding or "utf-8"
        sys.stderr.write(harmless(f"{words}\n").encode(encoding, "replace").decode(encoding))
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
