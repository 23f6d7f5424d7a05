"""Many tasks on an executor:
a few in flight at a time, results as they come, and a worker that dies costs a retry."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from typing import TypeVar

from stepscope.errors import StepscopeError

MAX_DEATHS = 3
"""Of the workers on one task:
it is tried twice more, the last time alone, so that no other task can be to blame."""
OUT_OF_MEMORY = "most likely for lack of memory"
POLL_S = 1.0
"""Between two looks at whether the workers are still there."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """An executor, and what to do when it breaks. This one does nothing about it."""

    is_local = True
    """Whether they see this machine's disk."""
    lost: tuple[type[BaseException], ...] = ()
    """Raised for a task on which the executor's workers died and which it has given up itself."""

    def __init__(self, executor: Executor, width: int) -> None:
        self.executor = executor
        self.width = width
        """Tasks in flight."""

    def renew(self) -> str:
        """A new executor in place of a broken one, and how the worker that broke it died."""
        raise StepscopeError("a worker process died; try again with --jobs 1")

    def check(self) -> None:
        """Raise when nobody is left to work: waiting on would be for ever."""


class DiedError(Exception):
    """What a task gives whose workers died, every time; its text says how."""


def run_tasks(
    workers: Workers, task: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[tuple[int, Result | DiedError]]:
    """The number of each item and its result, in the order they finish."""
    queue = _Queue(len(items))
    running: dict[Future[Result], int] = {}
    while queue or running:
        broken = False
        while not broken and (number := queue.take(len(running), workers.width)) is not None:
            try:
                running[workers.executor.submit(task, items[number])] = number
            except BrokenExecutor:
                queue.put_back(number)
                broken = True
        done = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED).done
        if not done and not broken:
            workers.check()
        broken = broken or any(
            not future.cancelled() and isinstance(future.exception(), BrokenExecutor)
            for future in done
        )
        if broken:
            # A broken executor ends all it had. What finished before that is as good as ever.
            done = wait(running).done
        cause = workers.renew() if broken else OUT_OF_MEMORY
        for future in done:
            number = running.pop(future)
            try:
                yield number, future.result()
            except (BrokenExecutor, MemoryError):
                if not queue.retry(number):
                    yield number, DiedError(cause)
            except workers.lost:
                yield number, DiedError(OUT_OF_MEMORY)
            except CancelledError:
                raise StepscopeError(
                    "the tasks were cancelled: whoever ran them is gone. Start it again and try "
                    "anew"
                ) from None


class _Queue:
    """What is still to do: first tries, then second ones before them, then third ones alone."""

    def __init__(self, num: int) -> None:
        self._waiting = deque(range(num))
        self._alone: deque[int] = deque()
        self._deaths: Counter[int] = Counter()
        self._is_alone = False

    def __bool__(self) -> bool:
        return bool(self._waiting or self._alone)

    def take(self, num_running: int, width: int) -> int | None:
        """The next to start with those that run; None when it has to wait."""
        if num_running == 0:
            self._is_alone = False
        if self._alone:
            if num_running:
                return None
            self._is_alone = True
            return self._alone.popleft()
        if self._is_alone or num_running >= width or not self._waiting:
            return None
        return self._waiting.popleft()

    def put_back(self, number: int) -> None:
        (self._alone if self._deaths[number] == MAX_DEATHS - 1 else self._waiting).appendleft(
            number
        )

    def retry(self, number: int) -> bool:
        """Whether it is tried again."""
        self._deaths[number] += 1
        if self._deaths[number] < MAX_DEATHS:
            self.put_back(number)
        return self._deaths[number] < MAX_DEATHS
