"""A report on standard output: drawn on a terminal, plain text anywhere else, ASCII where the encoding is not UTF-8."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def print_report(show: Callable[[Console], None], text: Callable[[], str]) -> None:
    """`show` draws it, `text` gives it as plain text."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        show(console)
        return
    plain = text()
    sys.stdout.write(plain if "utf" in console.encoding.lower() else plain.encode("ascii", "replace").decode())
