"""What a command is doing, and what each stage of it costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Literal, TypeVar

from msgspec import Struct

Stage = Literal["start", "read", "scan", "link", "measure", "replay", "judge", "draw", "workers"]
"""Stages in the order they are shown. `workers` are other processes that read files."""
RUSAGE_BYTES = 1 if sys.platform == "darwin" else 1024
"""The unit of `ru_maxrss`."""


class Spent(Struct):
    """What one stage cost so far; stages inside it are counted by themselves."""

    cpu_s: float = 0.0
    wall_s: float | None = 0.0
    """None for other processes: they work beside this one."""
    peak_bytes: int = 0
    """The most that the process held until the stage last ended."""


class Timings:
    """A clock that is charged to the innermost stage; `start` has what is in no other."""

    def __init__(self) -> None:
        self.stages: dict[Stage, Spent] = {}
        self._inside: list[Stage] = ["start"]
        self._cpu_s = 0.0
        # Nothing but computing has been done so far.
        self._wall_s = time.monotonic() - time.process_time()

    def enter(self, name: Stage) -> None:
        self._charge()
        self._inside.append(name)

    def leave(self) -> None:
        self._charge()
        self._inside.pop()

    def end(self) -> None:
        """Adds what other processes took, of those that have ended."""
        self._charge()
        import resource

        others = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = others.ru_utime + others.ru_stime
        if cpu_s > 0:
            self.stages["workers"] = Spent(
                cpu_s=cpu_s, wall_s=None, peak_bytes=others.ru_maxrss * RUSAGE_BYTES
            )

    def _charge(self) -> None:
        """What passed since the last call, to the innermost stage."""
        import resource

        cpu_s, wall_s = time.process_time(), time.monotonic()
        spent = self.stages.setdefault(self._inside[-1], Spent())
        spent.cpu_s += cpu_s - self._cpu_s
        spent.wall_s = (spent.wall_s or 0.0) + wall_s - self._wall_s
        spent.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RUSAGE_BYTES
        self._cpu_s, self._wall_s = cpu_s, wall_s


_TIMINGS: ContextVar[Timings | None] = ContextVar("timings", default=None)
"""Other threads see none: a stage is the main thread's."""


@contextmanager
def timed() -> Iterator[Timings]:
    """Has the stages within it counted."""
    timings = Timings()
    token = _TIMINGS.set(timings)
    try:
        yield timings
    finally:
        _TIMINGS.reset(token)
        timings.end()


@contextmanager
def stage(name: Stage) -> Iterator[None]:
    """Counts what is done within it to this stage, where somebody counts."""
    timings = _TIMINGS.get()
    if timings is None:
        yield
        return
    timings.enter(name)
    try:
        yield
    finally:
        timings.leave()


Item = TypeVar("Item")
Advance = Callable[[int], None]
"""Called with the number that is done."""
Show = Callable[[str, int, bool], AbstractContextManager[Advance]]
"""Opened around a loop, with what it does in a word or two, how many times, and whether each of
them is long, so that it is shown from the start."""

_SHOW: ContextVar[Show | None] = ContextVar("progress", default=None)


@contextmanager
def shown_by(show: Show | None) -> Iterator[None]:
    """Has the loops within it shown; None: not shown."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


@contextmanager
def followed(what: str, num: int, *, is_long: bool = False) -> Iterator[Advance]:
    """Show the progress of what is no loop over items: to be called with how many of the `num` are
    done."""
    show = _SHOW.get()
    if show is None:
        yield lambda _done: None
        return
    with show(what, num, is_long) as advance:
        yield advance


@contextmanager
def followed_together(what: str, num: int) -> Iterator[None]:
    """The loops within it, one after another, are shown as one: `num` is what they count together.
    One that ends early is done."""
    if _SHOW.get() is None:
        yield
        return
    with followed(what, num, is_long=True) as advance:
        begun = 0

        @contextmanager
        def show(_what: str, part: int, _is_long: bool) -> Iterator[Advance]:
            nonlocal begun
            before, begun = begun, begun + part
            try:
                yield lambda done: advance(before + done)
            finally:
                advance(begun)

        with shown_by(show):
            yield


def counted(
    what: str, items: Iterable[Item], num: int, *, each: int = 1, is_long: bool = False
) -> Iterator[Item]:
    """The items, of which there are `num`; each is done when the next is asked for. `each` is what
    one counts beside other loops."""
    if _SHOW.get() is None:
        yield from items
        return
    with followed(what, num * each, is_long=is_long) as advance:
        for done, item in enumerate(items, 1):
            yield item
            advance(done * each)
