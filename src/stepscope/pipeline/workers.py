"""Who reads the files of a job: this process, other processes, or a Dask cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from stepscope import __version__
from stepscope.errors import StepscopeError, UsageError
from stepscope.pipeline.tasks import OUT_OF_MEMORY, Workers
from stepscope.readers.remote import is_private, size_of
from stepscope.readers.source import Source

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

CONNECT_S = 15
"""To reach a scheduler."""
IDLE_S = 60.0
"""A cluster that has had no worker, or no scheduler, for this long is not waited for:
one that grows on demand takes less."""
MIN_TEXT_BYTES = 64 << 20
"""Below it one process is done before others have started:
these take a second or two, and read 20 to 40 MB in it."""
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
    """Those that this process may use."""
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
