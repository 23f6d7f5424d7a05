"""Worker processes make the batches, and the training process still waits for them.

What it sees: `__next__` of a multi-process DataLoader iterator that takes far longer than fetching
a ready batch, in most steps.

Why it costs: the workers together make fewer batches than the device can use. The step then lasts
as long as one batch takes the loader, so k times the workers bring it down to 1/k of that, or to
what the rest of the step needs, whichever is longer.

Evidence it needs: `enumerate(DataLoader)` marks, which the profiler records by itself. The number
of workers and of cores is not in a trace: that is why the range is wide.

What to do: look at the cores first. If the workers leave some idle, raise `num_workers` to the
cores per rank. If they are all busy, make a batch cheaper: decode smaller, cache, move transforms
to the GPU. If neither (workers wait for storage): shards in place of many small files, a local
copy, more `prefetch_factor`.

Example: (for illustration, not measured) two workers at 60 ms a batch feed a 12 ms step: it takes
30; eight make it 15.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.loader import WORKERS, is_starved, next_calls, waiting_fetches
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import RankMetadata
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.loading import FETCH_NS, input_per_step, loaded_every, with_input

CODE = "starved-loader"
BOUND = "data"
NEEDS_DEVICE = False


class Policy(Struct, frozen=True, kw_only=True):
    more_workers: int = 4
    """Times the workers there are, as the fix tries: from the usual 2 to 4 up to the cores of a
    rank's share of a machine."""
    prefetch_factor: int = 4
    """Batches that each worker keeps ready, at least: twice PyTorch's own."""
    waiting_cores: float = 0.5
    """Of a core, below which the busiest worker waits more than it computes."""
    cautious_left: float = 0.5
    """Of the wait that stays when storage or busy cores hold the workers up."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """More workers, if most fetches wait."""
    if case.graph is None or case.step_interval_ns is None:
        return None
    trace, host = case.context.trace, case.context.host
    if not is_starved(trace, host, case.step_interval_ns):
        return None
    fetches, waiting = trace.dur_ns[next_calls(trace, host, WORKERS)], waiting_fetches(trace, host)
    per_step = input_per_step(case.graph)
    waited_ms = float(np.mean(per_step)) / 1e6 if len(per_step) else 0.0
    batch_ns = case.step_interval_ns / POLICY.more_workers
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary="The loader's workers do not keep up: the training "
        f"process waits {waited_ms:.1f} ms "
        "a step for its batch.",
        action=_action(case.metadata, _times(case.step_interval_ns, waited_ms * 1e6)),
        evidence=(
            (
                f"{int(waiting.sum())} of {len(fetches)} fetches waited, "
                f"{float(np.mean(fetches)) / 1e6:.1f} ms on average"
            ),
            _settings(case),
        ),
        change=lambda graph: loaded_every(graph, batch_ns),
        cautious=lambda graph: with_input(graph, POLICY.cautious_left, FETCH_NS),
        hopeful=lambda graph: with_input(graph, 0.0, FETCH_NS),
    )


def _action(metadata: RankMetadata | None, times: int) -> str:
    """More workers and more batches of each kept ready, as far as both are more than the job
    has."""
    loader = None if metadata is None else metadata.loader
    depth = max(
        POLICY.prefetch_factor, 2 * ((None if loader is None else loader.prefetch_factor) or 0)
    )
    busy = "if the cores are busy already (top), cheaper transforms or faster storage"
    if metadata is None or loader is None or not loader.num_workers:
        return (
            f"{times} times as many workers, at most the cores per rank, and "
            f"DataLoader(prefetch_factor={depth}); {busy}"
        )
    workers, more = loader.num_workers, _more_workers(metadata, loader.num_workers, times)
    if more > workers:
        return f"DataLoader(num_workers={more}, prefetch_factor={depth}); {busy}"
    cores = f"the {metadata.own_cores:g} cores of the rank"
    return (
        f"cheaper transforms or faster storage: {workers} workers fill {cores}. "
        f"DataLoader(prefetch_factor={depth}) may help"
    )


def _more_workers(metadata: RankMetadata, workers: int, times: int) -> int:
    """So many times the workers, within the rank's cores; workers that wait for storage may
    outnumber these."""
    wanted = workers * times
    is_waiting = (
        metadata.busiest_worker_cores is not None
        and metadata.busiest_worker_cores < POLICY.waiting_cores
    )
    if metadata.own_cores is None or is_waiting:
        return wanted
    return min(wanted, math.floor(metadata.own_cores))


def _settings(case: Case) -> str:
    metadata = case.metadata
    if metadata is None or metadata.loader is None or metadata.loader.num_workers is None:
        return "the number of workers and idle cores is not in the trace"
    busy = (
        ""
        if metadata.busiest_worker_cores is None
        else f", the busiest uses {metadata.busiest_worker_cores:.0%} of a core"
    )
    cores = "" if metadata.own_cores is None else f"; the rank has {metadata.own_cores:g} cores"
    return f"{metadata.loader.num_workers} workers{busy}{cores}"


def _times(step_interval_ns: float, waited_ns: float) -> int:
    """How many times the workers there are it takes to bring a batch in the step without its wait;
    they are busy all the time."""
    return min(
        max(math.ceil(step_interval_ns / max(step_interval_ns - waited_ns, 1.0)), 2),
        POLICY.more_workers,
    )
