"""How far a long loop is, told to whoever shows it; nobody, where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Advance = Callable[[int], None]
"""Called with the number that is done."""
Show = Callable[[str, int], AbstractContextManager[Advance]]
"""Opened around a loop, with what it does in a word or two and how many times."""

_SHOW: ContextVar[Show | None] = ContextVar("progress", default=None)


@contextmanager
def shown_by(show: Show) -> Iterator[None]:
    """Has the loops within it shown."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


def counted(what: str, items: Iterable[Item], num: int) -> Iterator[Item]:
    """The items, of which there are `num`; each is done when the next is asked for."""
    show = _SHOW.get()
    if show is None:
        yield from items
        return
    with show(what, num) as advance:
        for done, item in enumerate(items, 1):
            yield item
            advance(done)
