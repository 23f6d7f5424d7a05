"""Who reads the files of a job: this process, processes beside it, or a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stepscope.errors import UsageError
from stepscope.readers.remote import is_private
from stepscope.readers.source import Source
from stepscope.rules.tasks import Workers
from stepscope.rules.workers import cluster_workers, local_workers


@contextmanager
def workers_for(sources: Sequence[Source], jobs: int | None, cluster: str | None) -> Iterator[Workers | None]:
    """A cluster where one is named, else processes when there are several files and several cores."""
    num = min(len(sources), jobs or num_cores())
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
            raise UsageError(f"{source.stem} {why}. Unpack it to a place that both see, or leave out --cluster")
