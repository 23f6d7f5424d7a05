"""More threads want to run than there are cores.

What it sees: operators that run on the host itself (no launch in them, milliseconds long), on many
threads at once; in a run recorded by `stepscope run` also the threads of all ranks of the machine
against the cores they may use, and how long the container's quota held the process back. With a
device, and where threads keep all cores busy (they spin while they wait), it remarks and promises
no gain: what fewer threads give is not in the recording. Without a device, threads that leave cores
unused wait for one another: as many as there are cores need no more time on them than these do.

Why it costs: each rank's OpenMP pool takes as many threads as the machine has cores, and so does
each loader worker that asks for it. With eight ranks that is eight threads for each core; they take
turns, and every operator on the host takes a multiple of its time.

Evidence it needs: the number of cores and `OMP_NUM_THREADS` of the run, or the same step recorded
with another number of threads; of the trace itself only operators that run on the host.

What to do: `OMP_NUM_THREADS` = cores / ranks (torchrun sets 1 unless told),
`torch.set_num_threads(1)` in loader workers; compare the step time with 1, 4 and 16.

Example: sixteen threads on two cores kept half a core busy: a step of 342 ms took 95 ms with two.
Eight ranks on a machine of 64 cores, each with 64 threads: `OMP_NUM_THREADS=8` leaves one
thread for each core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import contains, join, union
from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.system import HostCounters, HostStacks
from stepscope.core.run import RankMetadata
from stepscope.core.trace import NONE, Int64, Kind, Trace
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule

CODE = "thread-oversubscription"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    least_ns: int = 1_000_000
    """An operator that takes the host this long computes there."""
    many_threads: int = 4
    """Threads computing at once from which it is worth mentioning: a training process drives with
    two, its own and autograd's."""
    most_per_core: float = 1.5
    """Threads for each core up to which nothing is said: they rarely all compute at once."""
    least_share: float = 0.1
    """Share of the measured time in which that many want to run, or in which a driving thread
    computes."""
    least_switches: float = 1000.0
    """A second on a core: two threads of OpenMP on two cores switch 250 times, sixteen of them 2300
    times."""
    least_migrations: float = 20.0
    """A second on a core: the same two runs have 1 and 52. Threads that wait for the GIL switch as
    often, and are not moved."""
    most_used: float = 0.9
    """Share of the cores above which threads that work cannot be told from those that spin."""
    least_busy: float = 0.8
    """Share of the cores that samples were taken on: below it a thread that waits for a core would
    find one."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Remark | Abstention | None:
    """Say where the number of threads matters; a trace alone cannot say whether it is wrong."""
    if (
        case.metadata is not None
        and case.metadata.threads is not None
        and case.metadata.cores is not None
    ):
        said = _by_count(case.metadata)
        return None if said is None else _by_cores_used(case, case.metadata, said) or said
    trace = case.context.trace
    low, high = case.context.window
    ops = _computing(case)
    ops = ops[(trace.end_ns[ops] > low) & (trace.start_ns[ops] < high)]
    if len(ops) == 0 or high <= low:
        return None
    most, crowded_ns = _at_once(trace, ops)
    if crowded_ns >= POLICY.least_share * (high - low):
        return Remark(
            code=CODE,
            text=f"Up to {most} threads compute on the host at once, {POLICY.many_threads} or more "
            f"of them for {crowded_ns / (high - low):.0%} of the time: OMP_NUM_THREADS times that "
            "must not exceed the cores this rank has.",
        )
    driving = ops[case.context.host.driving[ops]]
    spent = union(trace.start_ns[driving], trace.end_ns[driving]).total
    if spent < POLICY.least_share * (high - low):
        return None
    return Abstention(
        code=CODE,
        reason=f"the host itself computes for {spent / (high - low):.0%} of the time, with how "
        "many threads is not recorded",
        needs="the number of cores and OMP_NUM_THREADS: stepscope run records them",
    )


def _by_count(metadata: RankMetadata) -> Remark | None:
    """Remark from the run's own numbers: nothing is said where there is room for every thread."""
    assert metadata.threads is not None
    assert metadata.cores is not None
    local_ranks = max(metadata.local_ranks or 1, 1)
    wanted = metadata.threads * local_ranks
    held_back = metadata.held_back_share or 0.0
    if wanted <= metadata.cores * POLICY.most_per_core and held_back < POLICY.least_share:
        return None
    fitting = max(1, int(metadata.cores / local_ranks))
    threads = f"{metadata.threads} threads"
    if metadata.local_ranks:
        threads = f"{metadata.local_ranks} ranks of {threads}"
    quota = ""
    if held_back >= POLICY.least_share:
        quota = f"; the container's quota holds the process back for {held_back:.0%} of the time"
    return Remark(
        code=CODE,
        text=f"{threads} for {metadata.cores:g} cores{quota}: try OMP_NUM_THREADS={fitting} and "
        "compare the step time.",
    )


def _by_cores_used(case: Case, metadata: RankMetadata, said: Remark) -> Proposal | None:
    """Propose without a device, where operators wait for those of their threads that have no core.
    As many threads as cores spend no more time on them than all these do now; at the least one
    thread does it."""
    graph, cores, used = case.graph, metadata.own_cores, metadata.cores_used
    operators_ns = float(graph.task_ns.sum()) / max(graph.num_steps, 1)
    if case.kinds is not None and len(graph) and case.kinds.comms.all():
        return None
    if not graph.on_host or cores is None or used is None or operators_ns <= 0:
        return None
    alone_ns = max(case.step_interval_ns - operators_ns, 0.0)
    busy = (used * case.step_interval_ns - alone_ns) / operators_ns
    if not 0 < busy < POLICY.most_used * cores:
        return None
    return Proposal(
        summary=f"{metadata.threads} threads for operators have {cores:g} cores, and keep "
        f"{busy:.1f} of them busy: an operator waits for those of its threads that have none.",
        action=f"OMP_NUM_THREADS={max(1, int(cores))}, and no torch.set_num_threads() above it",
        evidence=(said.text,),
        change=lambda before: _shorter(before, busy / cores),
        cautious=lambda before: _shorter(before, min(busy, 1.0)),
    )


def _shorter(graph: Graph, share: float) -> Graph:
    return replace(graph, task_ns=graph.task_ns * share)


def _computing(case: Case) -> Int64:
    """Long operators with no call into the device's runtime in them, none inside another, not of
    the loader or the compiler."""
    trace, parent = case.context.trace, case.context.links.parent
    long = trace.is_kind(Kind.OP) & (trace.dur_ns >= POLICY.least_ns)
    if not long.any():
        return np.zeros(0, np.int64)
    touching = np.zeros(len(trace), np.bool_)
    inner = np.flatnonzero(trace.is_kind(Kind.RUNTIME))
    place = np.zeros(len(trace), np.int32)
    while len(inner):
        above = parent[inner]
        above = above[(above != NONE) & ~touching[above]]
        touching[above] = True
        # One of those that stand in the same range goes on.
        place[above] = np.arange(len(above))
        inner = above[place[above] == np.arange(len(above))]
    candidates = np.flatnonzero(long & ~touching)
    outer = ancestor_with(parent, parent[candidates], long & ~touching)
    host = case.context.host
    elsewhere = join(host.input, host.io, host.compile, host.collective)
    chosen: Int64 = candidates[(outer == NONE) & ~contains(elsewhere, trace.start_ns[candidates])]
    return chosen


def _at_once(trace: Trace, ops: Int64) -> tuple[int, int]:
    """The most threads that compute at once, and for how long at least `many_threads` do."""
    times: list[Int64] = []
    for thread in distinct(trace.thread[ops]).tolist():
        own = ops[trace.thread[ops] == thread]
        busy = union(trace.start_ns[own], trace.end_ns[own])
        times += [
            np.stack([busy.start, np.ones_like(busy.start)]),
            np.stack([busy.end, -np.ones_like(busy.end)]),
        ]
    moments = np.concatenate(times, axis=1)
    moments = moments[:, np.lexsort((moments[1], moments[0]))]
    running = np.cumsum(moments[1])
    lengths = np.append(np.diff(moments[0]), 0)
    return int(running.max()), int(lengths[running >= POLICY.many_threads].sum())


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    """Advise by perf: the counters of a process, or the threads that its samples show on each
    core."""
    if auxiliary.system is None:
        return []
    by_samples = [_by_samples(stacks) for stacks in auxiliary.system.stacks]
    by_switches = [_by_switches(counters) for counters in auxiliary.system.counters]
    return [advice for advice in (*by_samples, *by_switches) if advice is not None]


def _by_samples(stacks: HostStacks) -> Advice | None:
    if stacks.num_cores is None or stacks.busy_cores is None or stacks.even_threads is None:
        return None
    if (
        stacks.busy_cores < POLICY.least_busy * stacks.num_cores
        or stacks.even_threads <= POLICY.most_per_core * stacks.num_cores
    ):
        return None
    busy = f"{stacks.busy_cores:.1f} of {stacks.num_cores} cores busy"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{stacks.even_threads} threads share "
        f"{stacks.num_cores} cores that are never free.",
        action=f"OMP_NUM_THREADS so that all ranks have {stacks.num_cores} threads at most; "
        "torch.set_num_threads(1) in workers",
        evidence=(f"{stacks.path}: {busy}, {stacks.num_threads} threads seen on them",),
    )


def _by_switches(counters: HostCounters) -> Advice | None:
    switches = counters.switches_per_cpu_s
    if switches is None or counters.migrations is None or not counters.cpu_s:
        return None
    migrations = counters.migrations / counters.cpu_s
    counted = f"{counters.context_switches:,.0f} switches, {counters.migrations:,.0f} moves"
    if switches < POLICY.least_switches or migrations < POLICY.least_migrations:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"In a second on a core threads are swapped {switches:,.0f} times and moved "
        f"elsewhere {migrations:,.0f} times.",
        action="compare the step time with OMP_NUM_THREADS=1, 4 and cores / ranks; perf record "
        "--sample-cpu -g shows the threads",
        evidence=(f"{counters.path}: {counted} in {counters.cpu_s:.1f} s on cores",),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, advise=advise)
