"""Case: one rank as the rules see it, with a replay to ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from msgspec.structs import replace

from stepscope.analyses.host.loader import POLICY as LOADER
from stepscope.analyses.host.loader import fetch_times, is_starved, ready_ns, waiting_fetches
from stepscope.analyses.host.source_locations import Stacks
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import RankContext
from stepscope.core.facts import RankFacts, Replayed
from stepscope.core.recorders import Recorder, recorder_of
from stepscope.core.run import RankMetadata, Stalls, UnprofiledSteps
from stepscope.core.trace import Trace
from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import Graph, blocking_launches, build
from stepscope.replay.host_graph import (
    build_on_host,
    fit_on_host,
    with_measured,
    without_hold_ups,
    without_recording,
)
from stepscope.replay.profiler_cost import (
    USUAL_COST_NS,
    fit,
    loader_probability,
    usual_cost_ns,
    without_cost,
)
from stepscope.replay.resources import TaskKinds, shares, task_kinds
from stepscope.replay.simulate import play
from stepscope.rules.accuracy import POLICY as RANGES
from stepscope.rules.partition_verdict import is_blind
from stepscope.rules.task_table import TaskTable, task_table

Given = ParamSpec("Given")
Made = TypeVar("Made")

UNRECORDED_SHARE = 0.25
"""Share of a fetch's mean wait that the measured steps must hold: with less of it they miss the
wait."""
WAITING_SHARE = 0.05
"""Share of an unprofiled step spent in next(), beyond fetching a ready batch, from which worker
processes do not keep up."""
MAX_HELD_UP = 0.9
"""Largest share of the time by which what a host without a device did in one piece is taken to be
shorter."""
MAX_UNKNOWN = 0.05
"""Share of the time in which the process is on no core and its main thread waits for none: where
there is less, the main thread is the one that computes, and does not sleep."""
SLOWED = 0.9
"""Largest share of the recorded step that an unprofiled step may take for its waits to be other
ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rank as it was measured, and the graph of its unprofiled run."""

    context: RankContext
    facts: RankFacts
    recorded: Graph | None = None
    """Graph as it was recorded, the profiler's cost and all."""
    unprofiled: Graph | None
    """None when the recording does not allow a replay: then no gain can be predicted, and the rules
    that need one are not asked."""
    host_bounds: tuple[Graph, Graph] | None = None
    """The graph with as little and as much host time as there may be, where that is open."""
    kinds: TaskKinds | None
    paced_by_loader: bool = False
    """Worker processes bring the batches and the run waits for them: a step that does the rest
    faster waits longer."""
    wait_probability: float = 0.0
    """Probability that the run waits for worker processes, where that is open: recorded steps,
    which took longer, did not, and the run's is longer than theirs without what recording usually
    costs. Else its host is slower than usual."""
    unprofiled_ns: float | None
    """Length of an unprofiled step of that graph."""
    metadata: RankMetadata | None = None
    """What the run folder has of the rank."""
    _replayed: list[Trace] = field(default_factory=list, repr=False, compare=False)
    _tables: list[TaskTable] = field(default_factory=list, repr=False, compare=False)
    _made: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def recorder(self) -> Recorder:
        """What to ask for what was not recorded."""
        return recorder_of(self.context.trace.meta.versions, is_run=self.metadata is not None)

    @property
    def graph(self) -> Graph:
        """The unprofiled run's, of a rank that can be replayed."""
        assert self.unprofiled is not None
        return self.unprofiled

    @property
    def step_interval_ns(self) -> float:
        """The step that gains are measured against: the replayed one."""
        assert self.unprofiled_ns is not None
        return self.unprofiled_ns

    @property
    def replayed(self) -> Trace:
        """The trace up to the end of the replayed steps, with the same indices."""
        if not self._replayed:
            self._replayed.append(self.graph.of_trace(self.context.trace))
        return self._replayed[0]

    @property
    def table(self) -> TaskTable:
        """What each task of the graph is; made when first asked for."""
        if not self._tables:
            self._tables.append(task_table(self.context, self.graph, self.replayed))
        return self._tables[0]

    @property
    def stacks(self) -> Stacks | None:
        """The Python frames, None when none were recorded; looked at when first asked for."""
        return self.context.stacks

    @property
    def has_lines(self) -> bool:
        """Whether stacks name the lines of what is found."""
        return self.stacks is not None and self.stacks.has_lines

    def made_once(self, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """What `make` gives, made when it is first asked for under this key."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def stalls(self, kind: str) -> Stalls | None:
        """What only some steps of the recorded run hold, of this kind."""
        return None if self.metadata is None else self.metadata.stalls.get(kind)

    def speedup(self, changed: Graph) -> float:
        """How much faster the step is with a changed graph: time before / time after."""
        return self.weighted(*self.speedups(changed))

    def weighted(self, paced: float, free: float) -> float:
        """One gain of the two that `speedups` gives: each by how likely it is."""
        gain: float = paced**self.wait_probability * free ** (1 - self.wait_probability)
        return gain

    def speedups(self, changed: Graph) -> tuple[float, float]:
        """If the input limits the step as far as it may, and if it does not; one and the same where
        that is known."""
        after = paced = max(play(changed).step_interval_ns, 1.0)
        is_input_kept = any(
            changed.call_parts["input"] is graph.call_parts["input"]
            for graph in (self.graph, *(self.host_bounds or ()))
        )
        if is_input_kept and (self.paced_by_loader or self.wait_probability):
            paced = max(after, self.step_interval_ns)
        if not self.wait_probability:
            after = paced
        return self.step_interval_ns / paced, self.step_interval_ns / after


def once_a_case(
    make: Callable[Concatenate[Case, Given], Made],
) -> Callable[Concatenate[Case, Given], Made]:
    """Several rules ask for it, and it depends on the case, its graph and plain numbers alone."""

    @wraps(make)
    def asked(case: Case, /, *args: Given.args, **kwargs: Given.kwargs) -> Made:
        key = (make, *args, *sorted(kwargs.items()))
        return case.made_once(key, lambda: make(case, *args, **kwargs))

    return asked


def case_of(
    context: RankContext,
    rank: int,
    step_ns: int | None,
    metadata: RankMetadata | None = None,
    facts: RankFacts | None = None,
) -> Case:
    """Replay the rank's steps. `facts` where it was measured before."""
    if facts is None:
        facts = measure_rank(context, rank, step_ns, is_run=metadata is not None)
    graph = build(context.trace, context.links, context.cut, context.host, context.collective)
    if graph is None and facts.device_name is None:
        graph = build_on_host(context.trace, context.cut, context.host)
    step_interval = facts.steps.step_interval_ns
    if graph is None or not graph.has_step_length or not step_interval or is_blind(facts):
        return Case(
            context=context,
            facts=facts,
            unprofiled=None,
            kinds=None,
            unprofiled_ns=None,
            metadata=metadata,
        )
    kinds = task_kinds(context, graph)
    unprofiled = None if metadata is None else metadata.steps
    measured = {} if unprofiled is None else _measured(unprofiled)
    timed_waits = None if metadata is None else is_waiting(metadata, _ready_ns(context, metadata))
    waits = bool(timed_waits)
    # Where the wait was timed without the profiler, short fetches that it recorded say no more.
    starved = timed_waits is not False and is_starved(context.trace, context.host, step_interval)
    # On a host alone, batches that no DataLoader brings are not in what was timed, and what a
    # recorded step waits is not the run's: the batches that workers made while the profiler
    # started are ready. With a device, waits that were recorded are fitted to the step.
    wait_ns = None if unprofiled is None else unprofiled.wait_ns
    has_loader = unprofiled is not None and bool(unprofiled.num_batches)
    if wait_ns is not None and (has_loader if graph.on_host else waits and not starved):
        measured["input"] = wait_ns
    if starved and unprofiled is None and step_ns is not None:
        measured |= _unrecorded_wait(context, graph)
    wait_probability = 0.0
    if not starved and unprofiled is None and step_ns is not None and not graph.on_host:
        starved = _waits_unprofiled(context, graph, step_ns)
        if not starved and _may_wait(context, graph, step_ns, step_interval):
            wait_probability = loader_probability(graph, step_ns, step_interval, kinds.transfer)
    starved = starved or waits
    if graph.on_host:
        held_up = 0.0 if metadata is None else metadata.held_up_share or 0.0
        usual = graph if step_ns is None else without_recording(graph, context.trace)
        if held_up >= RANGES.least_held_up:
            names = context.trace.name[graph.task_event].astype(np.int64)
            used = None if metadata is None else metadata.cores_used
            sleeps = used is None or abs(used + held_up - 1.0) > MAX_UNKNOWN
            usual = without_hold_ups(usual, names, min(held_up, MAX_HELD_UP), sleeps=sleeps)
        fitted = fit_on_host(usual, step_ns, measured)
    else:
        host_ns = None if unprofiled is None else unprofiled.host_ns
        fitted = fit(
            with_measured(graph, measured),
            step_ns,
            kinds.transfer,
            host_ns,
            measured=measured,
            host_share=None if unprofiled is None else unprofiled.host_share,
            contended=starved,
            blocking=len(blocking_launches(context.trace, graph)) > 0,
        )
    replayed = Replayed(
        recorded_error=play(graph, backlog_ns=graph.backlog_ns).played_interval_ns / step_interval
        - 1,
        step_interval_ns=fitted.step_interval_ns,
        error=fitted.error,
        cost_ns=fitted.cost_ns,
        shares=shares(fitted.graph, kinds, paced_by_loader=starved),
    )
    return Case(
        context=context,
        facts=replace(facts, replayed=replayed),
        recorded=graph,
        unprofiled=fitted.graph,
        host_bounds=fitted.bounds,
        kinds=kinds,
        paced_by_loader=starved,
        wait_probability=wait_probability,
        unprofiled_ns=fitted.step_interval_ns,
        metadata=metadata,
    )


def _unrecorded_wait(context: RankContext, graph: Graph) -> dict[str, float]:
    """Workers that began together bring their batches together: one fetch waits for all of them,
    and the next find theirs ready. Where the one lies before the measured steps, these have not
    waited at all, and what a fetch waits on average is the input of the run's usual step."""
    fetch_ns = float(np.mean(fetch_times(context.trace, context.host)))
    recorded_ns = float(graph.call_parts["input"].sum()) / max(graph.num_steps, 1)
    return {"input": fetch_ns} if recorded_ns < UNRECORDED_SHARE * fetch_ns else {}


def _waits_unprofiled(context: RankContext, graph: Graph, step_ns: float) -> bool:
    """A profiler makes the step longer, so that its loader all but keeps up. Where a recorded fetch
    waits all the same, and the run's step is longer than the rest of the recorded one takes
    without what recording cost, it is the loader that it waits for."""
    inside = graph.call_parts["input"][graph.call_step >= 0]
    if not waiting_fetches(context.trace, context.host).any() or not inside.any():
        return False
    rest = play(without_host_parts(without_cost(graph, USUAL_COST_NS), "input"))
    return step_ns - rest.step_interval_ns >= LOADER.long_wait * step_ns


def _may_wait(context: RankContext, graph: Graph, step_ns: float, recorded_ns: float) -> bool:
    """Fetches that found their batches ready say only that the loader keeps up with the recorded
    step. Where the run's is much shorter, and still longer than the recorded one without the usual
    cost of recording, the host is slower than usual or the run waits for its workers."""
    if len(fetch_times(context.trace, context.host)) == 0 or step_ns > SLOWED * recorded_ns:
        return False
    rest = play(without_cost(graph, usual_cost_ns(graph)))
    return step_ns - rest.step_interval_ns >= WAITING_SHARE * step_ns


def _measured(steps: UnprofiledSteps) -> dict[str, float]:
    """The parts of the host's time whose length in an unprofiled step is known."""
    parts = {"io": steps.save_ns, "gc": steps.gc_ns}
    return {part: float(ns) for part, ns in parts.items() if ns is not None}


def _ready_ns(context: RankContext, metadata: RankMetadata) -> float:
    """Time to fetch a step's batches if they are all ready."""
    num_tensors = None if metadata.loader is None else metadata.loader.batch_tensors
    num_batches = (None if metadata.steps is None else metadata.steps.num_batches) or 1.0
    return num_batches * ready_ns(context.trace, context.host, num_tensors)


def is_waiting(metadata: RankMetadata, ready_ns: float) -> bool | None:
    """Whether the unprofiled steps wait for worker processes, longer than it takes to fetch what is
    ready; None where that was not timed."""
    steps, loader = metadata.steps, metadata.loader
    if steps is None or loader is None or not loader.num_workers or steps.wait_ns is None:
        return None
    return steps.wait_ns - ready_ns >= WAITING_SHARE * steps.step_ns
