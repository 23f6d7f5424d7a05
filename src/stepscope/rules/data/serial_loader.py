"""Batches are made in the training process, and the device waits for them.

What it sees: the loader's `__next__` of a single-process DataLoader iterator on the thread that
drives the device, with the time the device stood idle meanwhile.

Why it costs: while the process loads, decodes and collates the next batch it launches nothing; the
device finishes what it has and stands still. Nothing of that work needs to happen between two
steps. With w workers a batch is ready every 1/w of the time it takes to make one; only where that
is longer than the step does part of the wait stay.

Where the process keeps many cores busy while it makes a batch, that may be work for which a worker
has one thread alone: then workers bring little. Threads of PyTorch's operators spin between two of
them, though, and look as busy with nothing to do. How much of it is work, no recording says: with
operators in the loader the prediction lies between both, and its range holds both.

Evidence it needs: `enumerate(DataLoader)` marks, which the profiler records by itself.

What to do: give the DataLoader `num_workers` of 4 and more, up to the cores there are for each
rank, with `pin_memory=True` and `persistent_workers=True`. Each worker holds `prefetch_factor`
batches in host memory. A loader that takes less than a fetch from another process does is best left
where it is.

Example: 40 random-sort transforms per sample in the main process took 34 of a 65 ms step; 12
workers made it 31 ms.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.loader import SERIAL, next_calls
from stepscope.analyses.intervals import lengths_in, union
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import RankMetadata
from stepscope.core.trace import Kind
from stepscope.replay.simulate import play
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.loading import (
    FETCH_NS,
    input_per_step,
    loaded_every,
    loading_frames,
    with_input,
)

CODE = "serial-loader"
BOUND = "data"
NEEDS_DEVICE = False


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Of the step spent in the loader below which there is nothing to say."""
    workers: int = 8
    """Tried by the fix: the loading that one step needs is divided by it."""
    cautious_workers: int = 4
    """What eight give where cores are shared, or where the loading used several threads already."""
    hopeful_workers: int = 16


POLICY = Policy()
MANY_THREADS = 1.5
"""Cores in use from which more than one thread makes a batch."""
LEAST_CORES = 0.05
"""Of a core that a worker is reckoned to need at least."""


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the loading off the step's path, if it is the training process that does it."""
    serial = [row for row in case.facts.host.loader if "SingleProcess" in row.name]
    if not serial or case.graph is None or case.step_interval_ns is None:
        return None
    per_step = input_per_step(case.graph)
    loading_ns = float(np.median(per_step)) if len(per_step) else 0.0
    if loading_ns < POLICY.least_share * case.step_interval_ns:
        return None
    calls = sum(row.count for row in serial)
    longest = max(row.longest_ns for row in serial)
    events, events_ns = loading_frames(case, SERIAL)
    workers = _workers(case)
    few, many = min(workers, POLICY.cautious_workers), workers
    if case.metadata is None:
        many = max(workers, POLICY.hopeful_workers)
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary=f"The training process makes its own batches: {loading_ns / 1e6:.1f} ms a step in "
        "which it launches nothing.",
        action=f"DataLoader(num_workers={workers}, persistent_workers=True, pin_memory=True); "
        f"{_least(case, loading_ns, workers)}",
        evidence=(
            f"{calls} calls of {serial[0].name}",
            f"the longest took {longest / 1e6:.1f} ms",
            *_settings(case, loading_ns),
        ),
        events=events,
        events_ns=events_ns,
        change=lambda graph: loaded_every(graph, _batch_ns(case, loading_ns, workers)),
        cautious=lambda graph: loaded_every(graph, _batch_ns(case, loading_ns, few, sure=True)),
        hopeful=lambda graph: loaded_every(graph, loading_ns / many),
    )


def _workers(case: Case) -> int:
    """How many to try: no more than the cores that the rank has beside its own thread, where that
    is known."""
    metadata = case.metadata
    if metadata is None or metadata.own_cores is None:
        return POLICY.workers
    # Workers that wait for a disk or a network share cores. Beside a device nothing tells waits for
    # data from waits for it.
    cores = _cores_per_worker(metadata) if case.graph is not None and case.graph.on_host else 1.0
    return min(POLICY.workers, max(1, math.floor((metadata.own_cores - cores) / cores)))


def _batch_ns(case: Case, loading_ns: float, workers: int, *, sure: bool = False) -> float:
    """How often that many workers bring a batch.

    Work that several threads did in the training process is one thread's in a worker. Without a
    device the model runs on the same cores: what the process uses of them now is what there is to
    share. To be sure of a gain, cores must be left over.
    """
    metadata = case.metadata
    if (
        case.graph is None
        or metadata is None
        or metadata.own_cores is None
        or case.step_interval_ns is None
    ):
        return loading_ns / workers
    if not case.graph.on_host:
        threads = _threads(metadata, loading_ns / case.step_interval_ns)
        return (
            loading_ns * (threads if sure else threads ** (1 - _operator_share(case) / 2)) / workers
        )
    used = 1.0 if metadata.cores_used is None else metadata.cores_used
    if sure and metadata.own_cores < used + workers * _cores_per_worker(metadata):
        return case.step_interval_ns
    return max(
        loading_ns * max(used, 1.0) / workers, used * case.step_interval_ns / metadata.own_cores
    )


def _cores_per_worker(metadata: RankMetadata) -> float:
    """Of a core that one thread keeps busy while it makes batches. Without a device to wait for, a
    process that uses less than one over a step waits for its data."""
    if metadata.cores_used is None:
        return 1.0
    return min(1.0, max(metadata.cores_used, LEAST_CORES))


def _threads(metadata: RankMetadata, share: float) -> float:
    """Cores that making a batch keeps busy, at work or spinning: those in use over the step, less
    one for the rest of it."""
    if metadata.cores_used is None or not 0 < share <= 1:
        return 1.0
    return max(1.0, (metadata.cores_used - (1 - share)) / share)


def _operator_share(case: Case) -> float:
    """Of the loader's time that is spent in PyTorch's operators."""
    trace, host = case.context.trace, case.context.host
    calls = next_calls(trace, host, SERIAL)
    if len(calls) == 0:
        return 0.0
    within = trace.is_kind(Kind.OP) & host.driving
    within[calls] = False
    operators = union(trace.start_ns[within], trace.end_ns[within])
    inside = lengths_in(trace.start_ns[calls], trace.end_ns[calls], operators)
    return float(inside.sum() / max(trace.dur_ns[calls].sum(), 1))


def _settings(case: Case, loading_ns: float) -> tuple[str, ...]:
    metadata = case.metadata
    if metadata is None or metadata.loader is None or metadata.own_cores is None:
        return ()
    cores = f"num_workers={metadata.loader.num_workers}; the rank has {metadata.own_cores:g} cores"
    if case.graph is None or case.graph.on_host or case.step_interval_ns is None:
        return (cores,)
    threads = _threads(metadata, loading_ns / case.step_interval_ns)
    if threads < MANY_THREADS:
        return (cores,)
    share = _operator_share(case)
    maybe = ""
    if share:
        maybe = f", {100 * share:.0f} % of the time in operators, whose threads spin between two"
    return cores, f"making a batch keeps {threads:.0f} cores busy{maybe}; a worker has one thread"


def _least(case: Case, loading_ns: float, workers: int) -> str:
    """How many workers bring a batch as often as the step without its loading needs one."""
    assert case.graph is not None
    least = math.ceil(
        loading_ns / max(play(with_input(case.graph, 0.0, FETCH_NS)).step_interval_ns, 1.0)
    )
    if least > workers:
        return f"{least} keep up, if the rank has the cores"
    if (
        case.metadata is not None
        and case.metadata.own_cores is not None
        and workers > case.metadata.own_cores
    ):
        return (
            f"at least {least}; making a batch waits more than it computes, so workers may "
            "outnumber the rank's cores"
        )
    return f"at least {least}, at most the cores per rank"
