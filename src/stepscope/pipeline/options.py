"""What a user may decide about how recordings are read and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.core.peak import GivenWork
    from stepscope.readers.format import Source

FilesRead = Callable[[int, int], None]
"""Called with the number of files read and of all."""
BytesRead = Callable[[int], None]
Progress = Callable[
    ["Sequence[Source]"], AbstractContextManager[tuple[FilesRead | None, BytesRead | None]]
]
"""Opened around the reading of these sources; gives what to call while it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How recordings are read and judged; the defaults are those of the command line."""

    step_ms: float | None = None
    """The step time without a profiler; None where it is not known."""
    use_cache: bool = True
    """Whether parsed traces are kept in the user's cache folder."""
    jobs: int | None = None
    """Processes that read several files; None for one per core."""
    cluster: str | None = None
    """The address of a Dask scheduler whose workers read the files."""
    all_findings: bool = False
    """Also findings that give less than 2 %."""
    hardware: Path | None = None
    """A file that `stepscope calibrate` wrote; None for the one that the environment names."""
    work: GivenWork | None = None
    """Work of a job that has a log and no trace."""
    progress: Progress | None = field(default=None, compare=False, repr=False)

    @property
    def step_ns(self) -> int | None:
        return None if self.step_ms is None else round(self.step_ms * 1e6)
