"""What loops tell whoever shows them, kept for a test to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from stepscope.core.timings import Advance, shown_by


class FollowedLoop(Struct, kw_only=True):
    what: str
    total: int
    is_long: bool
    done: list[int]


@contextmanager
def followed_loops() -> Iterator[list[FollowedLoop]]:
    """Those within it, as they began."""
    loops: list[FollowedLoop] = []

    @contextmanager
    def show(what: str, total: int, is_long: bool) -> Iterator[Advance]:
        loop = FollowedLoop(what=what, total=total, is_long=is_long, done=[])
        loops.append(loop)
        yield loop.done.append

    with shown_by(show):
        yield loops
