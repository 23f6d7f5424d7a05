"""Who reads the files of a job: this process, other processes, or a Dask cluster."""

from __future__ import annotations

import os
import signal
import time
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
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope import __version__
from stepscope.errors import StepscopeError, UsageError
from stepscope.readers.format import Source
from stepscope.readers.remote import is_private, size_of

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor


MAX_DEATHS = 3
"""Deaths of workers on one task: it is tried twice more, the last time alone, so that no other task
can be to blame."""
OUT_OF_MEMORY = "most likely for lack of memory"
POLL_S = 1.0
"""Seconds between two looks at whether the workers are still there."""

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


CONNECT_S = 15
"""Seconds to reach a scheduler."""
IDLE_S = 60.0
"""A cluster that has had no worker, or no scheduler, for this long is not waited for:
one that grows on demand takes less."""
MIN_TEXT_BYTES = 64 << 20
"""Bytes of text below which one process is done before others have started: these take a second or
two, and read 20 to 40 MB in it."""
EXPANSION, COMPRESSED = 12, (".gz", ".zst", ".zstd", ".tgz")
"""A trace's text over its compressed size, about."""
MIN_WIDTH = 64
"""Tasks given to a cluster at a time, at the least:
one that grows on demand sees that there is work."""


class LocalWorkers(Workers):
    """Processes of this machine.
    One that is killed takes the pool with it, and a new pool is made."""

    def __init__(self, num: int) -> None:
        self._num = num
        # One more than can run, so that none waits for us.
        # All of them are retried when the pool breaks.
        super().__init__(_pool(num), num + 1)

    def renew(self) -> str:
        processes = dict(getattr(self.executor, "_processes", None) or {})
        self.executor.shutdown(wait=True, cancel_futures=True)
        self.executor = _pool(self._num)
        return death_words([process.exitcode for process in processes.values()])


def death_words(exit_codes: Sequence[int | None]) -> str:
    """What ended a pool: its executor ends the others with SIGTERM."""
    code = next((code for code in exit_codes if code not in (None, 0, -signal.SIGTERM)), None)
    if code == -signal.SIGKILL:
        return OUT_OF_MEMORY
    if code is None:
        return "ended by a signal from outside"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"with exit code {code}; what it said stands above"


def _pool(num: int) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor

    from stepscope.core.spawning import WithoutMain

    return ProcessPoolExecutor(num, mp_context=WithoutMain())


@contextmanager
def local_workers(num: int) -> Iterator[Workers]:
    workers = LocalWorkers(num)
    try:
        yield workers
    finally:
        workers.executor.shutdown(wait=True, cancel_futures=True)


class ClusterWorkers(Workers):
    """A Dask cluster. It gives the tasks of a worker that dies to others by itself,
    and gives up after some deaths."""

    is_local = False

    def __init__(self, client: Any, address: str) -> None:
        from distributed import KilledWorker

        self._client, self._address = client, address
        self._seen_s = time.monotonic()
        self.lost = (KilledWorker,)
        super().__init__(
            client.get_executor(pure=False), max(MIN_WIDTH, 2 * sum(client.nthreads().values()))
        )

    def check(self) -> None:
        """StepscopeError when there has been nobody to work for IDLE_S."""
        now = time.monotonic()
        if self._client.status == "running" and self._client.scheduler_info()["workers"]:
            self._seen_s = now
        elif now - self._seen_s > IDLE_S:
            what = "has no workers" if self._client.status == "running" else "is gone"
            words = f"the cluster at {self._address} {what} (waited {IDLE_S:.0f} s)"
            raise StepscopeError(f"{words}. Start it again, or leave out --cluster")


@contextmanager
def cluster_workers(address: str) -> Iterator[Workers]:
    """Workers of the Dask scheduler at `address`; an error in words when there is none."""
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "--cluster needs Dask, which is not installed: pip install 'stepscope[cluster]'"
        ) from None
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError, AssertionError) as problem:
        # Dask asserts that its own loop has started within ten seconds,
        # which a crowded machine may not give it.
        where = "Give a scheduler's address, such as tcp://host:8786, and see that it runs"
        raise StepscopeError(
            f"no Dask scheduler at {address} ({_first_line(problem)}). {where}"
        ) from None
    try:
        _try_out(client, address)
        workers = ClusterWorkers(client, address)
        try:
            yield workers
        finally:
            workers.executor.shutdown(wait=False)
    finally:
        client.close(timeout=CONNECT_S)


def _try_out(client: Any, address: str) -> None:
    """StepscopeError where the cluster has no worker, or cannot run what we send."""
    import asyncio

    try:
        version = client.submit(_version, pure=False).result(timeout=IDLE_S)
    except (TimeoutError, asyncio.TimeoutError):
        raise StepscopeError(
            f"the cluster at {address} has no workers (waited {IDLE_S:.0f} s). Start some, or "
            "leave out --cluster"
        ) from None
    except (ImportError, RuntimeError, asyncio.CancelledError) as problem:
        version = f"none ({_first_line(problem)})"
    if version != __version__:
        what = f"the cluster at {address} needs stepscope {__version__}, as here, and has {version}"
        raise StepscopeError(
            f"{what}. Install it where the scheduler and the workers run, and start them again"
        )


def _version() -> str:
    return __version__


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


@contextmanager
def workers_for(
    sources: Sequence[Source], jobs: int | None, cluster: str | None
) -> Iterator[Workers | None]:
    """A cluster where one is named,
    else processes when there are several files and several cores."""
    num = min(len(sources), jobs or num_cores())
    if jobs is None and text_bytes(sources) < MIN_TEXT_BYTES:
        num = 1
    if cluster is not None:
        _refuse_private(sources)
        with cluster_workers(cluster) as workers:
            yield workers
    elif num < 2 or any(is_private(source.path) for source in sources):
        # What only this process can read is read here.
        yield None
    else:
        with local_workers(num) as workers:
            yield workers


def text_bytes(sources: Sequence[Source]) -> int:
    """How much text there is to read, about."""
    total = 0
    for source in sources:
        with suppress(OSError):
            # One that has gone since is reported when it is read.
            size = source.length or size_of(source.path)
            total += size * EXPANSION if str(source.path).endswith(COMPRESSED) else size
    return total


def num_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _refuse_private(sources: Sequence[Source]) -> None:
    """What only this machine can read cannot be a cluster's task."""
    for source in sources:
        if is_private(source.path) or source.stem != source.path:
            why = "lies, or is unpacked, on this machine alone, where the cluster cannot see it"
            raise UsageError(
                f"{source.stem} {why}. Unpack it to a place that both see, or leave out --cluster"
            )
