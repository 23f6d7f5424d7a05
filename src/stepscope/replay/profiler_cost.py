"""Taking the profiler's own cost out of the recorded host time.

Every recorded operator costs the host a little, a runtime call twice as much (per event 1 to 5 us
over the runs of one machine, whose host is at times twice as slow as at others), and more where the
host does more for an event; device times stay true. That cost is estimated from the host's own
speed: recording an event is host work as well, and a host that is slow at the one is slow at the
other. With the unprofiled step time known, what is left is made as long as that says, so far as the
step depends on it (`host_pace.py`).

How much slower or faster the host was in the run than in its recording, by the run's step time.

A host is at times half as fast as at others: a fixed piece of its work, timed before and after 54
recordings, differed by a third. Where the host limits the step, the step tells how long it took;
where the device does, it says only that the host kept up; and between the two it says something. So
the likely pace is the mean of all that are possible, each weighted by how usual it is and by how
near its replay comes to the step: a step a little longer or shorter changes it a little.

A step that is longer than that of a usual host may also be as long as its loader's workers take for
a batch. Which of the two it is, one step time cannot tell; how likely each is, it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import median
from stepscope.core.trace import Bool, Float64, Int64
from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import bisect, play

PACE_SD = 0.12
"""Standard deviation of the logarithm of the host's time in the run over its recorded time without
what recording cost: 43 host-bound recordings, H200 hosts, torch 2.11."""
STEP_SD = 0.01
"""Standard deviation of the logarithm of a replay over the run's step, where the host does not
matter: 31 device-bound recordings."""
USUAL_STEP, USUAL_PACE = 1.0, 3.0
"""Standard deviations beyond which the unlikely becomes less likely by the same factor with each
more: of those 74 recordings some replays are off by three, and some runs have quite another
host."""
PACE_RANGE = (0.5, 1000.0)
"""Range of factors on the host's time: a host that seems to be faster than that is not the
reason."""
REACH = 3.0
"""Standard deviations beyond the usual pace and the one that meets the step, that are looked at."""
LOADER_RANGE = 16.0
"""Maximum speedup of a loader over the recorded step, with which it kept up: the difference of one
worker and as many as a GPU has cores. Between them nothing is known of it, and each factor is as
likely as any other."""
NUM_REPLAYS, NUM_PACES = 20, 1000
ROUNDS = 12
_STEP_AREA = math.sqrt(2 * math.pi) * math.erf(
    USUAL_STEP / math.sqrt(2)
) + 2 / USUAL_STEP * math.exp(-(USUAL_STEP**2) / 2)
"""Area under the likelihood of a replay's deviation from the step."""


class Pace(Struct, frozen=True, kw_only=True):
    factor: float
    """Times the host's time, without what recording cost."""
    open_share: float
    """Share of what was not known of the host before that the step leaves unknown: 0 where the host
    limits the step, 1 where that would be the same with any likely host."""


def likely_pace(interval_ns: Callable[[float], float], step_ns: float) -> Pace:
    """`interval_ns` replays the step with so many times the host's time."""
    deviations, off = _replayed(interval_ns, step_ns)
    surprise = _surprise(deviations, USUAL_PACE) + _surprise(off, USUAL_STEP)
    weights = np.exp(surprise.min() - surprise)
    mean = float(np.average(deviations, weights=weights))
    variance = float(np.average((deviations - mean) ** 2, weights=weights))
    return Pace(factor=_factor(mean), open_share=min(variance, 1.0))


def wait_probability(
    interval_ns: Callable[[float], float], step_ns: float, recorded_ns: float
) -> float:
    """Probability that the run's step is as long as its loader takes for a batch, and not as its
    host takes; of a loader that kept up with the recorded step, which was longer.

    By Bayes: a loader so slow, with a host that is done before it, or a host so slow, with a loader
    that is. Both are densities of the step's logarithm.
    """
    log_range = math.log(LOADER_RANGE * step_ns / recorded_ns)
    if log_range <= 0:
        return 0.0
    deviations, off = _replayed(interval_ns, step_ns)
    usual = np.exp(-_surprise(deviations, USUAL_PACE))
    usual /= usual.sum()
    slow_loader = float(usual[off <= 0].sum())
    slow_host = float((usual * np.exp(-_surprise(off, USUAL_STEP))).sum()) / (STEP_SD * _STEP_AREA)
    return slow_loader / (slow_loader + log_range * slow_host)


def _replayed(interval_ns: Callable[[float], float], step_ns: float) -> tuple[Float64, Float64]:
    """Paces, as deviations from the usual one, and how far off the step the replay of each is, in
    standard deviations."""

    def log_interval(deviation: float) -> float:
        return math.log(max(interval_ns(_factor(deviation)), 1.0))

    # Kernels that took longer in the recording than in the run say nothing of the host.
    log_step = max(math.log(step_ns), log_interval(math.log(PACE_RANGE[0]) / PACE_SD))
    low, high = (math.log(factor) / PACE_SD for factor in PACE_RANGE)
    low, high = (low, 0.0) if log_interval(0.0) > log_step else (0.0, high)
    _, met = bisect(lambda deviation: log_interval(deviation) < log_step, low, high, ROUNDS)
    replayed = np.linspace(min(met, 0.0) - REACH, max(met, 0.0) + REACH, NUM_REPLAYS)
    deviations = np.linspace(replayed[0], replayed[-1], NUM_PACES)
    intervals = np.interp(deviations, replayed, [log_interval(one) for one in replayed.tolist()])
    return deviations, (intervals - log_step) / STEP_SD


def _surprise(deviations: Float64, usual: float) -> Float64:
    """Minus the logarithm of how likely each is: as of a normal distribution up to the usual, and
    straight on from there (Huber 1964)."""
    inside = np.minimum(np.abs(deviations), usual)
    surprise: Float64 = inside * (np.abs(deviations) - inside / 2)
    return surprise


def _factor(deviation: float) -> float:
    return min(max(math.exp(PACE_SD * deviation), PACE_RANGE[0]), PACE_RANGE[1])


USUAL_COST_NS = 2_100.0
"""Cost per recorded operator, when nothing better is known: the middle of what was measured with
torch 2.11 on one host."""
COST_FIXED_NS, COST_SHARE = 600.0, 0.34
"""Recording an event takes so long for itself, and so much of the host's middle time per recorded
event: fitted to 33 host-bound recordings of one GPU (H200 hosts, torch 2.11) whose unprofiled step
is known. Half of them lie within 14 % of it, fitted with them or without the set that they are
from; around one cost for all, within a quarter."""
MAX_SHARE = 0.65
"""The most that recording is taken to cost of it (0.27 to 0.58 in those 33
recordings): a run that is faster still had a faster host than the recorded steps, in all that it
does."""
COST_SPREAD = (1.3, 0.6)
"""Times the estimated cost: the most and the least of nearly all of those recordings."""
LONG_EVENT = 3.0
"""Times the host's middle time per event, up to which a stretch is taken to be of its events: the
rest is Python or a sleep, which costs nothing to record."""
USUAL_RANGE_NS = (400.0, 5_000.0)
"""A cost estimated from the host's speed is within it, as that of most of these recordings is."""
MIN_CALLS = 20
"""Calls with recorded events; fewer say nothing about the host's speed."""
COST_RANGE_NS = (0.0, 10_000.0)
MIN_SHARE = 0.25
"""Share of a stretch of host work that is left however many events were recorded in it."""
EPISODIC = ("input", "compile", "io", "gc")
"""Parts that vary from step to step,
so that a recorded step may have less of them than the run's usual one."""
EPISODIC_SHARE = 0.2
EPISODIC_RANGE = (0.05, 1000.0)
DEVICE_BOUND = 0.96
"""Share of the step that the device takes with a host that takes no time from which the device
limits it."""
BOUND_COSTS = (2.0, 0.25)
"""Times the estimated cost: with them the host is as quick and as slow as it may be, where the step
says nothing of it."""
MIN_OPEN = 0.02
"""Share of what is not known of the host below which the step tells it."""
SLOWER = (0.01, 0.05)
"""Than the recorded host with all that recording cost it, from which the run's is taken to be
another, and to which more and more: replays are off by 1 % anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A graph whose replay is the unprofiled run, as far as that is known."""

    graph: Graph
    step_interval_ns: float
    cost_ns: float
    """Taken off per recorded operator, and twice per runtime call."""
    error: float | None
    """Error of its replay against the known step time; None when that is not known."""
    bounds: tuple[Graph, Graph] | None = None
    """Graphs with as little and as much host time as there may be, where the step does not tell it:
    the device limits that, or what varies from step to step is most of it."""


def event_ns(graph: Graph) -> float | None:
    """The host's middle time per recorded event; None where too few were recorded. The median,
    since a few calls with long Python before them, or a sleep, say nothing about its speed."""
    work = graph.call_parts["work"] + graph.call_parts["operators"]
    events = graph.call_events["work"] + graph.call_events.get("operators", 0)
    has_events = events > 0
    if int(has_events.sum()) < MIN_CALLS:
        return None
    return max(median(work[has_events] / events[has_events]), 1.0)


def usual_cost_ns(graph: Graph) -> float:
    """What recording an operator cost this host, by its speed: a part of it is the same on all."""
    middle_ns = event_ns(graph)
    return USUAL_COST_NS if middle_ns is None else cost_of_event_ns(middle_ns)


def cost_of_event_ns(middle_ns: float) -> float:
    """What recording one costs, where the middle one takes so long with it."""
    low, high = USUAL_RANGE_NS
    cost_ns = min(COST_FIXED_NS + COST_SHARE * middle_ns, MAX_SHARE * middle_ns)
    return float(np.clip(cost_ns, low, high))


def without_cost_ns(
    host_ns: Float64 | Int64, events: Int64, cost_ns: float, middle_ns: float | None
) -> Float64:
    """Stretches of host work without what recording so many events in each of them cost: `cost_ns`
    for one that takes `middle_ns`, more and less for longer and shorter ones."""
    weight: Float64 | Int64 = events
    if middle_ns is not None:
        is_long = host_ns > LONG_EVENT * middle_ns * events
        weight = np.where(is_long, events, host_ns / middle_ns)
    left: Float64 = np.maximum(host_ns - cost_ns * weight, MIN_SHARE * host_ns)
    return left


def without_cost(graph: Graph, cost_ns: float) -> Graph:
    """The graph with this much taken off the host's time for each event recorded in it."""
    middle_ns = event_ns(graph)
    left = {
        part: without_cost_ns(graph.call_parts[part], events, cost_ns, middle_ns)
        for part, events in graph.call_events.items()
    }
    return replace(graph, call_parts=graph.call_parts | left)


def fit(
    graph: Graph,
    step_ns: float | None,
    copies: Bool,
    host_ns: float | None = None,
    measured: Collection[str] = (),
    *,
    host_share: tuple[float, float, float] | None = None,
    contended: bool = False,
    blocking: bool = False,
) -> Fitted:
    """The graph of the unprofiled run:
    fitted to its step time, or with the estimated cost taken off when that is not known.

    `host_ns` is the host's own time in an unprofiled step, where it was seen to run ahead of the
    device; `host_share` what it is of the recorded host's, where that was seen in a part of the
    step: the middle, the least and the most. `measured` are the parts that are as long as the
    unprofiled run has them.
    `copies` are the tasks that cross the bus: the host's memory limits them, and one that ran slow
    is slow there too.
    `contended`: other processes and threads of a loader are in the host's way, so that its speed
    says nothing of what recording cost; and what the step is longer than the rest of it, it waits
    for them.
    `blocking`: the host waits for its kernels inside the calls that launch them, which hides its
    speed too.
    """
    if step_ns is None:
        cost_ns = _estimated_ns(graph, pace_known=not contended and not blocking)
        usual = without_cost(graph, cost_ns)
        fitted = Fitted(
            graph=usual,
            step_interval_ns=play(usual).step_interval_ns,
            cost_ns=cost_ns,
            error=None,
        )
        if _is_device_bound(graph, fitted.step_interval_ns):
            return replace(fitted, bounds=_bounds(graph))
        return fitted
    episodic = _episodic(graph, measured, contended=contended)
    if episodic:
        return _with_episodes(graph, step_ns, episodic, pace_known=not contended)
    if (host_ns or host_share) and _is_device_bound(graph, step_ns):
        if host_ns:
            return _with_host_of(graph, host_ns, step_ns)
        recorded_ns = _host_ns(graph) / graph.num_steps
        likely, quick, slow = (
            _with_host_of(graph, share * recorded_ns, step_ns) for share in host_share or ()
        )
        return replace(likely, bounds=(quick.graph, slow.graph))
    return _at_likely_pace(graph, step_ns, copies, measured)


def _estimated_ns(graph: Graph, *, pace_known: bool) -> float:
    """Cost by the host's speed. Where something was in its way it is faster than it looks, so that
    its speed says only what recording cost at most."""
    cost_ns = usual_cost_ns(graph)
    return cost_ns if pace_known else min(cost_ns, USUAL_COST_NS)


def _is_device_bound(graph: Graph, step_ns: float) -> bool:
    free = without_host_parts(graph, *graph.call_parts)
    return play(free).step_interval_ns >= step_ns * DEVICE_BOUND


def _bounds(graph: Graph) -> tuple[Graph, Graph]:
    quick, slow = (without_cost(graph, times * usual_cost_ns(graph)) for times in BOUND_COSTS)
    return quick, slow


def _at_likely_pace(
    graph: Graph, step_ns: float, copies: Bool, measured: Collection[str]
) -> Fitted:
    """The host as fast as the step says it was."""
    parts = [part for part in graph.call_parts if part not in measured]
    cost_ns = usual_cost_ns(graph)
    left = without_cost(graph, cost_ns)
    pace = likely_pace(
        lambda factor: play(_scaled(left, parts, factor, copies)).step_interval_ns, step_ns
    )
    host_ns = pace.factor * _host_ns(left)
    # Nothing is recorded for free: one slower than that was another host, of whose speed the
    # recording says little. Its time is as long, and otherwise divided.
    slower = host_ns / _host_ns(graph) - 1
    cost_ns = float(np.interp(slower, SLOWER, (cost_ns, USUAL_COST_NS)))
    factor = host_ns / _host_ns(without_cost(graph, cost_ns))
    likely, quick, slow = (
        _scaled(without_cost(graph, cost_ns * times**pace.open_share), parts, factor, copies)
        for times in (1.0, *BOUND_COSTS)
    )
    fitted = _fitted(likely, cost_ns, step_ns)
    return fitted if pace.open_share < MIN_OPEN else replace(fitted, bounds=(quick, slow))


def loader_probability(graph: Graph, step_ns: float, recorded_ns: float, copies: Bool) -> float:
    """Probability that the run's step is as long as its loader takes for a batch and not as its
    host takes, where no recorded step waits for one."""
    left = without_cost(graph, usual_cost_ns(graph))
    parts = list(graph.call_parts)
    return wait_probability(
        lambda factor: play(_scaled(left, parts, factor, copies)).step_interval_ns,
        step_ns,
        recorded_ns,
    )


def _host_ns(graph: Graph) -> float:
    return max(float(graph.call_ns.sum()), 1.0)


def _with_host_of(graph: Graph, host_ns: float, step_ns: float) -> Fitted:
    """The recording's cost is what the recorded host takes
    longer than the unprofiled one does by itself."""

    def is_cheap(cost_ns: float) -> bool:
        return float(without_cost(graph, cost_ns).call_ns.sum()) / graph.num_steps > host_ns

    _, cost_ns = bisect(is_cheap, *COST_RANGE_NS, 12)
    return _fitted(without_cost(graph, cost_ns), cost_ns, step_ns)


def _episodic(graph: Graph, measured: Collection[str], *, contended: bool) -> list[str]:
    """The parts that vary from step to step and take a good share of the host's time; of a loader
    that paces the run, however little of its wait was recorded."""
    totals = {part: float(graph.call_parts[part].sum()) for part in graph.call_parts}
    host = sum(totals.values()) or 1.0
    least = dict.fromkeys(EPISODIC, EPISODIC_SHARE * host)
    if contended:
        least["input"] = 0.0
    return [part for part in EPISODIC if part not in measured and totals[part] > least[part]]


def _with_episodes(
    graph: Graph, step_ns: float, episodic: list[str], *, pace_known: bool
) -> Fitted:
    """More or less of what varies. The rest of the host's time stays as it is, so that what
    recording it cost matters: it is estimated, and the bounds are with more and less of it."""
    cost_ns = _estimated_ns(graph, pace_known=pace_known)
    none = np.zeros(len(graph), np.bool_)
    likely, quick, slow = (
        _scaled_to(without_cost(graph, cost_ns * times), step_ns, episodic, EPISODIC_RANGE, none)
        for times in (1.0, *COST_SPREAD)
    )
    return replace(_fitted(likely, cost_ns, step_ns), bounds=(quick, slow))


def _scaled_to(
    graph: Graph, step_ns: float, parts: list[str], factors: tuple[float, float], tasks: Bool
) -> Graph:
    """Scale these parts by the factor that makes the step as long as it is."""

    def is_short(factor: float) -> bool:
        return play(_scaled(graph, parts, factor, tasks)).step_interval_ns <= step_ns

    factor, _ = bisect(is_short, *factors, 20, is_geometric=True)
    return _scaled(graph, parts, factor, tasks)


def _scaled(graph: Graph, parts: list[str], factor: float, tasks: Bool) -> Graph:
    scaled = {part: ns * factor if part in parts else ns for part, ns in graph.call_parts.items()}
    return replace(
        graph, call_parts=scaled, task_ns=np.where(tasks, graph.task_ns * factor, graph.task_ns)
    )


def _fitted(graph: Graph, cost_ns: float, step_ns: float) -> Fitted:
    step_interval = play(graph).step_interval_ns
    return Fitted(
        graph=graph,
        step_interval_ns=step_interval,
        cost_ns=cost_ns,
        error=step_interval / step_ns - 1,
    )
