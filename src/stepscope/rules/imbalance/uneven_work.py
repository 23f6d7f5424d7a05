"""Ranks have unlike amounts of work, and the ones with less wait.

What it sees: with the ranks replayed together, kernels that take longer on one rank than on the
others, or a last rank that changes from step to step, while collectives wait. In a run recorded by
`stepscope run` on hosts alone, without a trace too: own times (steps less waits) that differ from
step to step.

Why it costs: every step lasts as long as its largest share of the work. Sequences of unlike length,
unbalanced experts or a batch that does not divide evenly make the others wait for it.

Evidence it needs: traces of all ranks, or of several at least; of ranks without a device shapes
too (`record_shapes=True`): operators that take longer on inputs of the same sizes are a slow host.

What to do: work that one rank alone does (metrics, sampling, an evaluation) belongs out of the
step, or on all of them. Else sort or bucket samples by length and hand out batches of equal tokens
(a balanced sampler, packing); for experts a balancing loss or a capacity factor; even pipeline
stages.

Example: the longer of two ranks' batches changed every step: the step took as long as the longer
one, always.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.run import OwnTime, RunFacts
from stepscope.core.trace import NONE, Float64
from stepscope.replay.changes import with_part_ns
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.accuracy import POLICY as RANGES
from stepscope.rules.imbalance.late_rank import late_by_own_time
from stepscope.rules.imbalance.throttled_gpu import slow_device
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.balance import balanced_shares, with_even_work
from stepscope.rules.shared.kernel_slowdown import ExtraKernels, extra_kernels
from stepscope.rules.shared.own_shapes import own_share
from stepscope.rules.shared.rank_speed import at_speed, excess, rank_speeds

CODE = "uneven-work"
BOUND = "imbalance"


class Policy(Struct, frozen=True, kw_only=True):
    least_excess: float = 0.03
    """Share of the step by which a rank's kernels must take longer than the others'."""
    most_of_it: float = 0.5
    """Share of a rank's extra kernel time from which kernels that it alone runs are the reason."""
    least_spread: float = 0.1
    """Share of the kernels' time in a step by which the longest rank must exceed the mean for the
    work of single steps to be uneven."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """The work of each step shared out evenly."""
    if len(job.cases) < 2:
        return None
    if all(part.graph.on_host for part in job.job_graph.parts):
        return _uneven_hosts(job)
    per_step = _compute_per_step(job)
    speeds = rank_speeds(job)
    index = int(np.argmax(speeds.compute_ns))
    usual = speeds.others(speeds.compute_ns, index)
    is_one_rank = (
        speeds.compute_ns[index] - usual >= POLICY.least_excess * job.step_interval_ns
        and excess(speeds, speeds.slowest)[0] == "compute"
    )
    spread = float(
        np.mean(
            (per_step.max(axis=0) - per_step.mean(axis=0)) / np.maximum(per_step.mean(axis=0), 1.0)
        )
    )
    if not is_one_rank and spread < POLICY.least_spread:
        return None
    if is_one_rank and slow_device(job) is not None:
        # The same work on a slower device.
        return None
    uneven_exchanges = _uneven_exchanges(job)
    if is_one_rank and not uneven_exchanges:
        # What all-to-alls send to one rank is its share of the job's work.
        extra = extra_kernels(job, index)
        if extra is not None and extra.ns >= POLICY.most_of_it * (speeds.compute_ns[index] - usual):
            return _extra_work(job, index, extra, speeds.others(speeds.alone_ns, index))
    most = float(np.mean(per_step.max(axis=0))) / 1e6
    rank = job.ranks[index]
    evidence, cautious = "the rank with most changes from step to step", None
    if is_one_rank:
        times = f"{speeds.compute_ns[index] / 1e6:.1f} ms a step, the others {usual / 1e6:.1f} ms"
        evidence = f"rank {rank} has most: {times}"
        halfway = (speeds.alone_ns[index] + speeds.others(speeds.alone_ns, index)) / 2
        cautious = partial(at_speed, job, index=index, target_ns=halfway)
    return JobProposal(
        summary=f"The ranks' kernels take unlike times: {most:.1f} ms a step on the rank with most,"
        f" {per_step.mean() / 1e6:.1f} ms on average.",
        action="Share the work out evenly: batches of equal tokens (a balanced or bucketing "
        "sampler, packing), balanced experts",
        evidence=(
            evidence,
            f"the rank with most has {spread:.0%} more than the average in a step",
            *uneven_exchanges,
        ),
        ranks=(rank,) if is_one_rank else job.ranks,
        change=lambda job_graph: with_even_work(job, job_graph),
        cautious=cautious,
    )


def _uneven_hosts(job: JobCase) -> JobProposal | None:
    """Propose without a device: the operators of one rank take longer, on inputs of other sizes."""
    speeds = rank_speeds(job)
    index = speeds.slowest
    values = tuple(host["operators"] for host in speeds.host_ns)
    usual, mean = speeds.others(values, index), float(np.mean(values))
    share = own_share(job, index)
    if (
        values[index] - usual < POLICY.least_excess * job.step_interval_ns
        or excess(speeds, index)[0] != "operators"
        or share < POLICY.most_of_it
    ):
        return None
    rank = job.ranks[index]
    halfway = (speeds.alone_ns[index] + speeds.others(speeds.alone_ns, index)) / 2

    def change(job_graph: JobGraph) -> JobGraph:
        graphs = [
            with_part_ns(
                part.graph, "operators", part.graph.call_parts["operators"] * mean / max(own, 1.0)
            )
            for part, own in zip(job_graph.parts, values, strict=True)
        ]
        return with_graphs(job_graph, graphs)

    return JobProposal(
        summary=f"The ranks' operators take unlike times: {values[index] / 1e6:.1f} ms a step on "
        f"the rank with most, {mean / 1e6:.1f} ms on average.",
        action="Share the work out evenly: batches of equal tokens (a balanced or bucketing "
        "sampler, packing)",
        evidence=(
            (
                f"rank {rank} has most: {values[index] / 1e6:.1f} ms a step, the others "
                f"{usual / 1e6:.1f} ms"
            ),
            f"{share:.0%} of it on inputs of sizes that no other rank has",
        ),
        ranks=(rank,),
        change=change,
        cautious=partial(at_speed, job, index=index, target_ns=halfway),
    )


def _extra_work(job: JobCase, index: int, extra: ExtraKernels, others_ns: float) -> JobProposal:
    """One rank does all that the others do, and more: without that it is as fast as they are. At
    the least it is shared out."""
    rank = job.ranks[index]
    return JobProposal(
        summary=f"Rank {rank} does work that no other rank does: {extra.ns / 1e6:.1f} ms a step.",
        action=f"Take what rank {rank} alone does (metrics, sampling, an evaluation) out of the "
        "step or do it every so many steps; or share it out over the ranks",
        evidence=(f"it runs all that the others do, and {extra.num:.0f} more kernels a step",),
        ranks=(rank,),
        change=partial(at_speed, job, index=index, target_ns=others_ns),
        cautious=lambda job_graph: with_even_work(job, job_graph),
    )


def _compute_per_step(job: JobCase) -> Float64:
    """Kernel time by rank and step, over the steps that all have."""
    steps = min(part.graph.num_steps for part in job.job_graph.parts)
    rows = []
    for index, part in enumerate(job.job_graph.parts):
        busy = job.compute_tasks(index) & (part.graph.task_step != NONE)
        rows.append(
            np.bincount(part.graph.task_step[busy], part.graph.task_ns[busy], minlength=steps)[
                :steps
            ]
        )
    return np.array(rows, np.float64)


def _uneven_exchanges(job: JobCase) -> list[str]:
    """What the recorded splits of all-to-alls say of the same."""
    share = balanced_shares(job)
    uneven = share[share < 1 - POLICY.least_spread]
    if not len(uneven):
        return []
    steps = max(job.job_graph.parts[0].graph.num_steps, 1)
    times = 1 / float(np.median(uneven))
    return [
        (
            f"{len(uneven) / steps:.0f} all-to-alls a step move {times:.1f} times at the busiest "
            "rank what even splits would"
        )
    ]


def advise_run(run: RunFacts) -> Advice | None:
    """Advise by steps timed with no profiler: own times that differ, and not on one rank alone."""
    own = _uneven(run)
    if not own or _may_be_load(run, own[0].spread):
        return None
    most = max(each.share_longest for each in own)
    return Advice(
        code=CODE,
        bound=BOUND,
        summary="The ranks' own times differ from step to step: the longest is "
        f"{own[0].spread:.0%} of the step over their mean.",
        action="Share the work out evenly: batches of equal tokens (a balanced or bucketing "
        "sampler, packing)",
        evidence=(
            f"no rank has it in more than {most:.0%} of {own[0].num_steps} unprofiled steps",
        ),
        weight=min(own[0].spread, 1.0),
        weight_of="the step",
    )


def unjudged(run: RunFacts) -> str | None:
    """Why own times that differ are nobody's fault so far: whoever has no core just then comes
    last."""
    own = _uneven(run)
    if not own or not _may_be_load(run, own[0].spread):
        return None
    return (
        f"not judged: {CODE}: the longest of the ranks' own times is {own[0].spread:.0%} of the "
        "step over their mean, another rank's from step to step, and a busy machine does the same: "
        "record again on a machine that is not shared"
    )


def _uneven(run: RunFacts) -> list[OwnTime]:
    """The ranks' own times, where they differ and not on one rank alone."""
    own = [rank.own for rank in run.ranks if rank.own is not None]
    if len(own) < 2 or own[0].spread < POLICY.least_spread or late_by_own_time(run) is not None:
        return []
    return own


def _may_be_load(run: RunFacts, spread: float) -> bool:
    """Whether a rank was without a core for as much of the step as their own times differ by: no
    less than that makes them differ so."""
    rank = run.most_held_up
    share = 0.0 if rank is None else rank.held_up_share or 0.0
    return share >= max(RANGES.least_held_up, spread)


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose_job=propose_job,
    advise_run=advise_run,
    # Work that others wait for.
    answers=("compute", "memory"),
)
