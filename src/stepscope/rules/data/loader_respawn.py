"""The loader's workers are stopped and started again at each epoch.

What it sees: two `__next__` calls of a multi-process DataLoader iterator with no launch between
them but a pause: the first ends the epoch, the pause starts the processes, the second waits for
their first batch.

Why it costs: starting a process means forking or importing everything again, for each worker, and
then the first batch is made from nothing while the device waits. Where epochs are short that is a
good part of the run.

Evidence it needs: a run recorded by `stepscope run`, which times each epoch's start; else a
recording that holds the end of an epoch, better two, so that the length of an epoch is known.

What to do: `DataLoader(persistent_workers=True)`; the first batch of an epoch is still waited for
unless the dataset is made endless.

Example: (for illustration, not measured) 8 workers took 180 ms to start again every 40 steps of 20
ms: 18 % of the run.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.loader import WORKERS, next_calls
from stepscope.analyses.intervals import Intervals, contains, intersect, lengths_in, union
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool, Int64, Kind
from stepscope.replay.changes import Change, with_part_ns, without_host_ranges
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.run_prices import first_batch_ns

CODE = "loader-respawn"
BOUND = "data"


class Policy(Struct, frozen=True, kw_only=True):
    least_pause_ns: int = 1_000_000
    """Nanoseconds between the two fetches: starting one process takes a millisecond at least, going
    on to the next fetch microseconds."""
    least_speedup: float = 1.02
    """Speedup under which the median step does not show the stall: it is reported without a
    gain."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Keep the workers: their start and the epoch's first wait gone."""
    if _are_kept(case):
        return None
    timed = _timed(case)
    if timed is not None:
        return timed
    last, first = _epoch_edges(case)
    if len(last) == 0:
        return None
    trace = case.context.trace
    whole = union(trace.start_ns[last], trace.end_ns[first])
    stall_ms = whole.total / len(last) / 1e6
    change = _without(case, whole)
    if case.speedup(change(case.graph)) < POLICY.least_speedup:
        steps = stall_ms * 1e6 / case.step_interval_ns
        return Remark(
            code=CODE,
            text=f"the loader's workers start anew between epochs: {stall_ms:.0f} ms, as long as "
            f"{steps:.1f} steps; with short epochs set persistent_workers=True (what it gives "
            "depends on the steps an epoch has, which is not recorded)",
        )
    return Proposal(
        summary="The loader's workers are started anew at each epoch: "
        f"{stall_ms:.1f} ms each time.",
        action="DataLoader(persistent_workers=True)",
        evidence=(
            f"{len(last)} epoch ends in the recording",
            f"{stall_ms:.1f} ms from the last fetch to the first batch",
        ),
        change=change,
        cautious=_without(case, union(trace.start_ns[last], trace.start_ns[first])),
    )


def _timed(case: Case) -> Proposal | None:
    """Propose by the epochs that began among the timed steps. Their first batch is still to be
    made; None where no worker makes it, or most steps begin an epoch."""
    stalls = case.stalls("epoch")
    stays = None if case.metadata is None else first_batch_ns(case.metadata)
    if stalls is None or stays is None:
        return None
    spared = max(1.0 - stays[0] / max(stalls.once_ns, 1), 0.0)
    return Proposal(
        summary="The loader's workers are started anew at each epoch: "
        f"{stalls.once_ns / 1e6:.1f} ms every {stalls.every:.3g} steps.",
        action="DataLoader(persistent_workers=True)",
        evidence=(
            f"{stalls.num} timed steps begin one",
            f"making the first batch is likely to take {stays[0] / 1e6:.1f} ms of it still",
        ),
        change=lambda graph: graph,
        rare_ns=spared * stalls.step_ns,
    )


def _are_kept(case: Case) -> bool:
    """Whether the loader itself says that its workers stay."""
    return (
        case.metadata is not None
        and case.metadata.loader is not None
        and case.metadata.loader.persistent_workers is True
    )


def _epoch_edges(case: Case) -> tuple[Int64, Int64]:
    """Pairs of fetches: the one that found the epoch at its end, and the one after the workers' new
    start."""
    trace, fetches = case.context.trace, next_calls(case.context.trace, case.context.host, WORKERS)
    before, after = fetches[:-1], fetches[1:]
    if len(before) == 0:
        return before, after
    launching = case.context.links.launch[trace.device_work & (case.context.links.launch >= 0)]
    if len(launching) == 0:
        # Without a device the operators are the work.
        launching = np.flatnonzero(
            trace.is_kind(Kind.OP) & ~contains(case.context.host.input, trace.start_ns)
        )
    launches = np.sort(trace.start_ns[launching])
    quiet: Bool = np.searchsorted(launches, trace.end_ns[before]) == np.searchsorted(
        launches, trace.start_ns[after]
    )
    edge = quiet & (trace.start_ns[after] - trace.end_ns[before] >= POLICY.least_pause_ns)
    return before[edge], after[edge]


def _without(case: Case, gone: Intervals) -> Change:
    """The host no longer spends this time, in the loader or between its calls."""

    def change(graph: Graph) -> Graph:
        loading = lengths_in(
            graph.call_start_ns, graph.call_end_ns, intersect(gone, case.context.host.input)
        )
        shorter = without_host_ranges(graph, gone)
        return with_part_ns(shorter, "input", np.maximum(graph.call_parts["input"] - loading, 0.0))

    return change


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
