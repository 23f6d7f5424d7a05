"""What failures cost a long run: how often to write a checkpoint, and what is left of the time.

Young 1974 gives the interval to first order; Daly 2006 (Future Generation Computer Systems 22,
sections 3 and 4) the next ones, and the time that a run takes with failures and restarts.
"""

from __future__ import annotations

import math

from stepscope.plan.contract.plan import Failures
from stepscope.plan.estimate import Choice
from stepscope.plan.job import TrainingJob

PUBLISHED_MTBF_H = 16_384 * 54 * 24 / 419
"""Hours of one device and what it hangs on: 419 interruptions that nobody planned in 54 days of
16,384 H100s (Llama 3, arXiv 2407.21783, section 3.3.4). One publication of one cluster."""
RESTART_S = 600.0
"""*Assumed*: from a failure to the next step. --restart says otherwise."""
STORAGE_BYTES_PER_S = 1e9
"""*Assumed*: that a node writes to what outlives it, all nodes at once. --checkpoint says what a
checkpoint takes."""
SECONDS_PER_HOUR = 3600.0


def checkpoint_s(job: TrainingJob) -> float:
    """Seconds that a checkpoint holds up training: weights and states, written by all nodes at
    once, and nothing trained meanwhile."""
    kept = job.framework.copy_bytes + job.optimizer.moment_bytes + job.framework.weight_bytes
    return job.model.num_params * kept / (job.cluster.num_nodes * STORAGE_BYTES_PER_S)


def best_interval_s(write_s: float, mtbf_s: float) -> float:
    """Time of work between two checkpoints (Daly 2006, equation 37): Young's to first order."""
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    share = write_s / (2 * mtbf_s)
    young = math.sqrt(2 * write_s * mtbf_s)
    return young * (1 + math.sqrt(share) / 3 + share / 9) - write_s


def goodput(interval_s: float, write_s: float, restart_s: float, mtbf_s: float) -> float:
    """The share of time that is work which stays (Daly 2006, equation 20)."""
    exponent = (interval_s + write_s) / mtbf_s
    if exponent + restart_s / mtbf_s > 500:
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def failures(
    job: TrainingJob,
    choice: Choice,
    *,
    mtbf_h: float | None = None,
    write_s: float | None = None,
    restart_s: float | None = None,
    days: float | None = None,
) -> Failures:
    """Failures at a layout's speed, every device as likely to fail at any time; checkpoints fall on
    whole steps."""
    each_h = mtbf_h or PUBLISHED_MTBF_H
    mtbf_s = each_h * SECONDS_PER_HOUR / job.cluster.num_devices
    write_s = checkpoint_s(job) if write_s is None else write_s
    restart_s = RESTART_S if restart_s is None else restart_s
    steps = max(1, round(best_interval_s(write_s, mtbf_s) / choice.step_s))
    every_s = steps * choice.step_s
    share = goodput(every_s, write_s, restart_s, mtbf_s)
    with_failures = None if days is None or share <= 0 else days / share
    return Failures(
        mtbf_hours=each_h,
        job_mtbf_hours=mtbf_s / SECONDS_PER_HOUR,
        checkpoint_s=write_s,
        restart_s=restart_s,
        every_s=every_s,
        every_steps=steps,
        goodput=share,
        days=with_failures,
        num_failures=None
        if with_failures is None
        else with_failures * 24 * SECONDS_PER_HOUR / mtbf_s,
    )
