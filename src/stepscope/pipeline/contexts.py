"""The ranks' contexts: traces that were read, linked and cut into steps.
Each file is parsed once, whoever needs it next."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from stepscope.analyses.rank_context import RankContext, build_context, device_of
from stepscope.core.calibrated import Calibrated
from stepscope.core.hardware import ProbedTimes
from stepscope.core.timings import stage
from stepscope.core.trace import Trace
from stepscope.hardware.lookup import find_spec
from stepscope.readers import cache
from stepscope.readers.cache import is_cached, read_trace
from stepscope.readers.format import Source

ProbedOf = Callable[[str], ProbedTimes]
"""The times that were measured on a device of that name."""
MAX_KEPT_EVENTS = 2_000_000
"""Events of all traces that are kept in memory while others are read. The others are kept as
columns on the disk."""


@stage("link")
def context_of(
    trace: Trace, hardware: Calibrated | None, probed: ProbedOf | None = None
) -> RankContext:
    """Context by what was measured on the machine, where the trace is of its device; else by the
    datasheet."""
    device = device_of(trace)
    spec = None if device is None else find_spec(device)
    is_same = hardware is not None and device is not None and hardware.is_of(device.name)
    timed = None if device is None or probed is None else probed(device.name)
    return build_context(trace, spec, hardware if is_same else None, timed)


def _key(source: Source) -> Source:
    """What the run's folder says of a rank is no part of what is in its file."""
    return replace(source, metadata=None)


class RankContexts:
    """The contexts of a recording's ranks. `close` removes what was kept on the disk."""

    def __init__(
        self,
        *,
        use_cache: bool = True,
        hardware: Calibrated | None = None,
        probed: ProbedOf | None = None,
    ) -> None:
        self.use_cache = use_cache
        self.hardware = hardware
        self.probed = probed
        self._kept: dict[Source, RankContext] = {}
        self._unsaved: set[Source] = set()
        """Sources of kept contexts that only parsing would bring back."""
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where parsed traces are kept that the user's cache does not take, until `close`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
            self._removal = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def has(self, source: Source) -> bool:
        """Whether it is in memory."""
        return _key(source) in self._kept

    def of(self, source: Source, progress: Callable[[int], None] | None = None) -> RankContext:
        """The source's context, from memory, from its columns, or parsed."""
        key = _key(source)
        if key in self._kept:
            return self._kept[key]
        self._make_room()
        with stage("read"):
            trace = None if self._folder is None else cache.load(source, self.folder)
        is_parsed = trace is None
        if trace is None:
            with stage("read"):
                trace = read_trace(source, use_cache=self.use_cache, progress=progress)
        if is_parsed and not is_cached(trace, use_cache=self.use_cache):
            self._unsaved.add(key)
        self._kept[key] = context_of(trace, self.hardware, self.probed)
        return self._kept[key]

    def _make_room(self) -> None:
        """Let go of what is too much to keep while another is read: the last one."""
        while sum(len(kept.trace) for kept in self._kept.values()) > MAX_KEPT_EVENTS:
            key, context = self._kept.popitem()
            if key in self._unsaved:
                self._unsaved.discard(key)
                cache.store(key, context.trace, folder=self.folder)

    def close(self) -> None:
        if self._folder is not None:
            self._removal()
            self._folder = None
