"""One rank keeps all the others waiting.

What it sees: with the ranks replayed together, one whose own step is longer than the others', and
collectives at which it arrives last, step after step. Clocks are aligned on the ends of collectives
first: a clock that is off makes nobody late. A few recorded steps may let its host run ahead of the
device: then it is told by how much longer its host takes. In a run recorded by `stepscope run`,
without a trace too: steps less the waits in backward passes, or a loader that one rank alone waits
for.

Why it costs: a collective moves its bytes when the last rank has arrived. The late rank's own
collectives are the shortest, so it looks the healthiest of all; the others spend the difference
waiting.

Evidence it needs: traces of all ranks, or of several at least; launches (`ProfilerActivity.CPU`) to
tell a slow host.

What to do: look at that rank's input (one slow shard or disk), its host (another process, a
debugger, fewer cores, a different NUMA node), its device (clocks, power: see throttled-gpu). The
evidence says what it does more of than the others.

Example: one of two ranks slept 60 ms before each backward pass: 188 ms a step, 133 ms without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from msgspec import Struct

from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.run import RunFacts
from stepscope.replay.job import waiting_each_step, with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.own_shapes import own_share
from stepscope.rules.shared.rank_speed import PART_WORDS, at_speed, excess, rank_speeds

CODE = "late-rank"
BOUND = "imbalance"


class Policy(Struct, frozen=True, kw_only=True):
    least_excess: float = 0.03
    """Share of the step by which a rank's own step must be longer than the others'."""
    hidden: float = 0.1
    """Share of the excess that must be seen as lateness; below it the recording hides it."""
    least_ratio: float = 1.5
    """Ratio of a late rank's part to the others' at least: hosts of one machine differ by a quarter
    for no reason of the run's."""
    hidden_ratio: float = 2.0
    """The same where the recorded steps do not wait for it: three hosts that sleep take 3.6 to 6.3
    times what the others do, those of ten even jobs 1.5 times at most."""
    least_timed: float = 0.1
    """Share of the step by which a rank's own time must exceed the others' where only the steps'
    lengths are known."""
    least_often: float = 0.8
    """Share of the timed steps in which that rank's own time must be the longest."""
    most_compute: float = 0.5
    """Share of that excess in kernels, or without a device of the operators' time on inputs of
    sizes that no other rank has, from which it is more work, not lateness: uneven-work."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """Propose that the late rank is as fast as the others."""
    if len(job.cases) < 2:
        return None
    return _late(job) or _hidden(job)


def _hidden(job: JobCase) -> JobProposal | None:
    """A host that takes far longer than the others' while a few recorded steps let it run ahead of
    the device. Whether a longer run waits for it is open until the step's time is known: half of
    what it would cost is told."""
    if job.knows_step or all(part.graph.on_host for part in job.job_graph.parts):
        return None
    graphs = [waiting_each_step(part.graph) for part in job.job_graph.parts]
    waiting = with_graphs(job.job_graph, graphs)
    speeds = rank_speeds(replace(job, job_graph=waiting))
    index = speeds.slowest
    over = speeds.alone_ns[index] - speeds.others(speeds.alone_ns, index)
    part, more = excess(speeds, index)
    values = tuple(host.get(part, 0.0) for host in speeds.host_ns)
    usual = speeds.others(values, index)
    if (
        over < POLICY.least_excess * job.step_interval_ns
        or more < POLICY.most_compute * over
        or values[index] < POLICY.hidden_ratio * max(usual, 1.0)
    ):
        return None
    rank = job.ranks[index]
    where = f"{PART_WORDS[part]} there, {usual / 1e6:.1f} ms elsewhere"
    return JobProposal(
        summary=f"Rank {rank}'s host takes {more / 1e6:.1f} ms a step more than the others' "
        f"{PART_WORDS[part]}, which the few recorded steps hide.",
        action=f"Look at rank {rank}: its input, its host (other processes, cores, NUMA node). "
        "--step-ms, the step without a profiler, says whether the others wait for it",
        evidence=(
            f"{values[index] / 1e6:.1f} ms a step {where}",
            (
                "the hosts run ahead of the device in the recording; where a longer run cannot, "
                f"the step is {over / 1e6:.1f} ms longer for it, of which half is told"
            ),
        ),
        ranks=(rank,),
        change=lambda job_graph: job_graph,
        rare_ns=over / 2,
    )


def _late(job: JobCase) -> JobProposal | None:
    speeds = rank_speeds(job)
    index = speeds.slowest
    usual = speeds.others(speeds.alone_ns, index)
    over = speeds.alone_ns[index] - usual
    part, more = excess(speeds, index)
    if (
        over < POLICY.least_excess * job.step_interval_ns
        or part == "compute"
        or more < POLICY.most_compute * over
    ):
        return None
    values = tuple(host[part] for host in speeds.host_ns)
    usual_part = speeds.others(values, index)
    if values[index] < POLICY.least_ratio * usual_part:
        return None
    if part == "operators" and own_share(job, index) >= POLICY.most_compute:
        # More work on the same host: uneven-work.
        return None
    rank = job.ranks[index]
    if _is_denied(job, index):
        return None
    late = next((lateness for lateness in job.lateness if lateness.rank == rank), None)
    if late is None:
        arrival = []
    elif late.median_ns > POLICY.hidden * over:
        arrival = [f"it arrives {late.median_ns / 1e6:.1f} ms after the others in the recording"]
    else:
        arrival = [
            (
                "the few recorded steps hide it: the hosts run ahead of the device there, which a "
                "longer run cannot"
            )
        ]

    def change(job_graph: JobGraph) -> JobGraph:
        return at_speed(job, job_graph, index, usual)

    return JobProposal(
        summary=f"Rank {rank} holds the others up: its own step takes "
        f"{speeds.alone_ns[index] / 1e6:.1f} ms, theirs {usual / 1e6:.1f} ms.",
        action=f"Look at rank {rank}: its input, its host (other processes, cores, NUMA node)"
        f"{_device_words(job)}. It spends "
        f"{more / 1e6:.1f} ms a step more than the others {PART_WORDS[part]}",
        evidence=(
            (
                f"{values[index] / 1e6:.1f} ms a step {PART_WORDS[part]} there, "
                f"{usual_part / 1e6:.1f} ms elsewhere"
            ),
            *arrival,
        ),
        ranks=(rank,),
        change=change,
    )


def _device_words(job: JobCase) -> str:
    is_on_host = all(part.graph.on_host for part in job.job_graph.parts)
    return "" if is_on_host else ", its device's clocks"


def advise_run(run: RunFacts) -> Advice | None:
    """Advise by steps timed with no profiler, on each rank for itself."""
    late = late_by_own_time(run)
    if late is None:
        return _slow_loader(run)
    rank, usual_ns = late
    own = run.by_rank[rank].own
    assert own is not None
    parts = {
        each.rank: {
            "in its loader": each.own.loader_ns,
            "outside its loader and backward passes": each.own.own_ns
            - each.own.loader_ns
            - each.own.backward_ns,
        }
        for each in run.ranks
        if each.own is not None
    }
    where = max(parts[rank], key=lambda name: _excess(parts, rank, name))
    more, over = _excess(parts, rank, where), own.own_ns - usual_ns
    spends = f" It spends {more / 1e6:.1f} ms a step more than the others {where}"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"Rank {rank} holds the others up: its own step takes {own.own_ns / 1e6:.1f} ms, "
        f"theirs {usual_ns / 1e6:.1f} ms at most.",
        action=f"Look at rank {rank}: its input, its host (other processes, cores, NUMA node)."
        f"{spends if more > 0 else ''}",
        evidence=(
            f"the longest own time in {own.share_longest:.0%} of {own.num_steps} unprofiled steps",
        ),
        weight=min(over / max(own.step_ns, 1), 1.0),
        weight_of="the step",
        ranks=(rank,),
    )


def late_by_own_time(run: RunFacts) -> tuple[int, float] | None:
    """The rank whose own time is the longest in most steps, and what the others take; None where
    there is none."""
    own = {rank.rank: rank.own for rank in run.ranks if rank.own is not None}
    if len(own) < 2:
        return None
    slowest = max(own, key=lambda rank: own[rank].own_ns)
    usual = median(each.own_ns for rank, each in own.items() if rank != slowest)
    over, step = own[slowest].own_ns - usual, own[slowest].step_ns
    is_often = own[slowest].share_longest >= POLICY.least_often
    return (slowest, usual) if is_often and over >= POLICY.least_timed * step else None


def _is_denied(job: JobCase, index: int) -> bool:
    """Whether a rank that is late in the few recorded steps is not in the many timed ones, or the
    recorded ones are no such steps."""
    own = [None if case.metadata is None else case.metadata.own for case in job.cases]
    known = [each.own_ns for each in own if each is not None]
    mine = own[index]
    if mine is None or len(known) < len(own):
        return job.is_unlike
    others = known[:index] + known[index + 1 :]
    return mine.own_ns - median(others) < POLICY.least_excess * mine.step_ns


def _slow_loader(run: RunFacts) -> Advice | None:
    """Advise on a slow loader. With a device the host's waits for others are not told from its own;
    what it waits for its loader is its own, and nothing hides it on a host that never runs ahead of
    the device."""
    waits = {
        rank.rank: rank.steps.wait_ns
        for rank in run.ranks
        if rank.has_device and rank.steps is not None and rank.steps.wait_ns is not None
    }
    if len(waits) < 2 or len(waits) < len(run.ranks):
        return None
    rank = max(waits, key=lambda each: waits[each])
    steps = run.by_rank[rank].steps
    assert steps is not None
    usual = median(ns for other, ns in waits.items() if other != rank)
    over = waits[rank] - usual
    is_late = over >= POLICY.least_timed * steps.step_ns
    if not is_late or waits[rank] < POLICY.least_ratio * usual or steps.host_ns is not None:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"Rank {rank} waits {waits[rank] / 1e6:.1f} ms a step for its loader, the others "
        f"{usual / 1e6:.1f} ms: they wait for it.",
        action=f"Look at rank {rank}'s input: its shard, its disk, its workers, its cores",
        evidence=(f"over {steps.num} unprofiled steps",),
        weight=min(over / max(steps.step_ns, 1), 1.0),
        weight_of="the step",
        ranks=(rank,),
    )


def _excess(parts: Mapping[int, Mapping[str, int]], rank: int, name: str) -> float:
    return parts[rank][name] - median(each[name] for other, each in parts.items() if other != rank)


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose_job=propose_job,
    advise_run=advise_run,
    # What makes a rank late is its own.
    answers=("host", "data"),
)
