"""Gradients cross in many small messages, and each pays the link's latency.

What it sees: in one backward pass many all-reduces (or reduce-scatters) of gradients, each far
smaller than a bucket, launched as the gradients appear; a start of each that takes longer than its
bytes, by the line T = alpha + bytes / beta through this job's own messages.

Why it costs: a message costs its start (alpha: kernel launch, handshakes, steps around the ring)
and its bytes. Forty messages pay forty starts for bytes that one message would carry in one.

Evidence it needs: the collectives' sizes, which c10d records by itself, and backward's ranges
(`ProfilerActivity.CPU`); on a device or, with gloo, without one. There the job's own all_reduce of
each gradient, between backward and the optimizer, counts as well.

What to do: DistributedDataParallel(bucket_cap_mb=25), which is the default, also in place of
`for p in model.parameters(): dist.all_reduce(p.grad)`; 100 over networks whose
start was measured to weigh beside 25 MB. DeepSpeed: reduce_bucket_size. FSDP: shard larger units.

Example: 41 all-reduces of 0.26 MB took 4.5 ms each, 190 ms a step; one bucket of 10.5 MB brought it
to 31 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import is_among, matching
from stepscope.analyses.intervals import union
from stepscope.core.trace import NONE, Float64, Int64, Kind
from stepscope.replay.changes import without_host_ranges
from stepscope.replay.graph import Graph
from stepscope.replay.host_graph import HANDED_OVER
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.case import Case
from stepscope.rules.job_case import JobCase, JobProposal, without_collectives
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import call_of_task, without_operators
from stepscope.rules.shared.messages import (
    ACCUMULATE,
    Cost,
    Messages,
    cost_of,
    gradient_messages,
    times_ns,
)
from stepscope.rules.shared.micro_batches import beginnings
from stepscope.rules.shared.waited_collectives import Waited, waited_collectives

CODE = "tiny-buckets"
BOUND = "comms"


class Policy(Struct, frozen=True, kw_only=True):
    usual_mb: int = 25
    """DDP's default bucket_cap_mb."""
    least_per_bucket: float = 4.0
    """Messages that one bucket takes the place of, on average: DDP's own first and last buckets are
    small by design."""
    large_mb: int = 100
    """Cap for links whose start was measured to weigh beside a usual bucket's bytes, in
    megabytes."""
    least_per_large: float = 2.0


POLICY = Policy()


class Bucket(Struct, frozen=True, kw_only=True):
    """Positions in a rank's messages that become one, carried by the last of them."""

    members: tuple[int, ...]
    bytes: float


class _Merging(Struct, frozen=True, kw_only=True):
    """Every rank's messages put together into buckets of at most so many MiB."""

    job: JobCase
    cap_mb: int
    gradients: list[Messages]
    merged: list[list[Bucket]]
    cost: Cost
    by_hand: list[Waited]
    """The same messages, where the job's own code sends them one after the other."""

    @property
    def num_after(self) -> int:
        return sum(map(len, self.merged))

    @property
    def num_shared(self) -> int:
        """Buckets that small messages share: one as large as a bucket has its own."""
        return sum(bucket.bytes <= self.cap_mb * 2**20 for own in self.merged for bucket in own)

    def change(self, job_graph: JobGraph) -> JobGraph:
        return self.at_cost(job_graph, self.cost)

    def at_cost(self, job_graph: JobGraph, cost: Cost) -> JobGraph:
        merged = with_buckets(job_graph, self.gradients, self.merged, cost)
        graphs = [
            _handed_over_once(case, part.graph, own, made) if part.graph.on_host else part.graph
            for case, part, own, made in zip(
                self.job.cases, merged.parts, self.gradients, self.merged, strict=True
            )
        ]
        if self.by_hand:
            graphs = [
                _waited_once(case, graph, own, made)
                for case, graph, own, made in zip(
                    self.job.cases, graphs, self.by_hand, self.merged, strict=True
                )
            ]
        return with_graphs(merged, graphs)


def propose_job(job: JobCase) -> JobProposal | None:
    """Consecutive messages merged into buckets, each sent when its last gradient is there."""
    gradients = [gradient_messages(job, index, ACCUMULATE) for index in range(len(job.cases))]
    by_hand = [] if any(map(len, gradients)) else _by_hand(job)
    if by_hand:
        gradients = [waited.sent for waited in by_hand]
    sizes = np.concatenate([own.bytes for own in gradients])
    took = np.concatenate([times_ns(job.job_graph, at, own) for at, own in enumerate(gradients)])
    cost = cost_of(sizes, took)
    best = None if cost is None else _best(job, gradients, cost, by_hand)
    if cost is None or best is None:
        return None
    steps = sum(part.graph.num_steps for part in job.job_graph.parts)
    caveat, hopeful = "", None
    if not cost.measured:
        caveat = " (too small to show the link's rate: taken as the slowest that it can be)"
        free = replace(cost, beta_bytes_per_ns=np.inf)
        hopeful = partial(best.at_cost, cost=free)
    usual = ", the default" if best.cap_mb == POLICY.usual_mb else ""
    num = len(sizes) / steps
    return JobProposal(
        summary=f"{num:.0f} gradient messages a step of {np.median(sizes) / 1e6:.2f} MB each pay "
        f"the latency of {cost.alpha_ns / 1e6:.2f} ms.",
        action="DistributedDataParallel in place of an all_reduce of each parameter's gradient; or "
        "one all_reduce of all of them in one tensor"
        if by_hand
        else f"DistributedDataParallel(..., bucket_cap_mb={best.cap_mb}){usual}; DeepSpeed: "
        "reduce_bucket_size; FSDP: larger units",
        evidence=(
            (
                f"{num:.0f} messages a step where {best.num_after / steps:.0f} of at most "
                f"{best.cap_mb} MiB would do"
            ),
            (
                f"a message takes {cost.alpha_ns / 1e6:.2f} ms + its bytes / "
                f"{cost.beta_bytes_per_ns:.2f} GB/s{caveat}"
            ),
        ),
        change=best.change,
        hopeful=hopeful,
        alternative_to=() if usual else ("fp32-exchange", "exposed-collectives", "slow-link"),
    )


def _by_hand(job: JobCase) -> list[Waited]:
    """All-reduces of gradients by the job's own code, one after the other once backward is done;
    none where not every rank sends some."""
    if not all(part.graph.on_host for part in job.job_graph.parts):
        return []
    sent = []
    for index in range(len(job.cases)):
        waited = waited_collectives(job, index)
        is_sum = np.array([kind.op == "all_reduce" for kind in waited.sent.kind], np.bool_)
        sent.append(waited.at(is_sum & waited.before_update & ~np.isnan(waited.sent.bytes)))
    return sent if all(map(len, sent)) else []


def _best(
    job: JobCase, gradients: list[Messages], cost: Cost, by_hand: list[Waited]
) -> _Merging | None:
    """Usual buckets where messages are far smaller: that is a fault with a known way out. Else
    larger ones, where the messages' start was measured."""
    options = [(POLICY.usual_mb, POLICY.least_per_bucket)]
    if cost.measured and len(job.cases) > 1:
        options.append((POLICY.large_mb, POLICY.least_per_large))
    for cap_mb, least in options:
        merged = [
            buckets(own, cap_mb, _micro_batches(job, index, own))
            for index, own in enumerate(gradients)
        ]
        merging = _Merging(
            job=job,
            cap_mb=cap_mb,
            gradients=gradients,
            merged=merged,
            cost=cost,
            by_hand=by_hand,
        )
        num_small = sum(int((own.bytes <= cap_mb * 2**20).sum()) for own in gradients)
        if merging.num_shared and num_small >= least * merging.num_shared:
            return merging
    return None


def _micro_batches(job: JobCase, index: int, sent: Messages) -> Int64:
    """Micro-batch that sends each message: its gradients are none of the next one's."""
    graph, begins = job.job_graph.parts[index].graph, beginnings(job, index)
    launched = graph.call_start_ns[call_of_task(graph)][sent.task]
    return np.array(
        [
            np.searchsorted(begins[step], at, side="right") if step < len(begins) else 0
            for step, at in zip(sent.step.tolist(), launched.tolist(), strict=True)
        ],
        np.int64,
    )


def buckets(gradients: Messages, cap_mb: int, micro_batch: Int64) -> list[Bucket]:
    """Consecutive messages of one micro-batch, operation, group and type put together up to a
    bucket's size."""
    made: list[Bucket] = []
    filling: dict[tuple[int, int, str, str, str | None], list[int]] = {}
    size: dict[tuple[int, int, str, str, str | None], float] = {}
    for position, kind in enumerate(gradients.kind):
        of_batch = int(gradients.step[position]), int(micro_batch[position])
        key = (*of_batch, kind.op, kind.group, kind.dtype)
        if key in filling and size[key] + gradients.bytes[position] > cap_mb * 2**20:
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
    for index, (sent, made) in enumerate(zip(gradients, merged, strict=True)):
        part, now_ns = job_graph.parts[index], times_ns(job_graph, index, sent)
        gone, task_ns = np.zeros(len(part.graph), np.bool_), part.graph.task_ns.copy()
        for bucket in made:
            *rest, last = bucket.members
            gone[sent.task[rest]] = True
            if rest and part.shared[sent.task[last]] != NONE:
                moving[part.shared[sent.task[last]]] = _merged_ns(bucket, now_ns, cost)
            elif rest:
                task_ns[sent.task[last]] = _merged_ns(bucket, now_ns, cost)
        masks.append(gone)
        parts.append(replace(part, graph=replace(part.graph, task_ns=task_ns)))
    return without_collectives(replace(job_graph, parts=tuple(parts), moving_ns=moving), masks)


def _handed_over_once(case: Case, graph: Graph, sent: Messages, merged: Sequence[Bucket]) -> Graph:
    """A host without a device spends operators on each message that it hands over: the last of each
    bucket is left."""
    trace = case.context.trace
    gone = sent.task[[at for bucket in merged for at in bucket.members[:-1]]]
    when = graph.call_start_ns[call_of_task(graph)[gone]]
    asked = np.flatnonzero(trace.is_kind(Kind.OP) & matching(trace, HANDED_OVER))
    asked = asked[is_among(trace.start_ns[asked], when)]
    return without_operators(case, graph, union(trace.start_ns[asked], trace.end_ns[asked]))


def _waited_once(case: Case, graph: Graph, waited: Waited, merged: Sequence[Bucket]) -> Graph:
    """Nor does it wake up after each message that it waits for."""
    gone = np.array([at for bucket in merged for at in bucket.members[:-1]], np.int64)
    spent = union(waited.start[gone], waited.end[gone])
    return without_operators(case, without_host_ranges(graph, spent), spent)


def _merged_ns(bucket: Bucket, now_ns: Float64, cost: Cost) -> float:
    """Time by the line; where that was measured, no less than its messages took without all their
    starts but one."""
    by_line = cost.of(bucket.bytes)
    if not cost.measured:
        return by_line
    spared = (len(bucket.members) - 1) * cost.alpha_ns
    return max(by_line, float(now_ns[list(bucket.members)].sum()) - spared)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
