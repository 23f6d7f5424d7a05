"""Ranks have unlike amounts of work, and the ones with less wait.

What it sees: with the ranks replayed together, kernels that take longer on one rank than on the
others, or a last rank that changes from step to step, while collectives wait.

Why it costs: every step lasts as long as its largest share of the work. Sequences of unlike length,
unbalanced experts or a batch that does not divide evenly make the others wait for it.

Evidence it needs: traces of all ranks, or of several at least.

What to do: sort or bucket samples by length and hand out batches of equal tokens (a balanced
sampler, packing); for experts a balancing loss or a capacity factor; even pipeline stages.

Example: the longer of two ranks' batches changed every step: the step took as long as the longer
one, always.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.core.trace import NONE, Float64
from stepscope.rules.imbalance.throttled_gpu import slow_device
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.shared.balance import balanced_shares, with_even_work
from stepscope.rules.shared.rank_speed import at_speed, excess, rank_speeds

CODE = "uneven-work"
BOUND = "imbalance"


class Policy(Struct, frozen=True, kw_only=True):
    least_excess: float = 0.03
    """Of the step, by which a rank's kernels must take longer than the others'."""
    least_spread: float = 0.1
    """Of the kernels' time in a step, over the ranks, from which the work of single steps is
    uneven."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """The work of each step shared out evenly."""
    if len(job.cases) < 2:
        return None
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
    most = float(np.mean(per_step.max(axis=0))) / 1e6
    rank = job.ranks[index]
    evidence, cautious = "the rank with most changes from step to step", None
    if is_one_rank:
        times = f"{speeds.compute_ns[index] / 1e6:.1f} ms a step, the others {usual / 1e6:.1f} ms"
        evidence = f"rank {rank} has most: {times}"
        halfway = (speeds.alone_ns[index] + speeds.others(speeds.alone_ns, index)) / 2
        cautious = partial(at_speed, job, index=index, target_ns=halfway)
    return JobProposal(
        code=CODE,
        bound=BOUND,
        summary=f"The ranks' kernels take unlike times: {most:.1f} ms a step on the rank with most,"
        f" {per_step.mean() / 1e6:.1f} ms on average.",
        action="Share the work out evenly: batches of equal tokens (a "
        "balanced or bucketing sampler, "
        "packing), balanced experts",
        evidence=(
            evidence,
            f"the rank with most has {spread:.0%} more than the average in a step",
            *_uneven_exchanges(job),
        ),
        ranks=(rank,) if is_one_rank else job.ranks,
        change=lambda job_graph: with_even_work(job, job_graph),
        cautious=cautious,
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
            "rank "
            "what even splits would"
        )
    ]
