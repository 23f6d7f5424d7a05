"""How far a long loop is, told to whoever shows it; nobody, where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

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
    """For what is no loop over items: to be called with how many of the `num` are done."""
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
