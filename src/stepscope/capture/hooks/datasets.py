"""Hooks on datasets that the training loop iterates itself, with no DataLoader around them.

A DataLoader's batches are seen by its own hook. Of the rest only what `__iter__` returns is known,
and only a generator can be replaced by one that does the same. Any other iterator may be more to
the job: an object with methods of its own, a list's iterator that is pickled or asked how long it
is.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Generator
from threading import get_ident
from types import FunctionType, GeneratorType
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.patches import replace
from stepscope.capture.session import Session
from stepscope.capture.tape import WAITED

LOADING = ("/torch/utils/data/", "/torch/utils/data/_utils/")
"""Whoever is called from these files feeds a DataLoader, which is timed as a whole."""
MOST_FRAMES = 40
MOST_CLASSES = 1_000


class Datasets:
    """The subclasses of IterableDataset there are, each hooked once."""

    def __init__(self, guard: Guard, torch: Any, session: Session) -> None:
        self._guard, self._session = guard, session
        self._base = torch.utils.data.IterableDataset
        self._pipes = getattr(torch.utils.data, "IterDataPipe", ())
        self._hooked: set[type] = set()
        self._busy: set[int] = set()
        """Threads in which one is at work: of several, one inside another, the outermost is
        timed."""
        self._took = guard.watch(self._note)

    def hook(self) -> None:
        """Called when an optimizer is made: by then the job has defined what it iterates."""
        kinds, seen = [self._base], 0
        while kinds and seen < MOST_CLASSES:
            kind, seen = kinds.pop(), seen + 1
            kinds += type.__subclasses__(kind)
            is_ours = kind is not self._base and not issubclass(kind, self._pipes)
            is_own = isinstance(kind.__dict__.get("__iter__"), FunctionType)
            if is_ours and is_own and kind not in self._hooked:
                self._hooked.add(kind)
                replace(self._guard, kind, "__iter__", self._around)

    def _around(self, original: Any) -> Any:
        busy, guard = self._busy, self._guard

        @functools.wraps(original)
        def wrapper(dataset: Any) -> Any:
            batches = original(dataset)
            is_plain = type(batches) is GeneratorType
            if is_plain and guard.is_on and get_ident() not in busy and not _feeds_loader():
                timed: Any = self._timed(dataset, batches)
                timed.__name__, timed.__qualname__ = batches.__name__, batches.__qualname__
                return timed
            return batches

        return wrapper

    def _timed(self, dataset: Any, batches: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """As `yield from batches` does: what is sent and thrown goes on to them."""
        name = f"enumerate(IterableDataset)#{type(dataset).__name__}.__next__"
        clock, own_clock, busy = time.perf_counter_ns, time.thread_time_ns, self._busy
        sent, thrown = None, None
        while True:
            thread, begun, own_begun = get_ident(), clock(), own_clock()
            is_outermost, batch, is_over = thread not in busy, None, False
            busy.add(thread)
            try:
                batch = batches.send(sent) if thrown is None else batches.throw(thrown)
            except StopIteration as end:
                is_over = True
                return end.value
            finally:
                if is_outermost:
                    busy.discard(thread)
                    own_ns = None if is_over else own_clock() - own_begun
                    self._took(dataset, batch, name, begun, clock(), own_ns)
            sent, thrown = None, None
            try:
                sent = yield batch
            except GeneratorExit:
                batches.close()
                raise
            except BaseException as problem:  # noqa: BLE001 - whatever the job throws is for its own generator
                thrown = problem

    def _note(
        self, dataset: Any, batch: Any, name: str, begun: int, ended: int, own_ns: int | None
    ) -> None:
        session = self._session
        # What another thread prepares holds no step up.
        if session.writer is not None and not session.writer.is_in_training_thread:
            return
        session.tape.append((WAITED, begun, ended, own_ns))
        if session.window is not None:
            session.window.mark(name, begun, ended, None)
        if not session.free_steps:
            session.took_batch(dataset, batch)


def _feeds_loader() -> bool:
    """Whether a DataLoader, here or in a worker, is among those who asked for this iterator."""
    frame = sys._getframe(2)  # noqa: SLF001 - the only way to it
    for _ in range(MOST_FRAMES):
        folder = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[0] + "/"
        if folder.endswith(LOADING):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
