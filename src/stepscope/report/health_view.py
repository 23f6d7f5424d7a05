"""A health check in the terminal: the answer, and a line for each question."""

from __future__ import annotations

import io

from rich.console import Console

from stepscope.core.health import BAD, OK, Health
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.sheet import Sheet

MARKS = {OK: "ok", BAD: "BAD"}
ANSWERS = {OK: "Healthy.", BAD: "Not healthy."}


def render_health(answer: Health, *, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_health(answer, console)
    return captured.get()


def show_health(answer: Health, console: Console) -> None:
    utf8 = "utf" in console.encoding.lower()
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=False, ascii_only=not utf8)
    sheet.prose(ANSWERS.get(answer.state, "Could not tell."), style="bold")
    sheet.blank()
    for check in answer.checks:
        sheet.prose(check.words, indent=22, lead=f"  {MARKS.get(check.state, '?'):<3}  {check.name}")
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
