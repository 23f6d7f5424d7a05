"""Bars on stderr, with the time that is left, where that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from stepscope.core.timings import Advance
    from stepscope.pipeline.options import BytesRead, FilesRead
    from stepscope.readers.format import Source

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
