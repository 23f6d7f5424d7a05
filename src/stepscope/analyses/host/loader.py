"""Whether worker processes feed the run, and whether it waits for them."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.host.activity import HostActivity
from stepscope.core.trace import Bool, Int64, Kind, Trace

WORKERS = re.compile(r"_MultiProcessingDataLoaderIter\.__next__")
SERIAL = re.compile(r"_SingleProcessDataLoaderIter\.__next__|^enumerate\(IterableDataset\)")
"""Batches that the training process makes; the second is the capture's own mark, where the loop
iterates a dataset with no DataLoader."""
READY_NS = 300_000.0
"""Fetching a batch that a worker has ready: 0.05 ms for one small tensor (lab), here six times
that: batches of many tensors were not measured."""

MESSAGE_NS = 650_000.0
TENSOR_NS = 350_000.0
"""Nanoseconds that a process on either side of a batch that a worker hands over spends: for the
batch, and for each tensor in it, whose memory goes over as an open file, on a connection of its own
(0.34 to 0.38 ms for 4 to 64 tensors, one core of an ARM server; own lab, table_trivial_loader, an
x86 host: 4 workers took 1.1 ms of loading two tensors off the step and made it 0.6 ms longer)."""
FETCH_NS = MESSAGE_NS + TENSOR_NS
"""Where it is not known how many there are."""


class Policy(Struct, frozen=True, kw_only=True):
    most_steps: float = 0.5
    """Share of the fetches that must wait, unless all waits together are long."""
    long_wait: float = 0.2
    """Share of a step waited on average: several workers that take long each hand their batches
    over in a burst, so that one fetch waits for all; a burst that a deeper queue would smooth costs
    less."""


POLICY = Policy()


def next_calls(trace: Trace, host: HostActivity, pattern: re.Pattern[str]) -> Int64:
    """The loader's `__next__` calls of this kind, in order,
    on the threads that drive the device."""
    return np.flatnonzero(
        trace.is_kind(Kind.MARK, Kind.OP) & host.driving & matching(trace, pattern)
    )


def fetch_times(trace: Trace, host: HostActivity) -> Int64:
    """Durations of the fetches from worker processes."""
    times: Int64 = trace.dur_ns[next_calls(trace, host, WORKERS)]
    return times


def ready_ns(trace: Trace, host: HostActivity, num_tensors: int | None) -> float:
    """What a fetch takes this run whose batch is ready: the shortest recorded one, or less where
    that waited too."""
    handed_over = FETCH_NS if num_tensors is None else MESSAGE_NS + TENSOR_NS * num_tensors
    return float(fetch_times(trace, host).min(initial=round(handed_over)))


def waiting_fetches(trace: Trace, host: HostActivity) -> Bool:
    """Mask of the fetches from worker processes that waited for their batch."""
    waiting: Bool = fetch_times(trace, host) > READY_NS
    return waiting


def is_starved(trace: Trace, host: HostActivity, step_interval_ns: float) -> bool:
    """Whether the workers, not the step, limit the run:
    most fetches wait, or they wait long on average."""
    fetches = fetch_times(trace, host)
    if len(fetches) == 0:
        return False
    waits = float(waiting_fetches(trace, host).mean()) > POLICY.most_steps
    return waits or float(fetches.mean()) >= POLICY.long_wait * step_interval_ns
