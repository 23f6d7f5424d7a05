"""Gradients cross in many small messages, and each pays the link's latency.

What it sees: in one backward pass many all-reduces (or reduce-scatters) of gradients, each far
smaller than a bucket, launched as the gradients appear; a start of each that takes longer than its
bytes, by the line T = alpha + bytes / beta through this job's own messages.

Why it costs: a message costs its start (alpha: kernel launch, handshakes, steps around the ring)
and its bytes. Forty messages pay forty starts for bytes that one message would carry in one.

Evidence it needs: the collectives' sizes, which c10d records by itself, and backward's ranges
(`ProfilerActivity.CPU`).

What to do: DistributedDataParallel(bucket_cap_mb=25), which is the default; larger over slow
networks. DeepSpeed: reduce_bucket_size. FSDP: shard larger units.

Example: 41 all-reduces of 0.26 MB took 4.5 ms each, 190 ms a step; one bucket of 10.5 MB brought it
to 31 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.core.trace import NONE
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal, without_collectives
from stepscope.rules.shared.messages import (
    Cost,
    Messages,
    cost_of,
    launched_inside,
    messages,
    times_ns,
)

CODE = "tiny-buckets"
BOUND = "comms"


class Policy(Struct, frozen=True, kw_only=True):
    bucket_bytes: int = 25 * 2**20
    """DDP's default bucket_cap_mb."""
    least_per_bucket: float = 4.0
    """Messages that one bucket takes the place of, on average: DDP's own first and last buckets are
    small by design."""


POLICY = Policy()


class Bucket(Struct, frozen=True, kw_only=True):
    """Positions in a rank's messages that become one, carried by the last of them."""

    members: tuple[int, ...]
    bytes: float


def propose_job(job: JobCase) -> JobProposal | None:
    """Consecutive messages merged into buckets, each sent when its last gradient is there."""
    gradients = [_gradients(job, index) for index in range(len(job.cases))]
    merged = [buckets(rank_messages) for rank_messages in gradients]
    num_before, num_after = sum(map(len, gradients)), sum(map(len, merged))
    if num_after == 0 or num_before < POLICY.least_per_bucket * num_after:
        return None
    sizes = np.concatenate([rank_messages.bytes for rank_messages in gradients])
    took = np.concatenate(
        [
            times_ns(job.job_graph, index, rank_messages)
            for index, rank_messages in enumerate(gradients)
        ]
    )
    cost = cost_of(sizes, took)
    if cost is None:
        return None
    steps = sum(part.graph.num_steps for part in job.job_graph.parts)
    caveat, hopeful = "", None
    if not cost.measured:
        caveat = " (too small to show the link's rate: taken as the slowest that it can be)"
        free = replace(cost, beta_bytes_per_ns=np.inf)
        hopeful = partial(with_buckets, gradients=gradients, merged=merged, cost=free)
    return JobProposal(
        code=CODE,
        bound=BOUND,
        summary=f"{num_before / steps:.0f} gradient messages a step of "
        f"{np.median(sizes) / 1e6:.2f} "
        "MB each pay the latency of"
        f" {cost.alpha_ns / 1e6:.2f} ms.",
        action="DistributedDataParallel(..., bucket_cap_mb=25), the default; DeepSpeed: "
        "reduce_bucket_size; FSDP: larger units",
        evidence=(
            (
                f"{num_before / steps:.0f} messages a step where {num_after / steps:.0f} of at "
                "most "
                "25 MiB would do"
            ),
            (
                f"a message takes {cost.alpha_ns / 1e6:.2f} ms + its bytes / "
                f"{cost.beta_bytes_per_ns:.2f} GB/s{caveat}"
            ),
        ),
        ranks=job.ranks,
        change=lambda job_graph: with_buckets(job_graph, gradients, merged, cost),
        hopeful=hopeful,
    )


def _gradients(job: JobCase, index: int) -> Messages:
    """Messages sent as gradients are accumulated: nothing of the backward pass waits for them."""
    sent = messages(
        job, index, lambda kind: kind.op in ("all_reduce", "reduce_scatter") and kind.on_device
    )
    inside = launched_inside(job, index, lambda name: "AccumulateGrad" in name)
    chosen = np.flatnonzero(inside[sent.task] & ~np.isnan(sent.bytes) & (sent.step != NONE))
    return Messages(
        task=sent.task[chosen],
        number=sent.number[chosen],
        bytes=sent.bytes[chosen],
        kind=tuple(sent.kind[position] for position in chosen.tolist()),
        step=sent.step[chosen],
    )


def buckets(gradients: Messages) -> list[Bucket]:
    """Consecutive messages of one step, operation, group and type put together up to a bucket's
    size."""
    made: list[Bucket] = []
    filling: dict[tuple[int, str, str, str | None], list[int]] = {}
    size: dict[tuple[int, str, str, str | None], float] = {}
    for position, kind in enumerate(gradients.kind):
        key = (int(gradients.step[position]), kind.op, kind.group, kind.dtype)
        if key in filling and size[key] + gradients.bytes[position] > POLICY.bucket_bytes:
            made.append(Bucket(members=tuple(filling.pop(key)), bytes=size.pop(key)))
        filling.setdefault(key, []).append(position)
        size[key] = size.get(key, 0.0) + float(gradients.bytes[position])
    made += [Bucket(members=tuple(members), bytes=size[key]) for key, members in filling.items()]
    return made


def with_buckets(
    job_graph: JobGraph,
    gradients: Sequence[Messages],
    merged: Sequence[Sequence[Bucket]],
    cost: Cost,
) -> JobGraph:
    """The last message of each bucket takes what the whole bucket costs, the others are gone: on
    all ranks the same ones."""
    moving, masks, parts = job_graph.moving_ns.copy(), [], []
    for part, sent, made in zip(job_graph.parts, gradients, merged, strict=True):
        gone, task_ns = np.zeros(len(part.graph), np.bool_), part.graph.task_ns.copy()
        for bucket in made:
            *rest, last = bucket.members
            gone[sent.task[rest]] = True
            if rest and part.shared[sent.task[last]] != NONE:
                moving[part.shared[sent.task[last]]] = cost.of(bucket.bytes)
            elif rest:
                task_ns[sent.task[last]] = cost.of(bucket.bytes)
        masks.append(gone)
        parts.append(replace(part, graph=replace(part.graph, task_ns=task_ns)))
    return without_collectives(replace(job_graph, parts=tuple(parts), moving_ns=moving), masks)
