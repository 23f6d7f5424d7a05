"""A bar on stderr while files are read, with the time that is left, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.pipeline.options import BytesRead, FilesRead
    from stepscope.readers.source import Source


@contextmanager
def progress_bar(sources: Sequence[Source]) -> Iterator[tuple[FilesRead | None, BytesRead | None]]:
    """Callbacks that move a bar on stderr: files when there are several, bytes when there is one.
    None off a terminal."""
    if not sys.stderr.isatty():
        yield None, None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from stepscope.readers.remote import size_of

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        if len(sources) == 1:
            size = sources[0].length or size_of(sources[0].path)
            task = bar.add_task("reading", total=size)
            yield None, lambda done: bar.update(task, completed=done)
        else:
            task = bar.add_task(f"{len(sources)} files", total=len(sources))
            yield lambda done, total: bar.update(task, completed=done, total=total), None
