"""JobCase: the ranks of a job as the rules see them, with a replay of all of them to ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.analyses.grouping import distinct, is_among, median
from stepscope.core.comms import NO_COLLECTIVES, Collective, CollectiveRecords, Lateness, Matched
from stepscope.core.diagnosis import SourceLocation
from stepscope.core.facts import Facts
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import without_tasks, without_waits
from stepscope.replay.graph import Graph
from stepscope.replay.host_graph import build_host, host_kinds
from stepscope.replay.job import calibrated, fit_job, job_graph_of, scaled_to, with_graphs
from stepscope.replay.simulate_job import JobGraph, RankGraph, play_job
from stepscope.rules.case import Case
from stepscope.rules.partition_verdict import MAX_MISSED
from stepscope.rules.proposal import Fix

MAX_HOST_ERROR = 0.02
"""Share of the known step by which a fit of the hosts' own time may be off."""

CaseOf = Callable[[int, int | None], Case | None]
"""The case of the rank at this index of `Facts.ranks`, for this step time; None where its trace
cannot be read any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks that could be read, and notes on what could not."""

    facts: Facts
    notes: tuple[str, ...] = ()
    world_size: int | None = None
    """World size as the traces recorded it; None where they do not, or do not agree."""
    rank_records: tuple[CollectiveRecords, ...] = field(default=(), compare=False, repr=False)
    """Records of the ranks that recorded collectives; none where two traces are of one rank."""
    matched: Matched | None = field(default=None, compare=False, repr=False)
    """The collectives of all ranks; None where there are none."""
    lateness: tuple[Lateness, ...] = ()
    case_of: CaseOf = field(compare=False, repr=False)


JobChange = Callable[[JobGraph], JobGraph]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCase:
    """The ranks of a job that are judged (all of a small one), with a replay of them to ask. One
    rank is a job of one."""

    cases: tuple[Case, ...]
    """Cases in the order of `job_graph.parts` and `rank_records`."""
    rank_records: tuple[CollectiveRecords, ...]
    """None of a rank that is alone."""
    matched: Matched
    lateness: tuple[Lateness, ...]
    job_graph: JobGraph
    """Graph of the unprofiled run, all ranks together."""
    host_bounds: tuple[JobGraph, JobGraph] | None = None
    """The job's graph with as little and as much host time as there may be, where that is open."""
    step_interval_ns: float
    knows_step: bool = True
    """Whether the step without the profiler is known: else it is the recorded one less the usual
    cost of recording."""
    is_unlike: bool = False
    """Whether, without a device, the recorded steps are so much longer or shorter than the run's
    that they do not tell which rank's host is the slower one."""
    num_ranks: int
    """Number of ranks of the job as recorded; more than there are cases in a large one."""
    nccl: NcclLog | None = None
    is_alone: bool = False
    """One rank that exchanges nothing with others."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(case.facts.rank for case in self.cases)

    def speedup(self, changed: JobGraph) -> float:
        """How much faster the job's step is with a changed graph."""
        return self.weighted(*self.speedups(changed))

    def weighted(self, paced: float, free: float) -> float:
        """One gain of the two that `speedups` gives: each by how likely it is."""
        return self.cases[0].weighted(paced, free) if self.is_alone else free

    def speedups(self, changed: JobGraph) -> tuple[float, float]:
        """If the input limits the step as far as it may, and if it does not; one and the same where
        that is known, and of several ranks."""
        if self.is_alone:
            return self.cases[0].speedups(changed.parts[0].graph)
        gain = self.step_interval_ns / max(play_job(changed).step_interval_ns, 1.0)
        return gain, gain

    def entries(self, index: int, wanted: Callable[[Collective], bool]) -> Bool:
        """Mask over a rank's collective records: the collectives of a wanted kind."""
        records = self.rank_records[index]
        if len(records) == 0:
            return np.zeros(0, np.bool_)
        chosen = np.array([wanted(kind) for kind in records.kinds], np.bool_)
        return chosen[records.kind]

    def tasks(self, index: int, entries: Bool) -> Bool:
        """Mask over a rank's tasks: those of these entries of its ledger."""
        events = self.rank_records[index].event[entries]
        mask: Bool = is_among(self.job_graph.parts[index].graph.task_event, events)
        return mask

    def compute_tasks(self, index: int) -> Bool:
        """Mask over a rank's tasks: kernels that compute, which are no copies and no
        collectives."""
        kinds = self.cases[index].kinds
        assert kinds is not None
        mask: Bool = kinds.arithmetic | kinds.memory
        return mask


class JobProposal(Fix, frozen=True, kw_only=True):
    """The job's, and what the fix does to the job's graph."""

    ranks: tuple[int, ...] = ()
    """The ranks at fault, where it is not the job's; then the judge writes all of them."""
    change: JobChange
    cautious: JobChange | None = None
    hopeful: JobChange | None = None
    source_locations: tuple[SourceLocation, ...] = ()
    """The lines that most of it comes from."""
    lacks_stacks: bool = False
    """Stacks would name those lines, and none were recorded."""


def without_collectives(job_graph: JobGraph, masks: Sequence[Bool]) -> JobGraph:
    """The masked tasks of each rank are gone, and nobody waits in them."""
    parts = tuple(
        replace(
            part,
            graph=_unwaited(without_tasks(part.graph, mask), mask),
            shared=np.where(mask, NONE, part.shared),
        )
        for part, mask in zip(job_graph.parts, masks, strict=True)
    )
    return replace(job_graph, parts=parts)


def _unwaited(graph: Graph, gone: Bool) -> Graph:
    """A host that has no device waits for a collective alone, and wakes up after it: of one that is
    gone neither is left."""
    if not graph.on_host or not gone.any():
        return graph
    return without_waits(graph, (graph.call_wait != NONE) & gone[graph.call_wait])


def with_moving_ns(
    job_graph: JobGraph, masks: Sequence[Bool], new_ns: Callable[[Float64], Float64]
) -> JobGraph:
    """Moving the bytes of the masked tasks takes `new_ns` of what it takes."""
    moving, graphs = job_graph.moving_ns.copy(), []
    for part, mask in zip(job_graph.parts, masks, strict=True):
        numbers = distinct(part.shared[mask & (part.shared != NONE)])
        moving[numbers] = new_ns(job_graph.moving_ns[numbers])
        own = mask & (part.shared == NONE)
        graphs.append(
            replace(
                part.graph, task_ns=np.where(own, new_ns(part.graph.task_ns), part.graph.task_ns)
            )
        )
    return replace(with_graphs(job_graph, graphs), moving_ns=moving)


def with_rank(job_graph: JobGraph, index: int, graph: Graph) -> JobGraph:
    """The job's graph with another graph for one of its ranks."""
    return with_graphs(
        job_graph,
        [graph if other == index else part.graph for other, part in enumerate(job_graph.parts)],
    )


def job_case_of(
    cases: Sequence[Case],
    rank_records: Sequence[CollectiveRecords],
    everyone: Sequence[CollectiveRecords],
    matched: Matched,
    step_ns: int | None,
    nccl: NcclLog | None = None,
) -> JobCase | None:
    """The ranks' graphs tied together by their collectives and fitted to the step; None when a rank
    has none."""
    cases = [_with_host_graph(case) for case in cases]
    graphs = [case.recorded for case in cases if case.recorded is not None]
    if not graphs or len(graphs) < len(cases):
        return None
    step_intervals = [
        case.facts.steps.step_interval_ns
        for case in cases
        if case.facts.steps.step_interval_ns is not None
    ]
    from stepscope.analyses.collectives.lateness import lateness
    from stepscope.analyses.collectives.waits import with_waits

    job_graph = calibrated(job_graph_of(graphs, rank_records, matched), median(step_intervals))
    fitted = fit_job(job_graph, None if step_ns is None else float(step_ns))
    step_interval_ns = play_job(fitted).step_interval_ns
    missed, is_on_host = 0.0, all(graph.on_host for graph in graphs)
    if step_ns is not None and is_on_host:
        missed = abs(step_interval_ns / step_ns - 1)
        if missed > MAX_HOST_ERROR:
            fitted = scaled_to(fitted, float(step_ns))
            step_interval_ns = play_job(fitted).step_interval_ns
    return JobCase(
        cases=tuple(
            replace(
                _with_fitted(case, part.graph, step_interval_ns),
                facts=with_waits(case.facts, collective_records, matched),
            )
            for case, part, collective_records in zip(
                cases, fitted.parts, rank_records, strict=True
            )
        ),
        rank_records=tuple(rank_records),
        matched=matched,
        lateness=lateness(everyone, matched),
        job_graph=fitted,
        host_bounds=_host_bounds(fitted, cases) if step_ns is None else None,
        step_interval_ns=step_interval_ns,
        knows_step=step_ns is not None,
        is_unlike=missed > MAX_MISSED,
        num_ranks=len(everyone),
        nccl=nccl,
    )


def job_case_of_rank(case: Case) -> JobCase:
    """A rank that exchanges nothing with others: a job of one."""
    nothing = np.zeros(0, np.int64)
    job_graph = JobGraph(parts=(), moving_ns=np.zeros(0), members=nothing)
    if case.unprofiled is not None:
        job_graph = _with_part(job_graph, case.unprofiled)
    bounds = case.host_bounds
    return JobCase(
        cases=(case,),
        rank_records=(),
        matched=NO_COLLECTIVES,
        lateness=(),
        job_graph=job_graph,
        host_bounds=None
        if bounds is None
        else (_with_part(job_graph, bounds[0]), _with_part(job_graph, bounds[1])),
        step_interval_ns=case.unprofiled_ns or 0.0,
        num_ranks=1,
        is_alone=True,
    )


def _with_part(job_graph: JobGraph, graph: Graph) -> JobGraph:
    return replace(
        job_graph,
        parts=(RankGraph(graph=graph, shared=np.full(len(graph.task_event), NONE, np.int64)),),
    )


def _host_bounds(job_graph: JobGraph, cases: Sequence[Case]) -> tuple[JobGraph, JobGraph] | None:
    """Graphs with every rank's host as quick and as slow as it may be; None where a rank's is
    known."""
    bounds = [case.host_bounds for case in cases if case.host_bounds is not None]
    if len(bounds) < len(cases):
        return None
    quick, slow = (with_graphs(job_graph, [pair[end] for pair in bounds]) for end in (0, 1))
    return quick, slow


def _with_fitted(case: Case, graph: Graph, step_interval_ns: float) -> Case:
    """A rank without a device has no step of its own: its graph is the one that was fitted with the
    others', and its step theirs."""
    if not graph.on_host:
        return case
    return replace(case, unprofiled=graph, unprofiled_ns=step_interval_ns)


def _with_host_graph(case: Case) -> Case:
    """A rank without a device is tied to the others by the collectives its threads carry out, which
    run beside its own work."""
    if case.recorded is not None and not case.recorded.on_host:
        return case
    graph = build_host(case.context)
    if graph is None:
        return case
    return replace(case, recorded=graph, unprofiled=None, kinds=host_kinds(graph))
