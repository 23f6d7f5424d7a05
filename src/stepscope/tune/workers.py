"""The processes at work on one search: each trial under way has a pulse, and one whose pulse has
stopped is nobody's.

What is under way has a mark in the storage: who is at it, and a count that goes up every few
seconds. Whoever looks holds a mark that stays the same against a clock of its own, so that machines
whose clocks differ need not agree on the time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)

MARK, LEFT = "claim", "left"
"""Attributes of a trial: who is at it, and that it was left on purpose."""
BEAT_S = 5.0
GONE_S = 45.0
"""A mark that stays the same for so long is of a process that is gone: nine beats, and more than a
lock that was left takes to be broken."""

Mark = Mapping[str, Any]


class Workers:
    """The processes at work on a study, this one among them."""

    def __init__(
        self,
        is_shared: bool,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        beat_s: float = BEAT_S,
    ) -> None:
        self.is_shared, self.host, self._clock, self._beat_s = is_shared, host, clock, beat_s
        self._who = {"host": host, "pid": os.getpid(), "id": os.urandom(6).hex()}
        self._seen: dict[int, tuple[object, float]] = {}
        """Mark of each trial by number, and when it was first seen so."""

    def mark(self, count: int = 0) -> dict[str, Any]:
        """Mark of what this process is at."""
        return {**self._who, "beat": count}

    def is_mine(self, mark: object) -> bool:
        return isinstance(mark, dict) and mark.get("id") == self._who["id"]

    def is_on_this_host(self, mark: object) -> bool:
        """Whether it is another process on this very machine."""
        return isinstance(mark, dict) and mark.get("host") == self.host and not self.is_mine(mark)

    def is_gone(self, number: int, mark: object) -> bool:
        """Whether nothing was heard of what is under way for so long that its process must have
        ended."""
        if not self.is_shared or self.is_mine(mark):
            return False
        now = self._clock()
        before = self._seen.get(number)
        if before is None or before[0] != mark:
            self._seen[number] = (mark, now)
            return False
        return now - before[1] > GONE_S

    @contextmanager
    def pulse(self, tell: Callable[[Mark], object]) -> Iterator[None]:
        """Mark it as being worked on, as long as this lasts."""
        if not self.is_shared:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(
            target=self._beat, args=(tell, over), name="stepscope-pulse", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _beat(self, tell: Callable[[Mark], object], over: threading.Event) -> None:
        count = 0
        while not over.wait(self._beat_s):
            count += 1
            try:
                tell(self.mark(count))
            except Exception as problem:  # noqa: BLE001 - whatever the storage raises: a beat that is missed is made up for
                logger.debug("a beat was missed: %s", problem)


def host_of(mark: object) -> str:
    """Host as far as the storage, which others write to, tells it."""
    return str(mark.get("host", ""))[:200] if isinstance(mark, dict) else "another machine"
