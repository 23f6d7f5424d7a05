"""The one door to the terminal: whatever goes out here holds nothing that a terminal obeys.

What a report prints is cleaned where it is made. Messages echo file names, arguments and the errors
of SQLite, DuckDB and the system, and none of those is ours. A report is drawn on a terminal, and is
plain text anywhere else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeVar

from stepscope.errors import InputError
from stepscope.process.stderr import harmless, note, say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from stepscope.core.diagnosis import Diagnosis
    from stepscope.core.gate import Gate
    from stepscope.core.timings import Advance
    from stepscope.pipeline.options import BytesRead, FilesRead
    from stepscope.readers.format import Source
    from stepscope.report.document.blocks import Document


__all__ = ["Parser", "harmless", "note", "print_answer", "print_document", "put", "say"]
T = TypeVar("T")
PIECE = 1 << 16
"""Characters that are made harmless at once: each copy of them is memory."""


def put(text: str, stream: TextIO | None = None, *, errors: str = "replace") -> None:
    """Text that is made already, on standard output or another stream; `errors` says what becomes
    of what its encoding lacks."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        stream.write(harmless(piece).encode(encoding, errors).decode(encoding))


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments, which it echoes."""

    def error(self, message: str) -> NoReturn:
        """The cause alone: it is lost behind a screen of options."""
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help has the options\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            put(message, sys.stderr)
        sys.exit(status)


def ask(question: str) -> bool:
    """Whether a person at a terminal says yes. Where nobody sits there, nobody did."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    put(f"{harmless(question)} [y/N] ", sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_document(document: Document, style: str = "text") -> None:
    """Print as Markdown where that is the style; else drawn on a terminal, and plain text anywhere
    else."""
    if style == "markdown":
        from stepscope.report.document.markdown import to_markdown

        # What an encoding lacks is written as an entity, which Markdown reads.
        put(to_markdown(document), errors="xmlcharrefreplace")
        return
    from rich.console import Console

    from stepscope.report.document.terminal import show, to_text

    console = Console()
    if console.is_terminal:
        show(document, console)
    else:
        put(to_text(document))


def print_answer(
    answer: T, style: str, to_json: Callable[[T], str], to_document: Callable[[T], Document]
) -> None:
    """Print as JSON where that is the style; else as a document."""
    if style == "json":
        put(to_json(answer) + "\n")
    else:
        print_document(to_document(answer), style)


def refuse_empty(diagnosis: Diagnosis) -> int:
    """The exit code; a script must not take an input without anything in it for a good one."""
    if not diagnosis.is_empty:
        return 0
    say("nothing could be judged: there is no work in what was given. Record whole steps anew")
    return InputError.exit_code


def print_diagnosis(
    diagnosis: Diagnosis, style: str, gate: Gate | None = None, *, whole: str | None = None
) -> None:
    """The report on standard output; JSON and Markdown have the gate's answer in them, and are
    whole. Text is one screen where `whole` names the command that shows all of it."""
    from stepscope.core.timings import stage

    with stage("draw"):
        if style == "json":
            from stepscope.report.diagnosis.json import to_json

            put(to_json(diagnosis, gate) + "\n")
            return
        if style == "brief":
            from stepscope.report.diagnosis.brief import brief

            put(brief(diagnosis))
            return
        if style == "text" and whole is not None:
            from stepscope.report.diagnosis.short import next_commands, short_document

            print_document(short_document(diagnosis, next_commands(diagnosis, whole)))
            return
        from stepscope.report.diagnosis.whole import diagnosis_document

        shown = gate if style == "markdown" else None
        print_document(diagnosis_document(diagnosis, shown), style)


SHORT_S = 0.5
"""What takes no longer is over before a bar is read."""

MEASURING = 0.4
"""What linking and measuring one file take after its reading, of the time that this takes: 0.65 s
after 1.6 s (526 MB)."""


class Bars:
    """A bar for each loop that goes on, all in one display: a terminal has room for one."""

    def __init__(self) -> None:
        self._display: Progress | None = None
        self._num = 0

    @contextmanager
    def reading(self, what: str, total: int) -> Iterator[Advance]:
        """A bar that is there at once."""
        task = self._add(what, total)
        try:
            yield lambda done: self._update(task, done)
        finally:
            self._remove(task)

    @contextmanager
    def loop(self, what: str, total: int) -> Iterator[Advance]:
        """A bar that comes when it takes longer than a moment."""
        began_s = time.monotonic()
        task: TaskID | None = None

        def advance(done: int) -> None:
            nonlocal task
            if task is None and time.monotonic() - began_s > SHORT_S:
                task = self._add(what, total)
            if task is not None:
                self._update(task, done)

        try:
            yield advance
        finally:
            if task is not None:
                self._remove(task)

    def show(self, what: str, total: int, is_long: bool) -> AbstractContextManager[Advance]:
        return self.reading(what, total) if is_long else self.loop(what, total)

    def _add(self, what: str, total: int) -> TaskID:
        if self._display is None:
            self._display = _display()
            self._display.start()
        self._num += 1
        return self._display.add_task(what, total=total)

    def _update(self, task: TaskID, done: int) -> None:
        if self._display is not None:
            self._display.update(task, completed=done)

    def _remove(self, task: TaskID) -> None:
        assert self._display is not None
        self._num -= 1
        if self._num:
            self._display.remove_task(task)
            return
        self._display.stop()
        self._display = None


BARS = Bars()


def _display() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def loops_shown() -> Iterator[None]:
    """Long loops within it have a bar, where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from stepscope.core.timings import shown_by

    with shown_by(BARS.show):
        yield


@contextmanager
def progress_bar(sources: Sequence[Source]) -> Iterator[tuple[FilesRead | None, BytesRead | None]]:
    """Callbacks that move a bar on stderr: files when there are several, bytes when there is one.
    None off a terminal."""
    if not sys.stderr.isatty():
        yield None, None
        return
    from stepscope.readers.remote import size_of

    if len(sources) == 1:
        size = sources[0].length or size_of(sources[0].path)
        with BARS.reading("reading, measuring", round(size * (1 + MEASURING))) as advance:
            yield None, advance
    else:
        with BARS.reading(f"{len(sources)} files", len(sources)) as advance:
            yield lambda done, _total: advance(done), None
