"""DDP's buckets are so large that the exchange of the last one stands after the backward pass.

What it sees: gradient messages of DDP, each of several gradients and of more than twice the default
bucket, with time after the backward pass in which the last of them moves and nothing computes.

Why it costs: a bucket is sent when the last of its gradients is there. Of one bucket for the whole
model nothing crosses while the backward pass runs: all of it is exposed. With many, only the last
one's bytes come after the end.

Evidence it needs: the collectives' sizes, which c10d records by itself, and backward's ranges
(`ProfilerActivity.CPU`).

What to do: DistributedDataParallel(bucket_cap_mb=25), which is the default. A gradient that alone
is larger than a bucket stays one: a large embedding is not split.

How the gain is priced: DDP closes a bucket with the gradient that reaches the cap, so pieces are
whole gradients. Each costs a start, as far as sizes of messages tell it; of ranks that share one
device (by its UUID, in a run) each has to wait for the turn of the others.

Example: two ranks with bucket_cap_mb=1000: one message of 400 MB begins when the backward pass has
ended.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from math import ceil

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.core.trace import Bool, Float64, Kind
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.case import Case
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import (
    ACCUMULATE,
    Messages,
    cost_of,
    gradient_messages,
    launched_inside,
    times_ns,
    with_times_ns,
)

CODE = "oversized-buckets"
BOUND = "comms"
BACKWARD = re.compile(r"^autograd::engine::evaluate_function: ")
GRADIENT = re.compile(r"^torch::autograd::AccumulateGrad$")


class Policy(Struct, frozen=True, kw_only=True):
    usual_mb: int = 25
    """DDP's default bucket_cap_mb."""
    least_times: float = 2.0
    """The default, from which a bucket is oversized: gradients that do not fit make buckets a
    little larger than the cap."""
    least_gradients: int = 4
    """Gradients in an oversized bucket: one of few gradients is large for theirs, and no cap splits
    it."""
    turn_ms: float = 2.25
    """Milliseconds that a message waits for each process on a device that several share: the
    smallest message of two ranks took 4.5 ms (one H200, driver 580)."""


POLICY = Policy()


class _Split(Struct, frozen=True, kw_only=True):
    """A rank's messages, and the computing of the backward pass before each, from the one before
    it on."""

    sent: Messages
    window_ns: Float64
    start_ns: float
    """Time to start one message."""

    def left_ns(self, now_ns: Float64, cap_bytes: float) -> Float64:
        """Time that each message still takes when its last gradient is there, were it sent in
        pieces as its gradients come. n pieces of p ns each become ready evenly over a window w: the
        last one, or what queues up before it, is left: max(p, n p - w (n - 1) / n). What an earlier
        message left takes from the window.

        n pieces of p ns each become ready evenly over a window w: the last one, or what queues up
        before it, is left: max(p, n p - w (n - 1) / n). What an earlier message left takes from
        the window.
        """
        left: Float64 = now_ns.copy()
        before = 0.0
        for at, size in enumerate(self.sent.bytes.tolist()):
            if at and self.sent.step[at] != self.sent.step[at - 1]:
                before = 0.0
            num = max(ceil(size / cap_bytes), 1)
            piece = (float(now_ns[at]) + (num - 1) * self.start_ns) / num
            window = max(float(self.window_ns[at]) - before, 0.0)
            queued = num * piece - window * (num - 1) / num
            left[at] = min(max(piece, queued), float(now_ns[at])) if num > 1 else now_ns[at]
            before = float(left[at])
        return left


def propose_job(job: JobCase) -> JobProposal | None:
    """Each oversized message is sent in pieces of the default size, as its gradients come."""
    sent = [gradient_messages(job, index, ACCUMULATE) for index in range(len(job.cases))]
    sizes = np.concatenate([own.bytes for own in sent]) if sent else np.zeros(0)
    cap = POLICY.usual_mb * 2.0**20
    is_large = sizes > POLICY.least_times * cap
    if not is_large.any() or not _are_splittable(job, sent, cap):
        return None
    took = np.concatenate([times_ns(job.job_graph, at, own) for at, own in enumerate(sent)])
    cost = cost_of(sizes, took)
    if cost is None:
        return None
    start_ns = max(cost.alpha_ns, _turns_ns(job))
    piece = max(_piece_bytes(job, index, own, cap) for index, own in enumerate(sent))
    splits = [
        _Split(sent=own, window_ns=_windows_ns(job, index, own), start_ns=start_ns)
        for index, own in enumerate(sent)
    ]
    largest, steps = float(sizes.max()), sum(p.graph.num_steps for p in job.job_graph.parts)
    after = float(took[is_large].sum()) / max(steps, 1) / 1e6
    return JobProposal(
        summary=f"Gradients cross in buckets of up to {largest / 1e6:.0f} MB, each sent when its "
        "last gradient is there.",
        action=f"DistributedDataParallel(..., bucket_cap_mb={POLICY.usual_mb}), the default: most "
        "bytes then cross beside the backward pass",
        evidence=(
            (
                f"{len(sizes) / max(steps, 1):.0f} gradient messages a step, "
                f"{largest / 1e6:.0f} MB the largest; the default is {cap / 1e6:.0f}"
            ),
            f"the oversized ones take {after:.2f} ms a step",
        ),
        change=partial(_changed, splits=splits, cap_bytes=piece),
        # Kernels and transfers that run at once slow one another down.
        cautious=partial(_changed, splits=splits, cap_bytes=piece, spared=0.5),
    )


def _changed(
    job_graph: JobGraph, splits: list[_Split], cap_bytes: float, spared: float = 1.0
) -> JobGraph:
    """Graph with so much of the time spared that could be."""
    in_order = iter(splits)

    def new_ns(_own: Messages, now_ns: Float64) -> Float64:
        left = next(in_order).left_ns(now_ns, cap_bytes)
        return now_ns - spared * (now_ns - left)

    return with_times_ns(job_graph, [split.sent for split in splits], new_ns)


def _turns_ns(job: JobCase) -> float:
    """Time until all ranks that share a device have had it."""
    ids = [case.metadata.device_id for case in job.cases if case.metadata is not None]
    shared = Counter(each for each in ids if each is not None)
    most = max(shared.values(), default=1)
    return most * POLICY.turn_ms * 1e6 if most > 1 else 0.0


def _piece_bytes(job: JobCase, index: int, sent: Messages, cap_bytes: float) -> float:
    """Bytes of a bucket under the cap that is made of gradients of the mean size."""
    context = job.cases[index].context
    made = np.flatnonzero(_gradients(job.cases[index]))
    step = np.searchsorted(context.cut.host_start, context.trace.start_ns[made], side="right")
    num = int(np.bincount(step, minlength=1).max())
    if not num or not len(sent):
        return cap_bytes
    a_step = float(np.bincount(sent.step, weights=sent.bytes).max())
    return a_step / num * ceil(round(cap_bytes * num / a_step, 6))


def _windows_ns(job: JobCase, index: int, sent: Messages) -> Float64:
    """Time of the backward pass's kernels before each message, since the one before it or since the
    pass's begin."""
    graph = job.job_graph.parts[index].graph
    backward = launched_inside(job, index, lambda name: BACKWARD.search(name) is not None)
    counted = np.where(backward & job.compute_tasks(index), graph.task_ns, 0.0)
    windows = np.zeros(len(sent))
    before = 0
    for at, task in enumerate(sent.task.tolist()):
        same = graph.task_step[before:task] == sent.step[at]
        windows[at] = float(counted[before:task][same].sum())
        before = task + 1
    return windows


def _are_splittable(job: JobCase, sent: list[Messages], cap_bytes: float) -> bool:
    """Whether the oversized buckets hold several gradients, by how many the backward passes of the
    recorded steps made; and their owner did not say that his cap is no larger."""
    caps = [
        case.metadata.ddp.get("bucket_cap_mb")
        for case in job.cases
        if case.metadata is not None and case.metadata.ddp is not None
    ]
    if any(isinstance(cap, (int, float)) and cap <= POLICY.usual_mb for cap in caps):
        return False
    for case, own in zip(job.cases, sent, strict=True):
        large = int((own.bytes > POLICY.least_times * cap_bytes).sum())
        if large and int(_gradients(case).sum()) < POLICY.least_gradients * len(own):
            return False
    return True


def _gradients(case: Case) -> Bool:
    """Mask over the trace: a gradient was there."""
    trace = case.context.trace
    made: Bool = trace.is_kind(Kind.OP) & matching(trace, GRADIENT)
    return made


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose_job=propose_job,
    excludes=("tiny-buckets",),
)
