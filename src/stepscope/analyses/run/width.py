"""One run of a scaling series: a job's facts in, the few that scaling needs out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb

from stepscope.analyses.steps.windows import WHOLE_TRACE
from stepscope.core.comms import CommsFacts
from stepscope.core.facts import PARTS, Facts, RankFacts, Steps
from stepscope.core.scaling import RANK_SPREAD, UNPROFILED, RunStep, WidthRun

CONFIDENCE = 0.975
"""Confidence of the interval of each side: both of them then bound their ratio with at least 95
%."""

COMMS_OPS = (
    "record_param_comms", "c10d::", "nccl:", "gloo:", "mpi:", "ucc:", "fsdp::",
    "_c10d_functional::",
)  # fmt: skip
"""How the names of operators begin that a wider run adds to the same model."""


def width_run(
    path: str, facts: Facts, world_size: int | None, notes: Sequence[str] = ()
) -> WidthRun:
    """What scaling needs of one job.
    `world_size` is what its traces recorded, `notes` what was said of reading them."""
    ranks = facts.ranks
    step = run_step(facts)
    return WidthRun(
        path=path,
        width=world_size or len(ranks),
        width_source="recorded" if world_size else "counted",
        num_ranks=len(ranks),
        step=step,
        parts_ns=mean_parts(ranks, step),
        flops=_flops(ranks),
        gradient_bytes=None if facts.comms is None else _gradient_bytes(facts.comms),
        device_name=facts.median_rank.device_name,
        op_shares=_op_shares(facts.median_rank),
        notes=(*notes, *_missing(ranks, world_size), *facts.notes),
    )


def run_step(facts: Facts) -> RunStep:
    """The step as a diagnosis reports it: the given time, else the median rank's; None where no
    step could be detected, as the length of what was recorded is nobody's step time."""
    steps, given = facts.median_rank.steps, facts.given_step_ns
    profiled = None
    if steps.step_interval_ns is not None and steps.source != WHOLE_TRACE:
        profiled = round(steps.step_interval_ns)
    low, high = (None, None) if given is not None else median_interval(steps)
    return RunStep(
        count=len(steps.windows),
        ns=profiled if given is None else given,
        profiled_ns=profiled,
        source=facts.step_source,
        low_ns=low,
        high_ns=high,
    )


def median_interval(steps: Steps) -> tuple[int, int] | tuple[None, None]:
    """The steps between which the median lies, whatever their distribution;
    None where they are too few to say.

    The median of n is outside the k-th smallest and the k-th largest with probability 2 *
    P(Binomial(n, 1/2) < k) (David and Nagaraja, Order Statistics, section 7.1).
    """
    step_intervals = sorted(steps.step_intervals)
    num = len(step_intervals)
    if not steps.is_step_interval:
        return None, None
    outside, rank = 0.0, 0
    while rank < num and outside + 2 * comb(num, rank) / 2**num <= 1 - CONFIDENCE:
        outside += 2 * comb(num, rank) / 2**num
        rank += 1
    return (None, None) if rank == 0 else (step_intervals[rank - 1], step_intervals[num - rank])


def mean_parts(ranks: Sequence[RankFacts], step: RunStep) -> dict[str, int | None] | None:
    """The parts of a step, the mean over the ranks that have one,
    and what they leave of the step time."""
    split = [(rank, parts) for rank in ranks if (parts := rank.typical_parts_ns) is not None]
    if not split or step.ns is None or step.profiled_ns is None:
        return None
    is_unsplit = any(_is_unsplit(rank, parts) for rank, parts in split)
    every = [parts for _, parts in split]
    return mean_of_parts(every, step.ns, step.profiled_ns, is_unsplit=is_unsplit)


def mean_of_parts(
    split: Sequence[Mapping[str, float | None]], step_ns: int, profiled_ns: int, *, is_unsplit: bool
) -> dict[str, int | None]:
    """Mean parts of ranks' steps. `is_unsplit`: what is waiting and what transfer is not known of
    each."""
    mean: dict[str, int | None] = {
        part: round(sum(parts[part] or 0.0 for parts in split) / len(split)) for part in PARTS
    }
    if is_unsplit:
        mean["comms_transfer"] = (mean["comms_transfer"] or 0) + (mean["comms_wait"] or 0)
        mean["comms_wait"] = None
    spread = profiled_ns - sum(ns or 0 for ns in mean.values())
    return mean | {RANK_SPREAD: spread, UNPROFILED: step_ns - profiled_ns}


def _is_unsplit(rank: RankFacts, parts: Mapping[str, float]) -> bool:
    return (
        rank.partition is not None
        and parts["comms_transfer"] > 0
        and not rank.partition.waits_split
    )


def _flops(ranks: Sequence[RankFacts]) -> float | None:
    """The mean over ranks with a whole step;
    None unless all have it, as ranks of a pipeline do different work."""
    whole = [rank.roofline.model_flops for rank in ranks if rank.steps.windows]
    measured = [flops for flops in whole if flops is not None]
    return sum(measured) / len(measured) if measured and len(measured) == len(whole) else None


def _gradient_bytes(comms: CommsFacts) -> float | None:
    """What DDP's buckets hold, else what is reduce-scattered in a step (FSDP)."""
    if comms.buckets is not None:
        sizes = [size for size in comms.buckets.bytes if size is not None]
        return sum(sizes) if len(sizes) == len(comms.buckets.bytes) else None
    if comms.num_rows_left_out:
        return None
    sent = [
        row.bytes * row.count_per_step
        for row in comms.rows
        if row.op == "reduce_scatter" and row.bytes is not None and row.count_per_step is not None
    ]
    return sum(sent) if sent else None


def _op_shares(rank: RankFacts) -> dict[str, float]:
    """Calls, not times: those of one model do not change with the size of its batch."""
    counts: Counter[str] = Counter()
    for row in rank.ops:
        if not row.name.startswith(COMMS_OPS):
            counts[row.name] += row.count
    return {name: count / counts.total() for name, count in counts.items()}


def _missing(ranks: Sequence[RankFacts], world_size: int | None) -> tuple[str, ...]:
    """One trace of a wide job: readers name missing ranks only where there are several."""
    if world_size is None or len(ranks) != 1 or world_size <= 1:
        return ()
    return (
        f"1 of the job's {world_size} ranks was read: what is said of its parts is that rank's",
    )
